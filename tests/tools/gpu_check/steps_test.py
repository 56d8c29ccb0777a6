#!/usr/bin/env python3
"""How tools/gpu_check judges what it runs: with programs of ours for those that need a GPU."""

import json
import os
import signal
import subprocess
import sys
import tarfile
import time
import unittest
import unittest.mock

sys.dont_write_bytecode = True

from folder import LONG_S, ROOT, Folder, has_text
from gpu import archive, build, driver, libraries, model_steps, steps, works
from gpu.check import (FAILED, NOT_RUN, PASSED, SKIPPED, TIMED_OUT, Check, Step, StepFailed,
                       chosen_steps)

SHARDS = 4  # processes of each test program, all of which say the same here
EPOCHS = [{"event": "epoch", "loss": loss, "test_accuracy": 0.8, "samples_per_second": 100.0}
          for loss in (2.0, 1.5)]
END = {"event": "end", "step_losses_hash": "1", "parameters_hash": "2", "devices": [
    {"device": "cuda:0", "measured_peak_bytes": 10, "predicted_peak_bytes": 10}]}


class ChosenStepsTest(unittest.TestCase):
    STEPS = [Step("unpack", "", 1, None, is_needed=True), Step("a", "", 1, None, ("group",)),
             Step("b", "", 1, None, ("group",), is_extra=True), Step("c", "", 1, None)]

    def test_those_that_are_needed_come_with_those_asked_for(self):
        for only, names in ((None, ["unpack", "a", "c"]), ("group", ["unpack", "a", "b"]),
                            ("c,b", ["unpack", "b", "c"]), ("unpack", ["unpack"])):
            self.assertEqual([step.name for step in chosen_steps(self.STEPS, only)], names, only)

    def test_a_step_that_there_is_not_is_an_error(self):
        with self.assertRaisesRegex(ValueError, "no step d; there are unpack, a, group, b, c"):
            chosen_steps(self.STEPS, "a,d")


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

    def test_fails_if_an_action_is_no_graph(self):
        graphs = {"captured": 4, "replayed": 7, "plain": 2, "why_plain": "cudaGraphLaunch: no"}
        end = {**END, "devices": [{**END["devices"][0], "graphs": graphs}]}
        with self.assertRaisesRegex(StepFailed, "cuda:0 issued 2 actions without a graph: cudaGra"):
            steps.check_training([*EPOCHS, end], "fp32")

    def test_counts_graphs(self):
        graphs = {"captured": 4, "replayed": 7, "plain": 0, "why_plain": ""}
        end = {**END, "devices": [{**END["devices"][0], "graphs": graphs}]}
        figures = steps.check_training([*EPOCHS, end], "fp32")
        self.assertIn(("fp32: actions issued as graphs", 7), [(f.name, f.value) for f in figures])

    def test_shows_what_the_driver_says_of_the_memory(self):
        accelerator = {"allocated_bytes": 10, "context_bytes": 5000000, "library_bytes": 7000000}
        end = {**END, "devices": [{**END["devices"][0], "accelerator": accelerator}]}
        figures = steps.check_training([*EPOCHS, end], "fp32")
        self.assertEqual([(f.name, f.value) for f in figures[-2:]],
                         [("fp32: memory of context", 5.0), ("fp32: memory of libraries", 7.0)])

    def test_fails_if_the_run_did_not_come_to_its_end(self):
        with self.assertRaisesRegex(StepFailed, "did not report"):
            steps.check_training(EPOCHS, "fp32")


