#!/usr/bin/env python3
"""Kills and stops processes of real training runs at random moments, and checks how the others end.

    tests/soak/faults.py --program build/release/tools/stagecoach --faults 200 --seed 1

Each fault is a run of four CPU processes that meet over TCP: two stages of two replicas, four stages
or four replicas, which sum in a tree or a ring; or, with --tensor, stages of two or four devices that
share their layers, and two replicas of two. One of them is sent SIGKILL or SIGSTOP

  start     before the first epoch is done, while processes meet, plan and connect;
  training  at any moment of training and evaluation;
  end       in a run of a few epochs, about when it is over.

Each other process must then end by itself, with an error status and one line that says why, within
2 s of a death, and within the deadline and 2 s of a silence. That line must blame the process it
happened to. A fault comes too late if all others ended well. Faults are numbered: --only N repeats
one. 200 of them take some ten minutes. A busy machine is late without being wrong: --slack allows
for that.
"""

import argparse
import collections
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True

from observed import write_text  # noqa: E402

RANKS = 4
DEADLINE_S = 2
LIMIT_S = {signal.SIGKILL: 2.0, signal.SIGSTOP: DEADLINE_S + 2.0}
HANG_S = 60.0
# Stages, replicas, and devices that share layers.
MESHES = ((2, 2, 1), (4, 1, 1), (1, 4, 1))
TENSOR_MESHES = ((2, 1, 2), (1, 1, 4), (1, 2, 2))
NETWORK = ["--data", "synthetic:256x32x4", "--layers", "8", "--width", "64"]
PHASES = ("start", "training", "end")


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


class Fault:
    """One run, and what befell it."""

    def __init__(self, program, seed, number, slack, meshes, model):
        self.random = random.Random(f"{seed}/{number}")
        self.program = program
        self.number = number
        self.slack = slack
        self.model = model
        self.stages, self.replicas, self.tensor = self.random.choice(meshes)
        self.victim = self.random.randrange(RANKS)
        self.signal = self.random.choice((signal.SIGKILL, signal.SIGSTOP))
        self.reduction = self.random.choice(("tree", "ring")) if self.replicas > 1 else "tree"
        self.phase = PHASES[number % len(PHASES)]
        self.problems = []
        self.seconds = 0.0
        self.too_late = False
        self.lines = []

    def name(self):
        return (f"fault {self.number}: {self.signal.name} to rank {self.victim} of "
                f"{self.stages}x{self.replicas}x{self.tensor}, {self.reduction}, {self.phase}")

    def start(self, folder):
        place = f"tcp://127.0.0.1:{free_port()}"
        epochs = "40" if self.phase == "end" else "1000000"
        command = [self.program, "train", "--device", "cpu", *self.model, "--global-batch-size", "64",
                   "--micro-batches", "8", "--stages", str(self.stages), "--replicas", str(self.replicas),
                   "--tensor", str(self.tensor), "--epochs", epochs, "--reduction", self.reduction,
                   "--clip-norm", "1", "--timeout", str(DEADLINE_S), "--json"]
        processes = []
        for rank in range(RANKS):
            environment = dict(os.environ, STAGECOACH_RANK=str(rank), STAGECOACH_RANKS=str(RANKS),
                               STAGECOACH_RENDEZVOUS=place)
            with open(f"{folder}/out{rank}", "wb") as out, open(f"{folder}/err{rank}", "wb") as err:
                processes.append(subprocess.Popen(command, stdout=out, stderr=err,
                                                  env=environment))
        return processes

    def wait_for_epochs(self, folder, count):
        until = time.monotonic() + HANG_S
        while time.monotonic() < until:
            with open(f"{folder}/out0", "rb") as out:
                if out.read().count(b'"event":"epoch"') >= count:
                    return
            time.sleep(0.005)
        self.problems.append("does not train")

    def wait_for_moment(self, folder):
        if self.phase == "start":
            time.sleep(self.random.uniform(0.0, 0.4))
            return
        self.wait_for_epochs(folder, 1 if self.phase == "training" else 36)
        time.sleep(self.random.uniform(0.0, 0.3 if self.phase == "training" else 0.05))

    def run(self):
        with tempfile.TemporaryDirectory() as folder:
            processes = self.start(folder)
            try:
                self.wait_for_moment(folder)
                ended = processes[self.victim].poll() is not None
                processes[self.victim].send_signal(self.signal)
                begin = time.monotonic()
                others = [rank for rank in range(RANKS) if rank != self.victim]
                for rank in others:
                    self.wait_for(processes[rank], rank, begin)
                self.seconds = time.monotonic() - begin
                self.too_late = ended or all(processes[rank].returncode == 0 for rank in others)
                if not self.too_late:
                    self.check(processes, others, folder)
            finally:
                for process in processes:
                    process.kill()
                    process.wait()
        return self

    def wait_for(self, process, rank, begin):
        try:
            process.wait(timeout=max(0.1, HANG_S - (time.monotonic() - begin)))
        except subprocess.TimeoutExpired:
            self.problems.append(f"rank {rank} hangs")

    def check(self, processes, others, folder):
        limit = LIMIT_S[self.signal]
        for rank in others:
            with open(f"{folder}/err{rank}", encoding="utf-8", errors="replace") as err:
                text = err.read().strip()
            self.lines.append(text)
            # Those that were there first may have said that they wait.
            text = "\n".join(line for line in text.split("\n") if "waits for rank" not in line)
            status = processes[rank].returncode
            if status not in (74, 75):
                self.problems.append(f"rank {rank} has the status {status}: {text}")
            elif len(text.split("\n")) != 1 or not text.startswith("stagecoach train: "):
                self.problems.append(f"rank {rank} says: {text}")
            elif not self.blames_victim(text):
                self.problems.append(f"rank {rank} does not blame rank {self.victim}: {text}")
            if "did not arrive" in text:
                limit = LIMIT_S[signal.SIGSTOP]  # one that never came is missed at the deadline
        if self.seconds > limit + self.slack:
            self.problems.append(f"the last ended after {self.seconds:.1f} s")

    def blames_victim(self, text):
        blame = r"was killed|is gone|of 4 did not arrive|\(stages? [^)]*\) timed out|has left"
        if self.victim == 0:
            blame += r"|does not answer|which keeps the rendezvous, does not answer"
        return re.search(rf"\brank {self.victim},? ({blame})", text)


