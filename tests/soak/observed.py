"""What the soak tests of runs have in common."""

import json
import time


# A small model whose layers devices can share.
TOKEN_MODEL = ["--model", "gpt2:blocks=2,width=32,heads=4,context=16,vocabulary=256", "--tokenizer", "bytes",
               "--tensor-blocks", "4", "--train-samples", "256"]


def write_text(path):
    """Writes text of more than 256 samples of TOKEN_MODEL, and returns the flags that train with it."""
    with open(path, "w", encoding="ascii") as out:
        for number in range(512):
            out.write(f"{number * number % 977:4} is no prime.")
    return ["--data", path, *TOKEN_MODEL]


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