# Programs that answer as the real ones do on a machine with one GPU.
STAGECOACH = """\
#!/bin/sh
case "$1 $*" in
devices*)
  echo '{"devices": [{"kind": "cpu"}, {"kind": "cuda", "name": "NVIDIA T"}], "cuda": {"nccl": "2.28"}}' ;;
bench*)
  %(bench)s ;;
generate*)
  echo '{"event": "end", "tokens": 256, "tokens_per_second": 500, "prompt_tokens_per_second": 900,
"devices": [{"device": "cuda:0", "measured_peak_bytes": 3, "predicted_peak_bytes": %(predicted)s}]}' \
    | tr -d '\\n' ;;
*)
  echo '{"event": "epoch", "loss": 2.0, "test_accuracy": 0.7, "samples_per_second": 10}'
  echo '{"event": "epoch", "loss": 1.0, "test_accuracy": 0.8, "samples_per_second": 10}'
  [ -z "$STAGECOACH_RANK" ] || %(of_a_rank)s
  echo '{"event": "end", "step_losses_hash": "1", "parameters_hash": "2", "devices": []}' ;;
esac
"""
BENCH = """\
#!/bin/sh
echo '{"id": "step_bf16", "name": "step", "value": 4.0, "unit": "ms"}'
echo '{"id": "step_tf32", "name": "step", "value": 8.0, "unit": "ms"}'
echo '{"id": "rate", "name": "share", "value": 0.7, "unit": "", "target": ">= 0.6", "met": true}'
"""
TILES = """\
[ "$2" = "--gtest_filter=*.DISABLED_*" ] || exit 1
echo 'forward, 16 x 1024, heads 12 of 64: tile 128 by 64, 8 warps: 0.1250 ms'
"""
# What a step on one stage takes depends on the micro-batches.
ROW = """\
ms=130; case "$*" in *"--micro-batches 4 "*) ms=120 ;; esac
echo '{"rows": [{"step_ms": '$ms', "tokens_per_second": 5e5, "peak_share": 0.5, "peak_bytes": 24,
"predicted_peak_bytes": 24}]}' | tr -d '\\n'"""


def fake_torch(**of_forms):
    """A Python that answers as torch_step.py with a time for each form, or does what is given."""
    lines = ["#!/bin/sh", "line() {", """  echo '{"torch": "2.11", "work": "'$1'", "form": "'$2'", """
             """"precision": "'$3'", "what": "'"$4"'", "ms": '$5'}'""", "}", 'case "$2 $3 $5" in']
    for work, form, precision in model_steps._TORCH:
        what = {"network": f"{works.NETWORK}, {precision}", "gpt2": f"{works.GPT2}, bf16",
                "generate": works.TOKEN, "attention": "attention"}[work]
        ms = {"network": 6, "gpt2": 180, "generate": 1, "attention": 1}[work]
        script = of_forms.get(f"{work}_{form}".replace("-", "_"),
                              f"line {work} {form} {precision} '{what}' {ms}")
        lines.append(f"'{work} {form} {precision}') {script} ;;")
    return "\n".join(lines + ["esac", ""])


