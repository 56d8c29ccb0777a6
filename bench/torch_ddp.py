#!/usr/bin/env python3
"""Times training steps of Stagecoach's default network in PyTorch's DistributedDataParallel on CPUs.

Each process is a replica, with one thread; they exchange gradients by Gloo. A batch is dealt to them
as micro-batches, whose gradients are added before they are exchanged, as in Stagecoach:

    OMP_NUM_THREADS=1 torchrun --nproc-per-node 2 bench/torch_ddp.py --batch 512 --microbatches 8

Prints one JSON object, from rank 0: the median step in ms, and samples per second.
"""

import argparse
import contextlib
import json
import statistics
import time

import torch
from torch import distributed, nn
from torch.nn import functional


class Block(nn.Module):
    """x + gelu(linear(layer_norm(x)))"""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return x + functional.gelu(self.linear(self.norm(x)), approximate="tanh")


class DefaultNetwork(nn.Module):
    """The network of engine/model/model.h."""

    def __init__(self, features, classes, layers, width):
        super().__init__()
        self.first = nn.Linear(features, width)
        self.blocks = nn.Sequential(*[Block(width) for _ in range(layers - 2)])
        self.last = nn.Linear(width, classes)

    def forward(self, x):
        x = functional.gelu(self.first(x), approximate="tanh")
        return self.last(self.blocks(x))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--layers", type=int, default=20)
    parser.add_argument("--width", type=int, default=2304)
    parser.add_argument("--batch", type=int, default=512, help="of all processes")
    parser.add_argument("--microbatches", type=int, default=8, help="of all processes")
    parser.add_argument("--steps", type=int, default=6)
    sizes = parser.parse_args()

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    distributed.init_process_group("gloo")
    torch.manual_seed(1)
    replicas = distributed.get_world_size()
    count = sizes.microbatches // replicas
    rows = sizes.batch // sizes.microbatches
    network = DefaultNetwork(784, 10, sizes.layers, sizes.width)
    model = nn.parallel.DistributedDataParallel(network, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.01, fused=True)
    x = torch.randn(count, rows, 784)
    labels = torch.randint(10, (count, rows))

    def step():
        optimizer.zero_grad(set_to_none=False)
        for i in range(count):
            last = i + 1 == count
            with contextlib.nullcontext() if last else model.no_sync():
                (functional.cross_entropy(model(x[i]), labels[i]) / count).backward()
        optimizer.step()

    for _ in range(2):
        step()
    seconds = []
    for _ in range(sizes.steps):
        distributed.barrier()
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds)
    if distributed.get_rank() == 0:
        result = {
            "torch": torch.__version__,
            "replicas": replicas,
            "step_ms": round(1e3 * median, 1),
            "samples_per_second": round(sizes.batch / median, 1),
        }
        print(json.dumps(result))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
