#!/usr/bin/env python3
"""bench/peers with PyTorch: small networks, for a few steps.

    tests/tools/peers/smoke_test.py build/release/tools/stagecoach

Exit status 77, with the reason, where there is no PyTorch.
"""

import json
import os
import pathlib
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
PEERS = HERE.parents[2] / "bench" / "peers"
SMALL = ["--layers", "8", "--width", "32", "--batch", "16"]
STAGECOACH = None


def events(work, ranks, *arguments):
    commands = [[sys.executable, contests.WORKER, *SMALL, "--work", work, "--world", str(ranks), "--rank", str(rank), "--steps", "2",
                 *arguments] for rank in range(ranks)]
    output = processes.run(commands, processes.peers_environment(os.environ, 1, "passive", None), 300)
    return [json.loads(line) for line in output.splitlines()]


def losses(found):
    return [event["loss"] for event in found if "loss" in event]


class Worker(unittest.TestCase):
    def test_all_kinds_of_work_train_the_same_model(self):
        expected = losses(events("one", 1))
        self.assertEqual(len(expected), 4)
        self.assertLess(expected[-1], expected[0])
        for work in contests.KINDS:
            for arguments in ([], ["--cut", "5,3"]):
                if arguments and work not in ("gpipe", "1f1b"):
                    continue
                found = losses(events(work, 1 if work == "one" else 2, "--microbatches", "4", *arguments))
                for loss, other in zip(found, expected, strict=True):
                    self.assertAlmostEqual(loss, other, delta=1e-5, msg=work)

    def test_compiled_stages_train_the_same_model(self):
        for loss, other in zip(losses(events("1f1b", 2, "--microbatches", "4", "--form", "compiled")), losses(events("one", 1)), strict=True):
            self.assertAlmostEqual(loss, other, delta=1e-5)

    def test_has_the_parameters_of_ours(self):
        done = subprocess.run([STAGECOACH, "train", "--data", "synthetic:64x784x10", *SMALL, "--devices", "1", "--steps", "1", "--json"],
                              capture_output=True, text=True, check=True)
        plan = json.loads(done.stdout.splitlines()[0])
        self.assertEqual(events("one", 1)[0]["parameters"], sum(stage["parameters"] for stage in plan["stages"]))


class Compare(unittest.TestCase):
    def test_measures_both(self):
        done = subprocess.run([str(PEERS / "compare"), "--program", STAGECOACH, "--python", sys.executable, *SMALL, "--microbatches", "4",
                               "--forms", "eager", "--rounds", "1", "--threads", "1", "--output", "json"],
                              capture_output=True, text=True, timeout=300, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        results = json.loads(done.stdout)
        self.assertEqual(results["versions"]["torch"], torch.__version__)
        for contest in results["contests"]:
            self.assertGreater(contest["sides"][1]["ratio"], 0)
            for side in contest["sides"]:
                self.assertEqual(len(side["rounds"][0]), 5)


if __name__ == "__main__":
    try:
        import torch
        import torch.distributed.pipelining
    except ImportError as error:
        print(f"skipped: {error}")
        sys.exit(77)
    sys.path.insert(0, str(PEERS))
    import contests
    import processes
    STAGECOACH = os.path.abspath(sys.argv.pop(1))
    unittest.main()
