#!/usr/bin/env python3
"""Hangs up, breaks pipes and limits the size of files at random moments of runs that save themselves, and lets two runs into one folder.

    tests/soak/hangups.py --program build/release/tools/stagecoach --faults 50 --seed 1

Each fault is a `train --checkpoint`, as one process or as `launch` of four, which is struck once in each of its starts: by SIGHUP, by a reader of
its output that goes away, or by a limit of the size of its files (RLIMIT_FSIZE), at the start, while it trains, while it saves or near its end.
It must end with the status of that (129, 141, 74), or with 0 if it was over before or the limit did not matter, which does not count as one of the
--faults; a hang-up after the first epoch must leave a checkpoint, and `--resume` without a further fault must end with the bits of a run that was left
alone.

Then, ten times, two runs are started in one folder at almost the same time, some behind a run that was killed there: one of them must train and
end with those bits, the other be refused with 78 and the name of the first. --only N repeats one fault.
"""

import argparse
import collections
import glob
import itertools
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True

from observed import children_of, result_of, wait_until  # noqa: E402

EPOCHS = 100  # more than a second, so that most runs are struck before they end
STEPS = 4 * EPOCHS
HANG_S = 240.0  # on a busy machine
KINDS = ("hang-up", "pipe", "limit")
PHASES = ("start", "training", "saving", "end")
STATUSES = {"hang-up": (129, -signal.SIGHUP), "pipe": (141, -signal.SIGPIPE), "limit": (74,)}
TRAIN = ["train", "--json", "--data", "synthetic:256x32x4", "--layers", "8", "--width", "64", "--global-batch-size", "64", "--micro-batches", "8",
         "--gradient-blocks", "4", "--epochs", str(EPOCHS), "--clip-norm", "1", "--log-every", "1"]
MESHES = (["--stages", "4"], ["--stages", "2", "--replicas", "2"])


def default_signals():
    """As a shell starts a program. Python ignores SIGPIPE, and `nohup` SIGHUP: a run that inherits that rightly goes on."""
    for number in (signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)


def steps_saved(folder):
    return [int(name[-8:]) for name in glob.glob(f"{folder}/run/step-*") if name[-8:].isdigit()]