def print_table(faults):
    kinds = collections.OrderedDict()
    for fault in faults:
        kinds.setdefault((fault.phase, fault.signal.name), []).append(fault)
    print(f"{'phase':10}{'signal':9}{'faults':>7}{'too late':>10}{'as it must':>12}{'slowest end':>13}")
    for (phase, name), some in sorted(kinds.items()):
        in_time = [fault for fault in some if not fault.too_late]
        right = sum(not fault.problems for fault in in_time)
        slowest = max((fault.seconds for fault in in_time), default=0.0)
        print(f"{phase:10}{name:9}{len(some):7}{len(some) - len(in_time):10}{right:12}"
              f"{slowest:11.2f} s")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", required=True, help="the stagecoach to test")
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--slack", type=float, default=0.0, help="seconds beyond the limits")
    parser.add_argument("--tensor", action="store_true", help="of devices that share layers")
    parser.add_argument("--only", type=int, help="the number of the only fault to inject")
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        model = write_text(f"{folder}/text.txt") if arguments.tensor else NETWORK
        return inject(arguments, TENSOR_MESHES if arguments.tensor else MESHES, model)


def inject(arguments, meshes, model):
    numbers = range(arguments.faults) if arguments.only is None else [arguments.only]
    faults = []
    for number in numbers:
        fault = Fault(arguments.program, arguments.seed, number, arguments.slack, meshes, model).run()
        faults.append(fault)
        for problem in fault.problems:
            print(f"{fault.name()}: {problem}", flush=True)
        if arguments.only is not None:
            print("\n".join(fault.lines))
    print_table(faults)
    return 1 if any(fault.problems for fault in faults) else 0


if __name__ == "__main__":
    sys.exit(main())
