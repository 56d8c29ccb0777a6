#!/usr/bin/env python3
"""Times training steps of Stagecoach's default network in PyTorch.

What Stagecoach does with --precision bf16 is done in PyTorch's usual way for it: parameters, their
gradients and AdamW's moments are float32, and autocast computes in bfloat16. With --precision tf32
all is float32, and products may round their operands. The batch is on the GPU already, and the host
does not wait for a step before it issues the next: both are in PyTorch's favor, since Stagecoach's
step is timed with the transfer of its batch, and one at a time.

Prints a JSON object for each precision, with the milliseconds of a step or the error. The exit
status is 77 where there is no PyTorch or no GPU.
"""

import argparse
import json
import pathlib
import statistics
import sys
import time

NO_TORCH = 77
# Of torch.compile; None for eager execution.
FORMS = {"compiled": "default", "eager": None, "cuda-graphs": "reduce-overhead"}
PRECISIONS = ("bf16", "tf32")

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "benchmarks/peers"))
try:
    import models
    import torch
    from torch import nn
    from torch.nn import functional
except ImportError:
    sys.exit(NO_TORCH)


def default_network(sizes):
    return nn.Sequential(*models.default(argparse.Namespace(**sizes)).layers)


def step_ms(mode, precision, sizes):
    """Milliseconds of a step; `mode` is None for eager execution, or torch.compile's."""
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.manual_seed(1)
    torch.compiler.reset()
    model = default_network(sizes).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.01, fused=True)
    x = torch.randn(sizes["batch"], models.FEATURES, device="cuda")
    labels = torch.randint(models.CLASSES, (sizes["batch"],), device="cuda")

    def loss_of(x, labels):
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
            return functional.cross_entropy(model(x), labels)

    compute = loss_of if mode is None else torch.compile(loss_of, mode=mode)

    def step():
        torch.compiler.cudagraph_mark_step_begin()
        optimizer.zero_grad(set_to_none=True)
        compute(x, labels).backward()
        optimizer.step()

    for _ in range(5):  # compiles, and records what is to be replayed
        step()
    rounds = []
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(sizes["steps"]):
            step()
        torch.cuda.synchronize()
        rounds.append((time.perf_counter() - start) / sizes["steps"] * 1e3)
    return statistics.median(rounds)


def main():
    parser = argparse.ArgumentParser(description="Times steps of the default network in PyTorch")
    parser.add_argument("form", choices=FORMS, help="how PyTorch runs it")
    parser.add_argument("precision", choices=PRECISIONS, nargs="+")
    parser.add_argument("--small", action="store_true", help="tiny sizes, whose figures are meaningless")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        return NO_TORCH
    sizes = {"layers": 20, "width": 2304, "batch": 4096, "steps": 20}
    if arguments.small:
        sizes = {"layers": 4, "width": 32, "batch": 16, "steps": 2}
    good = True
    for precision in arguments.precision:
        answer = {"torch": torch.__version__, "gpu": torch.cuda.get_device_name(),
                  "precision": precision, "batch": sizes["batch"]}
        try:
            answer["ms"] = step_ms(FORMS[arguments.form], precision, sizes)
        except Exception as error:  # its one line is the answer
            reason = (str(error).splitlines() or [""])[0]
            answer["error"] = f"{type(error).__name__}: {reason[:200]}"
            good = False
        print(json.dumps(answer), flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
