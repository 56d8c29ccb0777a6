#!/usr/bin/env python3
"""Kills and stops the processes of supervised runs at random, and checks that they end as if nothing had happened.

    tests/soak/restarts.py --program build/release/tools/stagecoach --faults 2000 --seed 1

Each run is `launch --max-restarts -- train --checkpoint`, four processes, with CPU devices or
(--device cuda) a GPU each: four stages, two of two replicas (with and without a sharded optimizer) or
four replicas; or, with --tensor, stages whose layers two or four devices share. It saves itself after
every step, or after each epoch alone, and is struck ten times by SIGKILL or SIGSTOP, each time in one
of these phases:

  start     while processes start, meet, plan and restore;
  training  at any moment;
  saving    just after a save has begun to write, at any of its steps;
  end       when the last steps are done.

The victim is a rank or the launcher itself. After the death of the launcher, its processes must be gone
within two seconds, and the same command is given again; a launcher that is stopped goes on after half a
second. Every fault must be followed by processes that train, the run must end with status 0, and its
parameters and losses must have the bits of a run in one process that was left alone. No process may be
left. --only N repeats one run. The end tells how often a process alone was replaced, and how often all
were started again.
"""

import argparse
import collections
import glob
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True

from observed import children_of, result_of, wait_until, write_text  # noqa: E402

RANKS = 4
FAULTS_PER_RUN = 10
EPOCHS = 40
STEPS = 4 * EPOCHS
HANG_S = 60.0
PHASES = ("start", "training", "saving", "end")
MESHES = (["--stages", "4"], ["--stages", "2", "--replicas", "2"],
          ["--stages", "2", "--replicas", "2", "--shard-optimizer"],
          ["--stages", "1", "--replicas", "4"])
TENSOR_MESHES = (["--stages", "2", "--tensor", "2"], ["--stages", "1", "--tensor", "4"],
                 ["--stages", "1", "--replicas", "2", "--tensor", "2"])
NETWORK = ["--data", "synthetic:256x32x4", "--layers", "8", "--width", "64"]
TRAIN = ["train", "--json", "--global-batch-size", "64", "--micro-batches", "8", "--gradient-blocks", "4",
         "--epochs", str(EPOCHS), "--clip-norm", "1"]


