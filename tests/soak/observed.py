"""What the soak tests of runs have in common."""

import json
import time


def wait_until(condition, seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.001)
    return False


def result_of(text):
    end = json.loads(text.strip().split("\n")[-1])
    return end["steps"], end["parameters_hash"], end["step_losses_hash"]


def children_of(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as children:
            return sorted(int(child) for child in children.read().split())
    except (FileNotFoundError, ProcessLookupError):
        return []
