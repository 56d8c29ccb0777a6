#!/usr/bin/env python3
"""bench/peers/compare: what it compares, how, and what it shows, with programs in place of Stagecoach and of PyTorch."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
PEERS = HERE.parents[2] / "bench" / "peers"
PROGRAM, PYTHON = str(HERE / "fake_program"), str(HERE / "fake_python")


def value(arguments, flag):
    return arguments[arguments.index(flag) + 1]


class Comparison(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.log = self.folder / "log"
        self.environment = {**os.environ, "FAKE_LOG": str(self.log)}

    def command(self, *arguments):
        return [str(PEERS / "compare"), "--program", PROGRAM, "--python", PYTHON, *arguments]

    def compare(self, *arguments, status=0, fails="", **environment):
        done = subprocess.run(self.command(*arguments), env={**self.environment, "FAKE_FAILS": fails, **environment},
                              capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, status, done.stderr)
        return done

    def results(self, *arguments, **more):
        return json.loads(self.compare("--output", "json", *arguments, **more).stdout)

    def calls(self):
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def left(self):
        """Processes of workers, and of what they started, that are still there."""
        path = self.folder / "log.pids"
        # There is none if they were ended before they began.
        pids = path.read_text().split() if path.exists() else []
        return [pid for pid in pids if pathlib.Path("/proc", pid).exists()
                and pathlib.Path("/proc", pid, "stat").read_text().split(") ")[1][0] != "Z"]


class Contests(Comparison):
    def test_all_kinds_of_work_are_compared(self):
        found = self.results("--rounds", "1", "--microbatches", "4,8", "--threads", "1,2", "--forms", "eager")
        self.assertEqual([contest["title"] for contest in found["contests"]], [
            "one device of 1 thread", "one device of 2 threads",
            *(f"{schedule}, 2 devices of 1 thread, {count} micro-batches" for schedule in ("gpipe", "1f1b", "interleaved", "zb-v")
              for count in (4, 8)),
            "2 replicas of 1 thread, 4 micro-batches", "2 replicas of 1 thread, 8 micro-batches"])

    def test_both_sides_do_the_same_work(self):
        self.compare("--rounds", "1", "--repeats", "7", "--batch", "64", "--microbatches", "8", "--threads", "2", "--layers", "6",
                     "--forms", "eager")
        calls = self.calls()
        ours = [call["arguments"] for call in calls if call["side"] == "ours"]
        eager = [call["arguments"] for call in calls if call["side"] == "eager"]
        self.assertEqual(len(ours), 6)
        self.assertEqual(len(eager), 6)
        for own, theirs in zip(ours, eager):
            for flag, other in {"--model": "--model", "--batch": "--batch", "--microbatches": "--microbatches", "--layers": "--layers",
                                "--threads-per-device": "--threads", "--repeats": "--steps"}.items():
                self.assertEqual(value(own, flag), value(theirs, other))
        self.assertEqual([value(theirs, "--work") for theirs in eager], ["one", "gpipe", "1f1b", "interleaved", "zb-v", "ddp"])
        self.assertEqual([value(theirs, "--world") for theirs in eager], ["1", "2", "2", "2", "2", "2"])
        self.assertEqual([value(own, "--devices") for own in ours], ["1", "2", "2", "2", "2", "1"])
        self.assertEqual([value(own, "--schedule") for own in ours[1:5]], ["gpipe", "1f1b", "interleaved", "zb-v"])
        self.assertEqual(value(ours[5], "--replicas"), "2")

    def test_sides_take_turns(self):
        self.compare("--rounds", "2", "--only", "1f1b", "--microbatches", "4")
        self.assertEqual([call["side"] for call in self.calls()], 2 * ["ours", "eager", "compiled"])

    def test_zb_v_is_not_compiled(self):
        self.compare("--rounds", "1", "--only", "zb-v", "--microbatches", "4")
        self.assertEqual([call["side"] for call in self.calls()], ["ours", "eager"])

    def test_replicas_that_would_have_unequal_parts_are_left_out(self):
        found = self.results("--rounds", "1", "--only", "ddp", "--devices", "3", "--batch", "24", "--microbatches", "4,6",
                             "--forms", "eager")
        self.assertEqual([contest["title"] for contest in found["contests"]], ["3 replicas of 1 thread, 6 micro-batches"])

    def test_gpt2_is_cut_as_planned(self):
        done = self.compare("--rounds", "1", "--model", "gpt2-124m", "--only", "1f1b", "--microbatches", "8", "--forms", "eager")
        self.assertIn("tokens/s", done.stdout)
        ours, eager = (call["arguments"] for call in self.calls())
        self.assertEqual(value(eager, "--cut"), "10,5")
        self.assertEqual((value(ours, "--context"), value(eager, "--context")), ("256", "256"))

    def test_a_cut_may_be_given(self):
        self.compare("--rounds", "1", "--only", "gpipe", "--microbatches", "8", "--forms", "eager", "--cut", "12,8")
        self.assertEqual(value(self.calls()[1]["arguments"], "--cut"), "12,8")

    def test_processes_wait_for_each_other_as_long_as_a_run_may_take(self):
        self.compare("--rounds", "1", "--only", "gpipe", "--microbatches", "4", "--forms", "eager", "--timeout", "7200")
        self.assertEqual(float(value(self.calls()[1]["arguments"], "--timeout")), 7200)

    def test_resnet_is_also_run_with_channels_last(self):
        found = self.results("--rounds", "1", "--model", "resnet18-small", "--threads", "1")
        self.assertEqual([side["name"] for side in found["contests"][0]["sides"]], [
            "Stagecoach", "PyTorch, eager", "PyTorch, eager, channels last", "PyTorch, compiled", "PyTorch, compiled, channels last"])
        self.assertEqual(len(found["contests"]), 1)


class Environment(Comparison):
    def test_is_cleaned_of_what_slows_either_side(self):
        slow = {"OPENBLAS_CORETYPE": "Prescott", "MKL_NUM_THREADS": "1", "OMP_NUM_THREADS": "16", "KMP_BLOCKTIME": "0",
                "MALLOC_ARENA_MAX": "1", "ONEDNN_MAX_CPU_ISA": "SSE41"}
        self.compare("--rounds", "1", "--only", "one", "--threads", "2", "--forms", "eager", "--jemalloc", "", **slow)
        ours, eager = (call["environment"] for call in self.calls())
        self.assertFalse(set(slow) & set(ours))
        self.assertEqual(set(slow) & set(eager), {"OMP_NUM_THREADS"})
        self.assertEqual((eager["OMP_NUM_THREADS"], eager["OMP_WAIT_POLICY"]), ("2", "PASSIVE"))
        self.assertNotIn("LD_PRELOAD", eager)

    def test_only_pytorch_has_jemalloc(self):
        sys.path.insert(0, str(PEERS))
        import processes

        self.assertNotIn("LD_PRELOAD", processes.our_environment({"LD_PRELOAD": "libother.so"}))
        peers = processes.peers_environment({}, 1, "passive", "libjemalloc.so.2")
        self.assertEqual(peers["LD_PRELOAD"], "libjemalloc.so.2")
        self.assertIn("dirty_decay_ms:-1", peers["MALLOC_CONF"])


class Report(Comparison):
    ONE = ("--only", "1f1b", "--microbatches", "4", "--forms", "eager")

    def test_has_medians_and_ranges_of_rounds(self):
        found = self.results(*self.ONE)
        ours, eager = found["contests"][0]["sides"]
        self.assertEqual(ours["rounds"], [[100, 300, 1], [200, 300, 1], [300, 300, 1]])
        self.assertEqual((ours["step_ms"], ours["step_ms_range"]), (200, [100, 300]))
        self.assertEqual(ours["samples_per_second"], 2560)
        self.assertEqual((eager["step_ms"], eager["step_ms_range"]), (200, [200, 200]))
        self.assertEqual((eager["ratio"], eager["ratio_range"]), (1, [200 / 300, 2]))
        self.assertNotIn("ratio", ours)

    def test_says_what_was_measured_where_and_when(self):
        found = self.results(*self.ONE, "--rounds", "1")
        self.assertEqual(found["versions"]["stagecoach"], "Stagecoach 9.9.9")
        self.assertEqual(found["versions"]["torch"], "2.99.0")
        self.assertEqual(found["machine"]["stagecoach"], {"cores": 2})
        self.assertRegex(found["date"], r"^\d{4}-\d\d-\d\d$")
        self.assertEqual(found["settings"]["batch"], 512)

    def test_table(self):
        lines = self.compare(*self.ONE).stdout.splitlines()
        self.assertEqual(lines[0], "Stagecoach 9.9.9 beside PyTorch 2.99.0 (MKL 2024.2, oneDNN 3.13; Python 3.99; jemalloc)")
        self.assertIn("1f1b, 2 devices of 1 thread, 4 micro-batches", lines)
        self.assertEqual(" ".join(lines[-2].split()), "Stagecoach 200.0 (100.0-300.0) 2560.0")
        self.assertEqual(" ".join(lines[-1].split()),
                         "torch.distributed.pipelining, eager 200.0 (200.0-200.0) 2560.0 1.00 (0.67-2.00)")

    def test_markdown(self):
        lines = self.compare(*self.ONE, "--output", "markdown").stdout.splitlines()
        self.assertEqual(lines[-2], "| 1f1b, 2 devices of 1 thread, 4 micro-batches | Stagecoach | 200.0 (100.0-300.0) | 2560.0 |  |")
        self.assertEqual(lines[-1],
                         "|  | torch.distributed.pipelining, eager | 200.0 (200.0-200.0) | 2560.0 | 1.00 (0.67-2.00) |")

    def test_says_if_the_machine_was_busy(self):
        path = self.folder / "saved.json"
        self.compare(*self.ONE, "--rounds", "1", "--save", str(path))
        saved = json.loads(path.read_text())
        for load, is_said in {0.2: False, 3.14: True}.items():
            saved["machine"]["load_before"] = load
            path.write_text(json.dumps(saved))
            shown = self.compare("--show", str(path)).stdout
            self.assertEqual(f"not idle when it began: load average {load:.1f}" in shown, is_said)

    def test_what_was_saved_can_be_shown(self):
        path = str(self.folder / "saved.json")
        shown = self.compare(*self.ONE, "--rounds", "1", "--save", path).stdout
        self.log.unlink()
        self.assertEqual(self.compare("--show", path).stdout, shown)
        self.assertFalse(self.log.exists())


class Failures(Comparison):
    def test_a_side_that_fails_is_said_and_not_run_again(self):
        done = self.compare("--only", "gpipe", "--microbatches", "4", "--rounds", "2", "--output", "json", fails="eager", status=1)
        ours, eager, compiled = json.loads(done.stdout)["contests"][0]["sides"]
        self.assertEqual(eager["failed"], "status 1: RuntimeError: it is too small")
        self.assertNotIn("ratio", eager)
        self.assertEqual(compiled["ratio"], 1.5)
        self.assertEqual([call["side"] for call in self.calls()], ["ours", "eager", "compiled", "ours", "compiled"])

    def test_ours_may_fail(self):
        lines = self.compare("--only", "one", "--forms", "eager", "--rounds", "1", fails="ours", status=1).stdout.splitlines()
        self.assertEqual(lines[-2].split(None, 1), ["Stagecoach", "status 1: stagecoach: no such schedule"])
        self.assertEqual(" ".join(lines[-1].split()), "PyTorch, eager 200.0 (200.0-200.0) 2560.0")

    def test_a_row_of_ours_may_say_why_it_was_not_run(self):
        done = self.compare("--only", "one", "--forms", "eager", "--rounds", "1", fails="row", status=1)
        self.assertEqual(done.stdout.splitlines()[-2].split(None, 1), ["Stagecoach", "use at most 4 stages"])

    def test_a_loss_must_be_finite(self):
        self.assertIn("a loss is not finite", self.compare("--only", "one", "--rounds", "1", fails="loss", status=1).stdout)

    def test_all_processes_end_when_one_fails(self):
        found = self.results("--only", "gpipe", "--microbatches", "4", "--forms", "eager", "--rounds", "1",
                             fails="other rank", status=1)
        self.assertEqual(found["contests"][0]["sides"][1]["failed"], "status 1: RuntimeError: the other one")
        self.assertEqual(self.left(), [])

    def test_all_processes_end_at_the_timeout(self):
        found = self.results("--only", "gpipe", "--microbatches", "4", "--forms", "eager", "--timeout", "8", "--rounds",
                             "1", fails="hangs", status=1)
        self.assertEqual(found["contests"][0]["sides"][1]["failed"], "not done after 8 s")
        self.assertEqual(self.left(), [])

    def test_all_processes_end_when_it_is_stopped(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            pids = self.folder / "log.pids"
            pids.unlink(missing_ok=True)
            process = subprocess.Popen(self.command("--only", "gpipe", "--microbatches", "4", "--forms", "eager"),
                                       env={**self.environment, "FAKE_FAILS": "hangs"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                       text=True)
            deadline = time.monotonic() + 60
            while not pids.exists() or pids.read_text().count("\n") < 2:
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.05)
            process.send_signal(number)
            output, errors = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 130, errors)
            self.assertIn("not run", output)
            self.assertEqual(self.left(), [])

    def test_only_results_can_be_shown(self):
        path = self.folder / "rows.json"
        path.write_text('{"machine": {}, "rows": []}')
        self.assertIn("--save did not write this file", self.compare("--show", str(path), status=2).stderr)

    def test_says_what_cannot_be_compared(self):
        for arguments, error in {
                ("--batch", "10", "--microbatches", "4", "--only", "gpipe"): "a batch of 10 is not 4 equal micro-batches",
                ("--only", "2f2b"): "2f2b is none of one, gpipe, 1f1b, interleaved, zb-v, ddp",
                ("--only", "gpipe", "--devices", "1"): "nothing to compare",
                ("--only", "zb-v", "--cut", "10,10"): "--cut 10,10 does not have the 4 stages of zb-v",
                ("--batch", "512,64"): "argument --batch: '512,64' is not one positive number",
                ("--rounds", "3,9"): "argument --rounds: '3,9' is not one positive number",
                ("--repeats", "0"): "argument --repeats: '0' is not one positive number",
                ("--timeout", "inf"): "argument --timeout: invalid seconds value: 'inf'",
                ("--show", "/nowhere/nope.json"): "--show /nowhere/nope.json: [Errno 2] No such file or directory",
                ("--save", "/nowhere/nope.json"): "--save /nowhere/nope.json: [Errno 2] No such file or directory",
                ("--show", PROGRAM): f"--show {PROGRAM}: Expecting value",
                ("--cut", "most"): "--cut most: equal, planned, or numbers",
                ("--cut", "planned"): "--cut planned is for GPT-2",
                ("--model", "gpt2-124m", "--width", "4"): "--layers and --width are of the default network",
                ("--program", "/nowhere/stagecoach"): "No such file or directory: '/nowhere/stagecoach'"}.items():
            done = self.compare(*arguments, status=2)
            self.assertIn(error, done.stderr)
        self.assertIn("has no PyTorch (status 1: ModuleNotFoundError: No module named 'torch')",
                      self.compare(fails="versions", status=2).stderr)
        self.assertFalse(self.log.exists())


if __name__ == "__main__":
    unittest.main()