class ProgramTest(Folder):
    """The whole program, with programs of ours in place of those that need a GPU."""

    def setUp(self):
        super().setUp()
        self.fake_stagecoach()
        self.write("build/bench/cuda_bench", BENCH, 0o755)
        self.fake_tests("echo '[  PASSED  ] 7 tests.'")

    def fake_stagecoach(self, of_a_rank=":", bench=ROW, predicted=3):
        self.write("build/tools/stagecoach",
                   STAGECOACH % {"of_a_rank": of_a_rank, "bench": bench, "predicted": predicted}, 0o755)

    def fake_tests(self, script, name="gpu_test"):
        program = self.write(f"build/{name}", f"#!/bin/sh\n{script}\n", 0o755)
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
        self.fake_tests(TILES + "echo '[  PASSED  ] 7 tests.'", "cuda_kernels_gpu_test")
        status, found = self.gpu_check("devices,gpt2,attention,generate,step,kernels,stages,train,nccl")
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
        self.assertEqual(found["parity"]["figures"][0]["value"], 2 * SHARDS)

    def test_counts_tests_that_are_skipped(self):
        self.fake_tests("echo '[  PASSED  ] 1 test.'; echo '[  SKIPPED ] 2 tests, listed below:'")
        _, found = self.gpu_check("parity")
        self.assertEqual([(figure["name"], figure["value"]) for figure in found["parity"]["figures"]],
                         [("gpu_test: tests passed", SHARDS), ("gpu_test: tests skipped", 2 * SHARDS)])

    def test_fails_if_there_is_no_test_for_gpus(self):
        self.write("build/CTestTestfile.cmake", "")
        _, found = self.gpu_check("parity")
        self.assertEqual(found["parity"]["reason"], "no built test has the label gpu")

    def test_keeps_the_figures_of_a_benchmark_that_does_not_end_well(self):
        self.write("build/bench/cuda_bench", BENCH + "kill -SEGV $$\n", 0o755)
        _, found = self.gpu_check("step")
        self.assertEqual((found["step"]["status"], len(found["step"]["figures"])), (FAILED, 3))

    def run_torch(self, only="torch", **of_forms):
        """The exit status, and the step of PyTorch, with forms that answer something else."""
        python = self.write("python", fake_torch(**of_forms), 0o755)
        status, found = self.gpu_check(only, "--python", python)
        return status, found["torch"]

    def test_compares_with_pytorch_in_the_same_run(self):
        status, torch = self.run_torch("step,gpt2,generate,torch")
        self.assertEqual(status, 0)
        names = [(figure["name"], figure["value"]) for figure in torch["figures"]]
        self.assertIn(("PyTorch compiled: GPT-2 124M, bf16", 180), names)
        self.assertIn(("PyTorch cudnn: attention", 1), names)
        ratios = [figure for figure in torch["figures"] if figure["target"]]
        self.assertEqual([(ratio["name"], ratio["value"], ratio["met"]) for ratio in ratios], [
            ("GPT-2 124M, bf16: 120 ms, PyTorch 180 ms: ratio", 1.5, True),
            ("GPT-2 124M, a token: 2 ms, PyTorch 1 ms: ratio", 0.5, False),
            ("default network, bf16: 4 ms, PyTorch 6 ms: ratio", 1.5, True),
            ("default network, tf32: 8 ms, PyTorch 6 ms: ratio", 0.75, False)])

    def test_shows_an_error_of_a_form_of_pytorch_and_the_times_of_the_others(self):
        form = '"work": "gpt2", "form": "compiled", "precision": "bf16"'
        _, torch = self.run_torch(gpt2_compiled=f"""{{
            echo '{{{form}, "error": "OutOfMemoryError: CUDA"}}'; exit 1; }}""")
        self.assertEqual(torch["reason"], "gpt2 compiled bf16: OutOfMemoryError: CUDA")
        self.assertEqual(len(torch["figures"]), len(model_steps._TORCH) - 1)

    def test_does_without_a_library_that_a_form_of_pytorch_needs(self):
        status, torch = self.run_torch(generate_hugging_face="exit 78")
        self.assertEqual((status, torch["status"]), (0, PASSED))

    def test_says_which_time_of_pytorch_was_taken_beside_others(self):
        form = '"work": "attention", "form": "flash", "precision": "bf16"'
        _, torch = self.run_torch(attention_flash=f"""\
            echo '{{{form}, "what": "attention", "ms": 2, "alone": false}}'""")
        self.assertIn("PyTorch flash, beside others: attention",
                      [figure["name"] for figure in torch["figures"]])

    def test_ends_pytorch_at_the_limit_and_names_what_has_not_answered(self):
        step = self.run_limited_torch(gpt2_compiled="sleep 1000")
        self.assertEqual(step["status"], TIMED_OUT)
        self.assertRegex(step["reason"], "^after [0-9]+ s: no answer from gpt2 compiled bf16$")
        self.assertEqual(len(step["figures"]), len(model_steps._TORCH) - 1)

    def test_takes_the_answers_of_a_form_of_pytorch_that_does_not_end(self):
        step = self.run_limited_torch(
            attention_flash="line attention flash bf16 attention 2; sleep 1000")
        self.assertEqual((step["status"], step["reason"]), (PASSED, ""))
        self.assertEqual(len(step["figures"]), len(model_steps._TORCH))

    def run_limited_torch(self, **of_forms):
        python = self.write("python", fake_torch(**of_forms), 0o755)
        check = steps.GpuCheck(ROOT, self.folder / "build", self.folder, self.folder, python)
        chosen = [step for step in check.steps() if step.name == "torch"]
        Check(self.folder / "out", chosen, 6, say=lambda line: None).run()
        return self.results()["steps"][0]

    def test_skips_pytorch_where_it_is_not(self):
        python = self.write("python", "#!/bin/sh\nexit 77\n", 0o755)
        status, found = self.gpu_check("torch", "--python", python)
        self.assertEqual((status, found["torch"]["status"]), (0, SKIPPED))

    def test_shows_times_and_memory_of_a_transformer(self):
        _, found = self.gpu_check("gpt2")
        self.assertEqual([(figure["name"], figure["value"])
                          for figure in found["gpt2"]["figures"]][4:7:2], [
            ("GPT-2 124M, 4 x 16: a step", 120),
            ("GPT-2 124M, 4 x 16: of peak", 0.5)])

    def test_fails_if_a_transformer_cannot_be_trained_one_way_and_goes_on_with_the_others(self):
        bench = 'case "$*" in *"--devices 4 "*) echo \'{"rows": [{"error": "no memory"}]}\'; exit 78;; esac;'
        self.fake_stagecoach(bench=bench + ROW)
        _, found = self.gpu_check("gpt2")
        self.assertEqual(found["gpt2"]["reason"].split("; "), [
            "GPT-2 124M, 8 x 8, 4 stages: no memory",
            "GPT-2 124M, 8 x 8, 4 stages, offload full: no memory",
            "GPT-2 124M, 8 x 8, 4 stages, offload optimizer: no memory"])
        self.assertEqual(len(found["gpt2"]["figures"]), 8)

    def test_fails_if_memory_is_not_as_predicted(self):
        self.fake_stagecoach(bench=ROW.replace(": 24}", ": 25}"), predicted=4)
        _, found = self.gpu_check("gpt2,generate")
        self.assertIn("GPT-2 124M, 1 x 64: held 24 bytes, predicted were 25", found["gpt2"]["reason"])
        self.assertEqual(found["generate"]["reason"], "cuda:0 held 3 bytes, predicted were 4")

    def test_shows_the_time_of_each_tile_of_attention(self):
        self.fake_tests(TILES, "cuda_kernels_gpu_test")
        _, found = self.gpu_check("attention")
        self.assertEqual([(figure["name"], figure["value"], figure["unit"])
                          for figure in found["attention"]["figures"]][3:], [
            ("forward, 16 x 1024, heads 12 of 64: tile 128 by 64, 8 warps", 0.125, "ms")])

    def test_shows_the_longest_kernels_of_a_step(self):
        self.assertEqual(self.gpu_check("profile")[1]["profile"]["status"], SKIPPED)
        self.write("build/bench/libcuda_kernel_times.so", "")
        # Two steps of 130 ms are the last 260; the kernel before them is of another step.
        works = [("Old", 0, 139), ("void Long<__nv_bfloat16>(int)", 150, 200),
                 ("void Long<__nv_bfloat16>(int)", 300, 400), ("copy", 390, 400)]
        lines = "".join(json.dumps({"name": name, "grid": 1, "begin_ns": begin * 10**6,
                                    "end_ns": end * 10**6}) + "\n" for name, begin, end in works)
        recorded = self.write("recorded.jsonl", lines)
        self.fake_stagecoach(bench=f"{ROW}\n[ $CUDA_INJECTION64_PATH ] && "
                                   f"cp {recorded} $STAGECOACH_KERNEL_TIMES")
        _, found = self.gpu_check("profile")
        self.assertEqual([(figure["name"], figure["value"])
                          for figure in found["profile"]["figures"]][:3], [
            ("GPT-2 124M, 1 x 64: busy, of 130 ms", 75.0), ("GPT-2 124M: Long<bf16>", 75.0),
            ("GPT-2 124M: copy", 5.0)])
        self.assertEqual(len(found["profile"]["figures"]), 9)

    def test_runs_groups_of_steps(self):
        _, found = self.gpu_check("others,devices", "--minutes", "0.01")
        self.assertEqual(list(found), ["devices", "train", "nccl", "stages", "kernels", "profile",
                                       "memcheck", "racecheck", "synccheck", "initcheck"])
        _, found = self.gpu_check("images", "--minutes", "0.01")
        self.assertEqual(list(found), ["devices", "parity", "resnets", "torch-resnets"])
        _, found = self.gpu_check("adapters", "--minutes", "0.01")
        self.assertEqual(list(found), ["devices", "llama", "lora", "quantized"])
        _, found = self.gpu_check("transformers", "--minutes", "0.01")
        self.assertEqual(list(found), ["devices", "parity", "gpt2", "attention", "generate", "step",
                                       "torch"])

    def test_fails_if_a_rank_computes_something_else(self):
        self.fake_stagecoach(of_a_rank="""{
          echo '{"event": "end", "step_losses_hash": "1", "parameters_hash": "3", "devices": []}'
          exit
        }""")
        _, found = self.gpu_check("nccl")
        self.assertEqual(found["nccl"]["reason"],
                         "1f1b: the losses or parameters differ from those of one process")

    def test_gives_the_last_word_of_a_rank_that_fails(self):
        self.fake_stagecoach(of_a_rank="{ echo stagecoach: no such peer; exit 69; }")
        _, found = self.gpu_check("nccl")
        self.assertEqual(found["nccl"]["reason"],
                         "1f1b: rank 0 ended with status 69: stagecoach: no such peer")

    def test_exchanges_by_nccl_under_schedules_with_different_groups(self):
        _, found = self.gpu_check("nccl")
        self.assertEqual([figure["name"].split(":")[0] for figure in found["nccl"]["figures"]],
                         ["1f1b", "dualpipe-v", "interleaved", "auto"])
        log = (self.folder / "out/nccl.log").read_text()
        self.assertEqual(log.count("--exchange nccl --schedule dualpipe-v"), 4)

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
        self.fake_tests(f"[ $GTEST_SHARD_INDEX = 0 ] && echo $$ >{pid_file}; sleep 1000")
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
    def test_has_steps_of_different_names_whose_limits_fit_into_the_whole(self):
        for programs, minutes in {steps.Programs.PACKED: 5, steps.Programs.TO_BUILD: 9}.items():
            check = steps.GpuCheck(ROOT, self.folder, self.folder, tuning=self.folder,
                                   programs=programs)
            names = [step.name for step in check.steps()]
            self.assertEqual(len(set(names)), len(names))
            self.assertTrue(all(step.limit_s > 0 for step in check.steps()))
            for only in (None, "transformers", "adapters", "images", "others"):
                plan = chosen_steps(check.steps(), only)
                self.assertLess(sum(step.limit_s for step in plan), minutes * 60)


