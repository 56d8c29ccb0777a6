#!/usr/bin/env python3
"""What tools/gpu_check does around the GPU: its account of steps, its archive, its judgments."""

import gzip
import json
import os
import pathlib
import signal
import subprocess
import sys
import tarfile
import tempfile
import textwrap
import time
import unittest
import unittest.mock

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from gpu import archive, steps  # noqa: E402
from gpu.check import (ANY_STATUS, FAILED, NOT_RUN, PASSED, RUNNING, SKIPPED, TIMED_OUT,  # noqa: E402
                       CannotGoOn, Check, Figure, Step, StepFailed, StepSkipped)

# Far more than any step here takes, for those that are to end by themselves.
LONG_S = 60


class Folder(unittest.TestCase):
    """A test with a folder of its own."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, name, text, mode=0o644):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        path.chmod(mode)
        return path

    def assert_ends(self, pid):
        """A process that has been sent a signal may run for a moment more."""
        give_up = time.monotonic() + LONG_S
        while is_running(pid) and time.monotonic() < give_up:
            time.sleep(0.01)
        self.assertFalse(is_running(pid))

    def results(self):
        return json.loads((self.folder / "out/results.json").read_text())

    def run_steps(self, *functions, first_limit_s=LONG_S, budget_s=LONG_S):
        """Runs steps named s0, s1, ...; returns whether all were good and the status of each."""
        plan = [Step(f"s{i}", "a step", LONG_S if i else first_limit_s, run)
                for i, run in enumerate(functions)]
        good = Check(self.folder / "out", plan, budget_s, say=lambda line: None).run()
        return good, [step["status"] for step in self.results()["steps"]]


def passes(log):
    log.run(["true"])


def raises(error):
    def run(log):
        raise error
    return run


class CheckTest(Folder):
    def test_is_good_if_all_steps_pass_or_are_skipped(self):
        good, statuses = self.run_steps(passes, raises(StepSkipped("no torch")))
        self.assertTrue(good)
        self.assertEqual(statuses, [PASSED, SKIPPED])

    def test_goes_on_after_a_step_that_fails(self):
        good, statuses = self.run_steps(lambda log: log.run(["false"]), passes)
        self.assertFalse(good)
        self.assertEqual(statuses, [FAILED, PASSED])
        self.assertEqual(self.results()["steps"][0]["reason"], "false ended with status 1")

    def test_ends_after_a_step_without_which_there_is_nothing_to_run(self):
        good, statuses = self.run_steps(raises(CannotGoOn("no GPU")), passes)
        self.assertFalse(good)
        self.assertEqual(statuses, [FAILED, NOT_RUN])
        self.assertEqual(self.results()["steps"][1]["reason"], "no GPU")

    def test_ends_a_step_at_its_limit_with_all_that_it_started(self):
        pid_file = self.folder / "pid"
        script = f"sleep 1000 & echo $! >{pid_file}; wait"
        # A busy machine may come to nothing of the script before a short limit.
        for limit_s in (0.5, 5, 50):
            good, statuses = self.run_steps(lambda log: log.run(["sh", "-c", script]), passes,
                                            first_limit_s=limit_s)
            self.assertFalse(good)
            self.assertEqual(statuses, [TIMED_OUT, PASSED])
            if has_text(pid_file):
                break
        self.assert_ends(int(pid_file.read_text()))

    def test_gives_a_step_no_more_than_what_is_left_of_all_the_time(self):
        with unittest.mock.patch("gpu.check._LEAST_SECONDS", 0):  # the first step is always begun
            _, statuses = self.run_steps(lambda log: log.run(["sleep", "1000"]), passes, budget_s=4)
        self.assertEqual(statuses, [TIMED_OUT, NOT_RUN])

    def test_takes_a_defect_of_a_step_for_its_failure(self):
        _, statuses = self.run_steps(lambda log: 1 / 0, passes)
        self.assertEqual(statuses, [FAILED, PASSED])

    def test_names_a_program_that_does_not_exist(self):
        self.run_steps(lambda log: log.run(["/no/such/program"]))
        self.assertIn("/no/such/program: No such file", self.results()["steps"][0]["reason"])

    def test_has_results_of_all_steps_on_disk_while_it_runs(self):
        seen = []
        self.run_steps(passes, lambda log: seen.extend(self.results()["steps"]), passes)
        self.assertEqual([step["status"] for step in seen], [PASSED, RUNNING, NOT_RUN])

    def test_keeps_the_output_and_shows_its_end_where_a_step_fails(self):
        self.run_steps(lambda log: log.run(["sh", "-c", "seq 100; exit 3"]))
        self.assertIn("\n1\n2\n", (self.folder / "out/s0.log").read_text())
        self.assertIn("100", self.results()["steps"][0]["tail"])

    def test_runs_commands_together_each_with_its_variables(self):
        # Each waits for the other one.
        script = f"touch {self.folder}/$ME; until [ -e {self.folder}/$PEER ]; do :; done; echo $ME"
        answers = []

        def step(log):
            answers.extend(log.run_together([["sh", "-c", script]] * 2,
                                            [{"ME": "a", "PEER": "b"}, {"ME": "b", "PEER": "a"}]))
        self.run_steps(step)
        self.assertEqual(answers, [(0, "a\n"), (0, "b\n")])

    def test_says_which_targets_are_missed(self):
        def step(log):
            log.figures += [Figure("ratio", 0.5, "", ">= 1.1", False), Figure("time", 3.25, "ms")]
        self.run_steps(step)
        summary = (self.folder / "out/summary.txt").read_text()
        self.assertRegex(summary, r"ratio +0\.5 +target >= 1\.1: MISSED")
        self.assertRegex(summary, r"time +3\.25 ms\n")
        self.assertIn("1 targets missed", summary)


def has_text(path):
    return path.exists() and path.read_text().strip() != ""


def is_running(pid):
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # the latter if it ends while it is read
        return False
    return state not in "ZX"


def archive_of(folder, target):
    with tarfile.open(target, "w:xz") as tar:
        tar.add(folder, arcname=".")


class ArchiveTest(Folder):
    def test_wants_libraries_and_data_but_no_tools(self):
        text = "# To build\ng++\ncmake\n\nlibabsl-dev\nci: clang-format\ndataset-fashion-mnist # data\n"
        self.assertEqual(archive.wanted_packages(text), ["libabsl-dev", "dataset-fashion-mnist"])

    def test_takes_the_first_of_alternative_packages_and_no_virtual_one(self):
        text = "liba\n  Depends: libb\n |Depends: libc\n  Depends: libd\n  Depends: <libe>\n" \
               "  Recommends: libf\n  PreDepends: libg\n"
        self.assertEqual(archive.parse_depends(text), ["libb", "libc", "libg"])

    def test_makes_a_prefix_that_can_lie_anywhere(self):
        library = "unpacked/usr/lib/x86_64-linux-gnu/"
        self.write("unpacked/lib/x86_64-linux-gnu/libz.so.1.2", "")
        self.write(library + "liba.so.1", "")
        self.write(library + "liba.a", "")
        self.write(library + "libonly.a", "")
        for link, target in {"liba.so": "liba.so.1", "libgone.so": "libgone.so.1",
                             "libz.so": "/lib/x86_64-linux-gnu/libz.so.1.2"}.items():
            (self.folder / library / link).symlink_to(target)
        self.write(library + "pkgconfig/a.pc", "prefix=/usr\nlibdir=${prefix}/lib\n")
        self.write("unpacked/usr/share/cmake/Gloo/T.cmake", 'set(L "/usr/lib/libgloo.so")\n')
        self.write("unpacked/usr/share/doc/a/copyright", "")
        self.write("unpacked/usr/bin/pkgconf", "#!/bin/sh\necho $LD_LIBRARY_PATH $*\n", 0o755)
        data = self.write("unpacked/usr/share/datasets/d/x.gz", "")
        data.write_bytes(gzip.compress(b"pixels"))

        archive.make_prefix(self.folder / "unpacked", self.folder / "first")
        prefix = self.folder / "moved"
        (self.folder / "first").rename(prefix)

        there = prefix / "lib/x86_64-linux-gnu"
        self.assertEqual(sorted(file.name for file in there.glob("lib*")),
                         ["liba.so", "liba.so.1", "libonly.a", "libz.so", "libz.so.1.2"])
        self.assertTrue((there / "libz.so").resolve().is_relative_to(prefix.resolve()))
        self.assertTrue((there / "pkgconfig/a.pc").read_text().startswith("prefix=${pcfiledir}/"))
        self.assertEqual((prefix / "share/cmake/Gloo/T.cmake").read_text(),
                         'set(L "${_IMPORT_PREFIX}/lib/libgloo.so")\n')
        self.assertFalse((prefix / "share/doc").exists())
        self.assertEqual((prefix / "share/datasets/d/x").read_bytes(), b"pixels")
        self.assertEqual(subprocess.check_output([prefix / "bin/pkg-config", "--libs"], text=True),
                         f"{there} --libs\n")

    def test_refuses_a_library_whose_needs_are_not_there(self):
        source = self.write("a.cc", "int a() { return 1; }\n")
        (self.folder / "lib").mkdir()
        subprocess.check_call(["g++", "-shared", "-fPIC", source, "-Wl,-soname,liba.so.1", "-o",
                               self.folder / "liba.so.1"])
        subprocess.check_call(["g++", "-shared", "-fPIC", "-Wl,--no-as-needed", source,
                               self.folder / "liba.so.1", "-o", self.folder / "lib/libb.so"])
        with self.assertRaisesRegex(archive.ArchiveError, "libb.so needs liba.so.1"):
            archive.check_libraries(self.folder)
        (self.folder / "liba.so.1").rename(self.folder / "lib/liba.so.1")
        self.assertRegex(archive.check_libraries(self.folder), r"^2\.\d+$")

    def test_is_unpacked_once(self):
        self.write("content/file", "first")
        packed, prefix = self.folder / "a.tar.xz", self.folder / "prefix"
        archive_of(self.folder / "content", packed)
        archive.unpack(packed, prefix)
        self.write("prefix/file", "changed here")
        archive.unpack(packed, prefix)
        self.assertEqual((prefix / "file").read_text(), "changed here")

    def test_replaces_what_an_older_archive_left(self):
        packed, prefix = self.folder / "a.tar.xz", self.folder / "prefix"
        self.write("content/old", "")
        archive_of(self.folder / "content", packed)
        archive.unpack(packed, prefix)
        (self.folder / "content/old").rename(self.folder / "content/new")
        archive_of(self.folder / "content", packed)
        os.utime(packed, ns=(1, 1))
        archive.unpack(packed, prefix)
        self.assertEqual([(prefix / name).exists() for name in ("old", "new")], [False, True])

    def test_cannot_be_made_where_there_is_no_apt(self):
        self.write("bin/env", "", 0o755)
        result = subprocess.run([sys.executable, ROOT / "tools/gpu_check", "--pack",
                                 self.folder / "a.tar.xz"], stderr=subprocess.PIPE, text=True,
                                env={**os.environ, "PATH": str(self.folder / "bin")})
        self.assertEqual((result.returncode, result.stderr),
                         (1, "gpu_check: there is no apt-get here: pack on a Debian system\n"))


EPOCHS = [{"event": "epoch", "loss": loss, "test_accuracy": 0.8, "samples_per_second": 100.0}
          for loss in (2.0, 1.5)]
END = {"event": "end", "step_losses_hash": "1", "parameters_hash": "2", "devices": [
    {"device": "cuda:0", "measured_peak_bytes": 10, "predicted_peak_bytes": 10}]}


class TrainingTest(unittest.TestCase):
    def test_passes_if_the_loss_falls_and_the_memory_is_as_predicted(self):
        figures = steps.check_training([*EPOCHS, END], "bf16")
        self.assertIn(("bf16: test accuracy", 0.8), [(f.name, f.value) for f in figures])

    def test_fails_if_the_loss_does_not_fall(self):
        with self.assertRaisesRegex(StepFailed, "the loss rose from 1.5 to 2.0"):
            steps.check_training([*EPOCHS[::-1], END], "fp32")

    def test_fails_if_a_loss_is_no_number(self):
        with self.assertRaisesRegex(StepFailed, "a loss is not a number"):
            steps.check_training([EPOCHS[0], {**EPOCHS[1], "loss": None}, END], "fp32")

    def test_fails_if_a_device_held_something_else_than_predicted(self):
        end = {**END, "devices": [{**END["devices"][0], "measured_peak_bytes": 11}]}
        with self.assertRaisesRegex(StepFailed, "cuda:0 held 11 bytes, predicted were 10"):
            steps.check_training([*EPOCHS, end], "fp32")

    def test_fails_if_the_run_did_not_come_to_its_end(self):
        with self.assertRaisesRegex(StepFailed, "did not report"):
            steps.check_training(EPOCHS, "fp32")


# Programs that answer as the real ones do on a machine with one GPU.
STAGECOACH = """\
#!/bin/sh
if [ "$1" = devices ]; then
  echo '{"devices": [{"kind": "cpu"}, {"kind": "cuda", "name": "NVIDIA T"}], "cuda": {"nccl": "2.28"}}'
  exit
