#!/usr/bin/env python3
"""Times in PyTorch what Stagecoach does as well: training steps, attention, generated tokens.

What Stagecoach does with --precision bf16 is done in PyTorch's usual way for it: parameters, their
gradients and AdamW's moments are float32, and autocast computes in bfloat16. With --precision tf32
all is float32, and products may round their operands. Batches are on the GPU already, and the host
does not wait for a step before it issues the next: both are in PyTorch's favor, since Stagecoach's
step is timed with the transfer of its batch, and one at a time.

Several of these processes may be started together, with the same file as --turn. They import and
compile side by side, and once all have, each times alone.

Prints a JSON object for each time, in milliseconds, or one with the error. The exit status is 77
where there is no PyTorch or no GPU.
"""

import argparse
import fcntl
import json
import os
import sys
import time

import works

NO_TORCH = 77
NO_LIBRARY = 78  # that this form needs
# A process that does not come to an end with its preparations holds the others up so long.
PATIENCE_S = 75
# How PyTorch does each work.
FORMS = {
    "network": ("compiled", "eager", "cuda-graphs"),
    "gpt2": ("compiled", "compiled-cudnn", "eager"),
    "llama": ("compiled", "compiled-cudnn", "eager"),
    "adapters": ("compiled", "eager"),
    "resnet50": ("compiled", "eager"),
    "resnet18": ("compiled", "eager", "cuda-graphs"),
    "attention": ("flash", "cudnn"),
    "generate": ("eager", "cuda-graphs", "compiled", "hugging-face"),
}


class Turn:
    """Locks a file together with all that prepare, and then alone. Without a file, nothing."""

    def __init__(self, path):
        self._start = time.monotonic()
        self._file = open(path, "a", encoding="utf-8") if path else None
        if self._file:
            fcntl.flock(self._file, fcntl.LOCK_SH)

    def is_alone(self):
        """Waits for it. False if others have not ended their preparations or times for too long."""
        if self._file is None:
            return True
        fcntl.flock(self._file, fcntl.LOCK_UN)
        while time.monotonic() < self._start + PATIENCE_S:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                time.sleep(0.05)
        return False

    def close(self):
        if self._file:
            self._file.close()


def parse_arguments():
    parser = argparse.ArgumentParser(description="Times training steps, attention and generation "
                                                 "in PyTorch")
    parser.add_argument("work", choices=FORMS)
    parser.add_argument("form", help="how PyTorch does it: "
                        + "; ".join(f"{work}: {', '.join(forms)}" for work, forms in FORMS.items()))
    parser.add_argument("--precision", choices=("bf16", "tf32"), default="bf16")
    parser.add_argument("--turn", metavar="FILE", help="what others lock as well")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true",
                        help="tiny sizes, whose figures are meaningless")
    arguments = parser.parse_args()
    if arguments.form not in FORMS[arguments.work]:
        parser.error(f"{arguments.work} has no form {arguments.form}")
    return arguments


def answer(line):
    print(json.dumps(line), flush=True)


def run(arguments, turn):
    """Prints the answers; returns the exit status."""
    try:
        import torch
        import torch_works
    except ImportError:
        return NO_TORCH
    if arguments.device == "cuda" and not torch.cuda.is_available():
        return NO_TORCH
    line = {"torch": torch.__version__, "work": arguments.work, "form": arguments.form,
            "precision": arguments.precision}
    try:
        measure = torch_works.prepare(arguments.work, arguments.form, arguments.precision,
                                      works.works(arguments.small), arguments.device)
        if arguments.device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()  # the others need it
        line["alone"] = turn.is_alone()
        for found in measure():
            answer({**line, **found})
    except ModuleNotFoundError as error:
        print(error)
        return NO_LIBRARY
    except Exception as error:  # its one line is the answer
        reason = " ".join(str(error).split())
        answer({**line, "error": f"{type(error).__name__}: {reason[:200]}"})
        return 1
    return 0


def main():
    arguments = parse_arguments()
    status = run(arguments, Turn(arguments.turn))
    sys.stdout.flush()
    # With CUDA graphs, PyTorch takes long to tidy up.
    os._exit(status)


if __name__ == "__main__":
    main()
