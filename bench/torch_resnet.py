#!/usr/bin/env python3
"""A training step of ResNet-18 for small images, by Stagecoach and by PyTorch, in turn, on one core each: the best of all steps.

    python3 -m venv /tmp/torch && /tmp/torch/bin/pip install torch
    env -u OPENBLAS_NUM_THREADS OMP_NUM_THREADS=1 /tmp/torch/bin/python bench/torch_resnet.py [SIDE]

Both take 32 images of 3 x SIDE x SIDE (32 by default) in one micro-batch, in float32, and update by AdamW.
"""
import json
import subprocess
import sys
import time

import torch
from torch import nn

ROWS, STEPS, ROUNDS = 32, 6, 3


def conv_norm(inputs, outputs, kernel, stride):
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outputs)


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.inner = nn.Sequential(*conv_norm(inputs, outputs, 3, stride), nn.ReLU(), *conv_norm(outputs, outputs, 3, 1))
        self.around = nn.Sequential(*(conv_norm(inputs, outputs, 1, stride) if stride != 1 else ()))

    def forward(self, x):
        return torch.relu(self.inner(x) + self.around(x))


def resnet18():
    layers = [*conv_norm(3, 64, 3, 1), nn.ReLU()]
    inputs = 64
    for outputs, stride in ((64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1)):
        layers.append(Block(inputs, outputs, stride))
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def torch_seconds(net, optimizer, x, labels):
    best = float("inf")
    for _ in range(STEPS):
        start = time.perf_counter()
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), labels).backward()
        optimizer.step()
        best = min(best, time.perf_counter() - start)
    return best


def our_seconds(side):
    out = subprocess.run(["build/release/tools/stagecoach", "train", "--model", "resnet18-small", "--data",
                          f"synthetic:{ROWS}x{3 * side * side}x10", "--stages", "1", "--batch", str(ROWS), "--microbatches", "1",
                          "--epochs", str(STEPS), "--json"], check=True, capture_output=True, text=True).stdout
    events = [json.loads(line) for line in out.splitlines()]
    return min(ROWS / event["samples_per_second"] for event in events if "samples_per_second" in event)


def main():
    side = int(sys.argv[1]) if len(sys.argv) > 1 else 32
    torch.set_num_threads(1)
    x, labels = torch.randn(ROWS, 3, side, side), torch.randint(10, (ROWS,))
    forms = {}
    for name, layout in (("", torch.contiguous_format), (", channels last", torch.channels_last)):
        net = resnet18().to(memory_format=layout)
        forms[f"PyTorch {torch.__version__}{name}"] = (net, torch.optim.AdamW(net.parameters()), x.to(memory_format=layout))
    best = {}
    for _ in range(ROUNDS):
        for name, (net, optimizer, images) in forms.items():
            best[name] = min(best.get(name, float("inf")), torch_seconds(net, optimizer, images, labels))
        best["Stagecoach"] = min(best.get("Stagecoach", float("inf")), our_seconds(side))
    for name, seconds in best.items():
        print(f"{name:40} {seconds * 1e3:8.0f} ms a step of {ROWS} images of 3 x {side} x {side}")


if __name__ == "__main__":
    main()