fi
echo '{"event": "epoch", "loss": 2.0, "test_accuracy": 0.7, "samples_per_second": 10}'
echo '{"event": "epoch", "loss": 1.0, "test_accuracy": 0.8, "samples_per_second": 10}'
[ -z "$STAGECOACH_RANK" ] || %s
echo '{"event": "end", "step_losses_hash": "1", "parameters_hash": "2", "devices": []}'
"""
BENCH = """\
#!/bin/sh
echo '{"id": "step_bf16", "name": "step", "value": 5.0, "unit": "ms"}'
echo '{"id": "rate", "name": "share", "value": 0.7, "unit": "", "target": ">= 0.6", "met": true}'
"""
TORCH = """\
#!/bin/sh
case $2 in
  *torch_step.py) echo '{"torch": "2.11", "ms": {"eager": 9.0, "compiled": 6.0}}' ;;
  *) case $1 in *torch_step.py) echo '{"torch": "2.11", "ms": {"eager": 9.0, "compiled": 6.0}}' ;; esac ;;
esac
"""


class ProgramTest(Folder):
    """The whole program, with programs of ours in place of those that need a GPU."""

    def setUp(self):
        super().setUp()
        self.fake_stagecoach(of_a_rank=":")
        self.write("build/bench/cuda_bench", BENCH, 0o755)
        self.fake_tests("echo '[  PASSED  ] 7 tests.'")

    def fake_stagecoach(self, of_a_rank):
        self.write("build/tools/stagecoach", STAGECOACH % of_a_rank, 0o755)

    def fake_tests(self, script):
        program = self.write("build/gpu_test", f"#!/bin/sh\n{script}\n", 0o755)
        self.write("build/CTestTestfile.cmake", f"""\
            add_test(on_gpu "{program}" "--gtest_filter=A.B")
            set_tests_properties(on_gpu PROPERTIES LABELS gpu)
            add_test(elsewhere "/bin/false")
            set_tests_properties(elsewhere PROPERTIES LABELS unit)
            """)

    def gpu_check(self, only, *more):
        """Its exit status and its steps by name."""
        process = subprocess.run(
            [sys.executable, ROOT / "tools/gpu_check", self.folder / "out", "--build-dir",
             self.folder / "build", "--only", only, *more], stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True)
        found = {step["step"]: step for step in self.results()["steps"]}
        return process.returncode, found

    def test_passes_where_all_is_well(self):
        status, found = self.gpu_check("devices,parity,step,kernels,stages,train,nccl")
        self.assertEqual({step["status"] for step in found.values()}, {PASSED})
        self.assertEqual(status, 0)
        self.assertEqual(self.results()["facts"]["gpus"], "NVIDIA T")

    def test_fails_if_a_test_fails_and_names_it(self):
        self.fake_tests("echo '[  FAILED  ] Norm.IsRight/3, where GetParam() = 5 (2 ms)'; exit 1")
        status, found = self.gpu_check("parity")
        self.assertEqual(status, 1)
        self.assertEqual(found["parity"]["reason"], "gpu_test (1 failed, first Norm.IsRight/3)")

    def test_runs_tests_where_a_missing_gpu_is_a_failure(self):
        self.fake_tests('[ "$STAGECOACH_REQUIRE_GPU" = 1 ] && echo "[  PASSED  ] 2 tests."')
        _, found = self.gpu_check("parity")
        self.assertEqual(found["parity"]["figures"][0]["value"], 2)

    def test_fails_if_there_is_no_test_for_gpus(self):
        self.write("build/CTestTestfile.cmake", "")
        _, found = self.gpu_check("parity")
        self.assertEqual(found["parity"]["reason"], "no built test has the label gpu")

    def test_keeps_the_figures_of_a_benchmark_that_does_not_end_well(self):
        self.write("build/bench/cuda_bench", BENCH + "kill -SEGV $$\n", 0o755)
        _, found = self.gpu_check("step")
        self.assertEqual((found["step"]["status"], len(found["step"]["figures"])), (FAILED, 2))

    def test_compares_with_pytorch_in_the_same_run(self):
        python = self.write("python", TORCH, 0o755)
        _, found = self.gpu_check("step,torch", "--python", python)
        ratio = found["torch"]["figures"][-1]
        self.assertEqual((ratio["value"], ratio["met"]), (6.0 / 5.0, True))

    def test_skips_pytorch_where_it_is_not(self):
        python = self.write("python", "#!/bin/sh\nexit 77\n", 0o755)
        status, found = self.gpu_check("torch", "--python", python)
        self.assertEqual((status, found["torch"]["status"]), (0, SKIPPED))

    def test_fails_if_a_rank_computes_something_else(self):
        self.fake_stagecoach(of_a_rank="""{
          echo '{"event": "end", "step_losses_hash": "1", "parameters_hash": "3", "devices": []}'
          exit
        }""")
        _, found = self.gpu_check("nccl")
        self.assertEqual(found["nccl"]["reason"],
                         "the losses or parameters differ from those of one process")

    def test_gives_the_last_word_of_a_rank_that_fails(self):
        self.fake_stagecoach(of_a_rank="{ echo stagecoach: no such peer; exit 69; }")
        _, found = self.gpu_check("nccl")
        self.assertEqual(found["nccl"]["reason"],
                         "rank 0 ended with status 69: stagecoach: no such peer")

    def test_skips_nccl_where_it_refuses_one_gpu_for_several_ranks(self):
        self.fake_stagecoach(of_a_rank="{ echo 'Duplicate GPU detected : rank 1'; exit 70; }")
        status, found = self.gpu_check("nccl")
        self.assertEqual((status, found["nccl"]["status"]), (0, SKIPPED))

    def test_runs_nothing_more_where_there_is_no_gpu(self):
        self.write("build/tools/stagecoach", """\
            #!/bin/sh
            echo '{"devices": [], "cuda": {"usable": false, "reason": "there is no driver"}}'
            """, 0o755)
        status, found = self.gpu_check("devices,parity")
        self.assertEqual(status, 1)
        self.assertEqual(found["devices"]["reason"], "there is no usable GPU: there is no driver")
        self.assertEqual(found["parity"]["status"], NOT_RUN)

    def test_ends_what_it_started_when_it_is_told_to_end(self):
        pid_file = self.folder / "pid"
        self.fake_tests(f"echo $$ >{pid_file}; sleep 1000")
        process = subprocess.Popen(
            [sys.executable, ROOT / "tools/gpu_check", self.folder / "out", "--build-dir",
             self.folder / "build", "--only", "parity"], stdout=subprocess.DEVNULL)
        while not has_text(pid_file):
            self.assertIsNone(process.poll())
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(LONG_S), 1)
        self.assert_ends(int(pid_file.read_text()))
        self.assertEqual(self.results()["steps"][0]["reason"], "interrupted")


class PlanTest(Folder):
    def test_has_steps_of_different_names_that_each_have_a_limit(self):
        check = steps.GpuCheck(ROOT, self.folder, self.folder, tuning=self.folder)
        names = [step.name for step in check.steps()]
        self.assertEqual(len(set(names)), len(names))
        self.assertTrue(all(0 < step.limit_s <= 300 for step in check.steps()))


if __name__ == "__main__":
    unittest.main()