class PackedTest(Folder):
    """Programs of an archive, with files of ours in place of NVIDIA's libraries."""

    def setUp(self):
        super().setUp()
        self.write("content/MANIFEST", "needs: glibc 2.2 or later, x86_64-linux-gnu\nprograms: abc1\n")
        self.write("content/lib/x86_64-linux-gnu/libabsl.so.1", "")
        self.write("content/programs/tests/kernels/a_gpu_test", f"""\
            #!/bin/sh
            echo "$LD_LIBRARY_PATH" >{self.folder}/path
            echo "$STAGECOACH_CUDA_LIBRARY" >>{self.folder}/path
            echo '[  PASSED  ] 3 tests.'
            """, 0o755)
        with tarfile.open(self.folder / "a.tar.xz", "w:xz") as tar:
            tar.add(self.folder / "content", arcname=".")
        self.python = self.write("python", f"#!/bin/sh\necho {self.folder}/nvidia\n", 0o755)

    def run_check(self):
        """The results of unpacking and of the tests."""
        folders = [self.folder / f"nvidia/{name}/lib" for name in ("cu13", "nccl")]
        with unittest.mock.patch("gpu.libraries.library_folders", lambda python: folders):
            check = steps.GpuCheck(ROOT, self.folder / "build/release", self.folder / "a.tar.xz",
                                   self.folder, self.python, programs=steps.Programs.PACKED)
            chosen = [step for step in check.steps() if step.name in ("unpack", "parity")]
            Check(self.folder / "out", chosen, 3 * LONG_S, check.facts, say=lambda line: None).run()
        return self.results()["steps"]

    def test_are_run_with_the_libraries_of_the_archive_and_of_pythons_packages(self):
        for name in ("cu13/lib/libcublasLt.so.13", "cu13/lib/libcudart.so.13", "nccl/lib/libnccl.so.2"):
            self.write(f"nvidia/{name}", "")
        unpack, parity = self.run_check()
        self.assertEqual((unpack["status"], parity["status"]), (PASSED, PASSED))
        self.assertEqual(parity["figures"][0]["value"], 3 * SHARDS)
        prefix = self.folder / "build/prefix"
        path, backend = (self.folder / "path").read_text().splitlines()
        self.assertEqual(path.split(":"), [str(folder) for folder in (
            prefix / "lib/x86_64-linux-gnu", prefix / "lib", self.folder / "nvidia/cu13/lib",
            self.folder / "nvidia/nccl/lib")])
        self.assertEqual(backend, str(prefix / "programs" / build.BACKEND))
        self.assertEqual(self.results()["facts"]["programs"], "packed, of abc1")

    def test_are_not_run_without_a_library_of_nvidia(self):
        for name in ("cu13/lib/libcublasLt.so.13", "cu13/lib/libcudart.so.13"):
            self.write(f"nvidia/{name}", "")
        unpack, parity = self.run_check()
        self.assertEqual(unpack["reason"],
                         "neither the CUDA toolkit nor Python's packages have libnccl.so.2")
        self.assertEqual(parity["status"], NOT_RUN)


    def test_are_not_run_from_an_archive_without_any(self):
        self.write("content/MANIFEST", "needs: glibc 2.2 or later, x86_64-linux-gnu\n")
        with tarfile.open(self.folder / "a.tar.xz", "w:xz") as tar:
            tar.add(self.folder / "content", arcname=".")
        self.assertRegex(self.run_check()[0]["reason"],
                         "is of no use here: it has no programs; compile with --build$")