class Fault:
    """A run, and what befell it."""

    def __init__(self, program, seed, number):
        self.random = random.Random(f"{seed}/{number}")
        self.number = number
        self.kind = KINDS[number % len(KINDS)]
        self.phase = self.random.choice(PHASES)
        self.is_launched = self.random.random() < 0.4
        self.every = self.random.choice(("5", "17", "1000000"))
        self.has_struck = False
        self.problems = []
        self.command = [program]
        if self.is_launched:
            self.command += ["launch", "--processes", "4", "--"]
        self.command += [*TRAIN, *self.random.choice(MESHES), "--checkpoint-every", self.every]

    def problem(self, what):
        where = "launch" if self.is_launched else "train"
        self.problems.append(f"fault {self.number}, {self.kind} of {where} at {self.phase}, --checkpoint-every {self.every}: {what}")

    def wait_for_moment(self, folder, process, lines):
        def has_ended():
            return process.poll() is not None

        if self.phase == "start":
            time.sleep(self.random.uniform(0.0, 0.4))
        elif self.phase == "training":
            wait_until(lambda: len(lines) > 4 or has_ended(), HANG_S)
            time.sleep(self.random.uniform(0.0, 0.3))
        elif self.phase == "saving":
            wait_until(lambda: glob.glob(f"{folder}/run/.*step-*") or has_ended(), HANG_S)
            time.sleep(self.random.uniform(0.0, 0.02))
        else:
            wait_until(lambda: len(lines) > STEPS - 20 or has_ended(), HANG_S)
            time.sleep(self.random.uniform(0.0, 0.1))

    def limit(self, pid):
        """Of all processes, as a user's limit is of a session."""
        size = self.random.choice((0, 100, 4096, 20000, 100000))
        for of in (pid, *children_of(pid)):
            try:
                resource.prlimit(of, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
            except ProcessLookupError:
                pass

    def strike(self, folder):
        lines = []
        with open(f"{folder}/err", "wb") as err:
            process = subprocess.Popen([*self.command, "--checkpoint", f"{folder}/run"], stdout=subprocess.PIPE, stderr=err,
                                       preexec_fn=default_signals)
        os.set_blocking(process.stdout.fileno(), False)
        rest = bytearray()

        def read():
            try:
                more = os.read(process.stdout.fileno(), 1 << 16)
            except BlockingIOError:
                return
            rest.extend(more)
            *whole, last = bytes(rest).split(b"\n")
            rest[:] = last
            lines.extend(whole)

        poll = process.poll
        process.poll = lambda: (read(), poll())[1]  # so that its output is read wherever this waits
        self.wait_for_moment(folder, process, lines)
        if self.kind == "hang-up":
            process.send_signal(signal.SIGHUP)
        elif self.kind == "pipe":
            process.poll = poll
            process.stdout.close()
        else:
            self.limit(process.pid)
        if not wait_until(lambda: process.poll() is not None, HANG_S):
            self.problem("hangs")
            process.kill()
        status = process.wait()
        with open(f"{folder}/err", encoding="utf-8", errors="replace") as err:
            text = err.read()
        self.has_struck = status != 0
        if status not in (0, *STATUSES[self.kind]):
            self.problem(f"ends with {status}: {text[-1500:]}")
        is_trained = any(b'"event":"epoch"' in line for line in lines)
        if self.kind != "limit" and is_trained and not steps_saved(folder):
            self.problem("has saved nothing")

    def run(self, expected):
        with tempfile.TemporaryDirectory() as folder:
            self.strike(folder)
            resumed = subprocess.run([*self.command, "--checkpoint", f"{folder}/run", "--resume"], capture_output=True, text=True,
                                     timeout=4 * HANG_S, check=False)
            if resumed.returncode != 0:
                self.problem(f"resumed, it ends with {resumed.returncode}: {resumed.stderr[-1500:]}")
            elif result_of(resumed.stdout) != expected:
                self.problem(f"resumed, it ends with {result_of(resumed.stdout)}, not {expected}")
        return self


def two_in_one_folder(program, seed, number, expected):
    draw = random.Random(f"{seed}/two/{number}")
    with tempfile.TemporaryDirectory() as folder:
        command = [program, *TRAIN, "--stages", "2", "--checkpoint", f"{folder}/run", "--resume", "--checkpoint-every", "3"]
        if number % 2 == 1:
            killed = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            wait_until(lambda: steps_saved(folder), HANG_S)
            killed.kill()
            killed.wait()
        both = []
        for _ in range(2):
            both.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
            time.sleep(draw.choice((0.0, draw.uniform(0.0, 0.15))))
        ended = [(*process.communicate(timeout=HANG_S), process) for process in both]
        ended.sort(key=lambda end: end[2].returncode)
        (out, err, first), (_, refusal, second) = ended
        name = f"two runs, {number}"
        if (first.returncode, second.returncode) != (0, 78):
            return [f"{name}: end with {first.returncode} and {second.returncode}: {err} {refusal}"]
        if result_of(out) != expected:
            return [f"{name}: ends with {result_of(out)}, not {expected}"]
        if f"process {first.pid}," not in refusal:
            return [f"{name}: the refusal does not name {first.pid}: {refusal}"]
    return []


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", required=True, help="the stagecoach to test")
    parser.add_argument("--faults", type=int, default=50, help="of each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="the number of the only fault")
    arguments = parser.parse_args()

    alone = subprocess.run([arguments.program, *TRAIN, "--stages", "1"], check=True, capture_output=True, text=True)
    expected = result_of(alone.stdout)
    struck, counts = collections.Counter(), collections.Counter()
    runs = bad = 0
    for number in itertools.count() if arguments.only is None else [arguments.only]:
        kind = KINDS[number % len(KINDS)]
        if struck[kind] == arguments.faults:
            if all(struck[of] == arguments.faults for of in KINDS):
                break
            continue
        fault = Fault(arguments.program, arguments.seed, number).run(expected)
        for problem in fault.problems:
            print(problem, flush=True)
        if fault.has_struck:
            struck[kind] += 1
            counts[kind, fault.phase, "launch" if fault.is_launched else "train"] += 1
        runs += 1
        bad += bool(fault.problems)
        if runs % 20 == 0:
            print(f"{runs} runs, struck: {dict(struck)}", file=sys.stderr, flush=True)
    for of, count in sorted(counts.items()):
        print(f"{of[0]:9}{of[1]:10}{of[2]:8}{count:5}")
    print(f"{runs} runs, {sum(struck.values())} of which were struck; {runs - bad} ended as if nothing had happened", flush=True)
    if arguments.only is None:
        problems = [problem for number in range(10) for problem in two_in_one_folder(arguments.program, arguments.seed, number, expected)]
        print("\n".join(problems + [f"two runs in one folder: {10 - len(problems)} of 10 as it must be"]))
        bad += len(problems)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