def is_there(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Run:
    """One supervised run, and what befell it."""

    def __init__(self, program, train, meshes, seed, number, faults):
        self.random = random.Random(f"{seed}/{number}")
        self.program = program
        self.train = train
        self.number = number
        self.left = faults
        self.mesh = self.random.choice(meshes)
        self.every = self.random.choice(("1", "1000"))
        self.replaced = self.restarted = 0  # how often one process, or all, were started again
        self.faults = []    # (phase, victim, signal)
        self.problems = []
        self.slowest_s = 0.0  # from a fault to processes that are there again
        self.launcher = None

    def problem(self, what):
        last = " ".join(self.faults[-1]) if self.faults else "before any fault"
        self.problems.append(f"run {self.number}, {' '.join(self.mesh)}, {last}: {what}")

    def launch(self, folder):
        command = [self.program, "launch", "--processes", str(RANKS), "--max-restarts", "1000",
                   "--silence", "0.3", "--", *self.train, *self.mesh, "--checkpoint", f"{folder}/run",
                   "--resume", "--checkpoint-every", self.every]
        with open(f"{folder}/out", "ab") as out, open(f"{folder}/err", "ab") as err:
            # Launchers that are killed leave their folders for rings.
            env = {**os.environ, "TMPDIR": folder}
            self.launcher = subprocess.Popen(command, stdout=out, stderr=err, env=env)

    def ranks(self):
        found = children_of(self.launcher.pid)
        return found if len(found) == RANKS else []

    def has_ended(self):
        return self.launcher.poll() is not None

    def steps(self, folder):
        names = glob.glob(f"{folder}/run/step-*")
        return max((int(name[-8:]) for name in names if name[-8:].isdigit()), default=0)

    def wait_for_moment(self, phase, folder):
        wait_until(lambda: self.ranks() or self.has_ended(), HANG_S)
        if phase == "start":
            time.sleep(self.random.uniform(0.0, 0.3))
        elif phase == "training":
            before = self.steps(folder)
            wait_until(lambda: self.steps(folder) > before or self.has_ended(), HANG_S)
            time.sleep(self.random.uniform(0.0, 0.3))
        elif phase == "saving":
            wait_until(lambda: glob.glob(f"{folder}/run/.*step-*") or self.has_ended(), HANG_S)
            time.sleep(self.random.uniform(0.0, 0.02))
        else:
            wait_until(lambda: self.steps(folder) >= STEPS - 2 or self.has_ended(), 2 * HANG_S)
            time.sleep(self.random.uniform(0.0, 0.1))

    def strike(self, folder):
        # The end comes last, once.
        phase = "end" if self.left == 1 else self.random.choice(PHASES[:-1])
        victim = self.random.choice((0, 1, 2, 3, "launcher"))
        what = self.random.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP))
        self.wait_for_moment(phase, folder)
        ranks = self.ranks()
        if self.has_ended() or not ranks:
            return False
        self.left -= 1
        self.faults.append((phase, "launcher" if victim == "launcher" else "rank", what.name))
        begin = time.monotonic()
        try:
            os.kill(self.launcher.pid if victim == "launcher" else ranks[victim], what)
        except ProcessLookupError:
            return True
        if victim == "launcher" and what == signal.SIGSTOP:
            time.sleep(0.5)
            self.launcher.send_signal(signal.SIGCONT)
            return True
        if victim == "launcher":
            self.launcher.wait()
            if not wait_until(lambda: not any(is_there(rank) for rank in ranks), 2.0):
                self.problem("processes outlive the launcher")
            self.launch(folder)
        again = wait_until(lambda: self.has_ended() or (self.ranks() and self.ranks() != ranks),
                           HANG_S)
        if not again:
            self.problem("hangs")
            return False
        if not self.has_ended():
            self.slowest_s = max(self.slowest_s, time.monotonic() - begin)
        return True

    def run(self, expected):
        with tempfile.TemporaryDirectory() as folder:
            self.launch(folder)
            try:
                while self.left > 0 and self.strike(folder):
                    pass
                try:
                    status = self.launcher.wait(timeout=4 * HANG_S)
                except subprocess.TimeoutExpired:
                    self.problem("does not end")
                    return self
                with open(f"{folder}/out", encoding="utf-8") as out:
                    text = out.read()
                with open(f"{folder}/err", encoding="utf-8", errors="replace") as err:
                    errors = err.read()
                self.replaced = errors.count("; starts it again")
                self.restarted = errors.count("; starts all again")
                if status != 0:
                    self.problem(f"ends with status {status}: {errors[-2000:]}")
                elif result_of(text) != expected:
                    self.problem(f"ends with {result_of(text)}, not {expected}")
            finally:
                ranks = children_of(self.launcher.pid)
                self.launcher.kill()
                self.launcher.wait()
            if not wait_until(lambda: not any(is_there(rank) for rank in ranks), 2.0):
                self.problem("processes are left")
        return self


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", required=True, help="the stagecoach to test")
    parser.add_argument("--faults", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--tensor", action="store_true", help="of devices that share layers")
    parser.add_argument("--only", type=int, help="the number of the only run")
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        model = write_text(f"{folder}/text.txt") if arguments.tensor else NETWORK
        return strike_all(arguments, TENSOR_MESHES if arguments.tensor else MESHES, model)


def strike_all(arguments, meshes, model):
    train = [*TRAIN, *model, "--device", arguments.device]
    alone = subprocess.run([arguments.program, *train, "--stages", "1"], check=True,
                           capture_output=True, text=True)
    expected = result_of(alone.stdout)
    runs = []
    left = arguments.faults if arguments.only is None else FAULTS_PER_RUN
    number = 0 if arguments.only is None else arguments.only
    while left > 0:
        run = Run(arguments.program, train, meshes, arguments.seed, number, min(left, FAULTS_PER_RUN))
        runs.append(run.run(expected))
        for problem in run.problems:
            print(problem, flush=True)
        left -= max(1, len(run.faults))
        number += 1

    counts = collections.Counter(fault for run in runs for fault in run.faults)
    for (phase, victim, name), count in sorted(counts.items()):
        print(f"{phase:10}{victim:10}{name:9}{count:5}")
    bad = sum(bool(run.problems) for run in runs)
    print(f"{sum(counts.values())} faults in {len(runs)} runs, {len(runs) - bad} of which ended as if nothing "
          f"had happened; slowest restart {max(run.slowest_s for run in runs):.2f} s; one process was replaced "
          f"{sum(run.replaced for run in runs)} times, all were started again {sum(run.restarted for run in runs)} times")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