class LibrariesTest(Folder):
    def test_are_looked_for_in_the_toolkit_and_then_in_pythons_packages(self):
        self.write("toolkit/bin/nvcc", "", 0o755)
        python = self.write("python", f"#!/bin/sh\necho {self.folder}/nvidia\n", 0o755)
        for name in ("toolkit/lib64/libcudart.so.13", "nvidia/cu13/lib/libcudart.so.13",
                     "nvidia/cu13/lib/libcublasLt.so.13", "nvidia/nccl/lib/libnccl.so.2",
                     "nvidia/cudnn/lib/libcudnn.so.9"):
            self.write(name, "")
        with unittest.mock.patch("gpu.libraries.find_nvcc", lambda: self.folder / "toolkit/bin/nvcc"):
            with unittest.mock.patch.dict("os.environ", {"LD_LIBRARY_PATH": ""}):
                found = libraries.find_libraries(libraries.library_folders(python))
        self.assertEqual(found, {
            "cuBLASLt": self.folder / "nvidia/cu13/lib/libcublasLt.so.13",
            "cudart": self.folder / "toolkit/lib64/libcudart.so.13",
            "NCCL": self.folder / "nvidia/nccl/lib/libnccl.so.2",
            "cuDNN": self.folder / "nvidia/cudnn/lib/libcudnn.so.9"})

    def test_that_are_taken_are_those_of_the_dynamic_linker(self):
        text = "\tlibc.so.6 => /lib/libc.so.6 (0x1)\n\tlibnccl.so.2 => /n/libnccl.so.2 (0x2)\n" \
               "\tlibcudart.so.13 => not found\n"
        self.assertEqual(libraries.taken_libraries(text), {"NCCL": "/n/libnccl.so.2"})


class NoGpuTest(Folder):
    @unittest.skipIf(driver.why_no_gpu() == "", "there is a GPU")
    def test_ends_with_one_line(self):
        result = subprocess.run([sys.executable, ROOT / "tools/gpu_check", self.folder / "out"],
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stdout, r"\Agpu_check: there is no usable GPU: .+\n\Z")


class BuildTest(Folder):
    def cublas_options(self):
        """For a toolkit in the folder toolkit and Python packages in the folder nvidia."""
        nvcc = self.write("toolkit/bin/nvcc", "")
        python = self.write("python", f"#!/bin/sh\necho {self.folder}/nvidia\n", 0o755)
        return build.cublas_options(nvcc, python)

    def build_to_pack(self, script):
        """Runs it with a cmake of ours; returns the lines that it wrote to the file said."""
        self.write("bin/cmake", f"#!/bin/sh\necho $* >>{self.folder}/said\n{script}\n", 0o755)
        with unittest.mock.patch.dict("os.environ", {
                "PATH": f"{self.folder}/bin:{os.environ['PATH']}"}):
            build.build_to_pack(ROOT, self.folder / "built", say=lambda line: None)
        return (self.folder / "said").read_text().splitlines()

    def test_packs_programs_for_machines_with_other_processors(self):
        configure, compile_all = self.build_to_pack("")
        for option in ("-DCMAKE_CUDA_ARCHITECTURES=90", "-DSTAGECOACH_CPU_ARCH=x86-64-v3"):
            self.assertIn(option, configure)
        self.assertTrue(compile_all.endswith("stagecoach stagecoach_cuda cuda_bench "
                                             "cuda_kernel_times gpu_tests"))

    def test_packs_nothing_that_could_not_be_built(self):
        with self.assertRaisesRegex(archive.ArchiveError, "were not built: .*exit status 3"):
            self.build_to_pack("exit 3")

    def test_packs_the_programs_of_all_gpu_tests(self):
        self.write("CTestTestfile.cmake", f"""\
            add_test(on_gpu "{self.folder}/tests/x/a_gpu_test")
            set_tests_properties(on_gpu PROPERTIES LABELS gpu)
            add_test(elsewhere "/bin/false")
            """)
        self.write("tests/x/a_gpu_test", "", 0o755)
        self.assertEqual(set(build.programs_to_pack(self.folder)), {
            build.STAGECOACH, build.CUDA_BENCH, build.BACKEND, "tests/x/a_gpu_test"})

    def test_takes_cublas_from_python_where_the_toolkit_has_none(self):
        self.assertEqual(self.cublas_options(), ([], {}))
        for name in ("include/cublasLt.h", "lib/libcublasLt.so.13"):
            self.write(f"nvidia/cu13/{name}", "")
        wheel = self.folder / "nvidia/cu13"
        self.assertEqual(self.cublas_options(),
                         ([f"-DCUDA_cublasLt_LIBRARY={wheel}/lib/libcublasLt.so.13"],
                          {"CPATH": f"{wheel}/include"}))
        self.write("toolkit/targets/x86_64-linux/include/cublasLt.h", "")
        self.assertEqual(self.cublas_options(), ([], {}))


if __name__ == "__main__":
    unittest.main()
