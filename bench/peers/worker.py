#!/usr/bin/env python3
"""One process of PyTorch's side of a contest; `compare` starts as many as the contest has devices.

The first prints one JSON object per line: what was built, then each step after those that warm up, with its time in ms and its loss.
With --versions it prints what PyTorch is, and trains nothing.
"""

import argparse
import contextlib
import datetime
import json
import platform
import re
import sys
import time

sys.dont_write_bytecode = True

import torch
import torch.distributed as dist
from torch.distributed import pipelining

WARM_UP_STEPS = 2
# Schedule, and which stages a rank has of how many. zb-v folds them: the first rank also has the last.
SCHEDULES = {
    "gpipe": (pipelining.ScheduleGPipe, lambda rank, ranks: [rank]),
    "1f1b": (pipelining.Schedule1F1B, lambda rank, ranks: [rank]),
    "interleaved": (pipelining.ScheduleInterleaved1F1B, lambda rank, ranks: [rank, ranks + rank]),
    "zb-v": (pipelining.ScheduleZBVZeroBubble, lambda rank, ranks: [rank, 2 * ranks - 1 - rank]),
}


def versions():
    config = torch.__config__.show()

    def found(pattern):
        match = re.search(pattern, config)
        return match.group(1) if match else None

    with open("/proc/self/maps", encoding="ascii") as file:
        has_jemalloc = "jemalloc" in file.read()
    result = {"torch": torch.__version__, "python": platform.python_version(), "mkl": found(r"Math Kernel Library Version (\S+?)-"),
              "onednn": found(r"MKL-DNN v(\S+)"), "cpu_capability": torch.backends.cpu.get_cpu_capability(),
              "jemalloc": has_jemalloc}
    if torch.cuda.is_available():
        result.update(cuda=torch.version.cuda, gpu=torch.cuda.get_device_name())
    with contextlib.suppress(ImportError):
        import transformers
        result["transformers"] = transformers.__version__
    return result


class Replica:
    """One process with the whole model, which sums its micro-batches' gradients; with others under DistributedDataParallel."""

    def __init__(self, model, options, device):
        module = torch.nn.Sequential(*model.layers).to(device)
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        if options.world > 1:
            module = torch.nn.parallel.DistributedDataParallel(module, gradient_as_bucket_view=True)
        self.without_exchange = module.no_sync if options.world > 1 else contextlib.nullcontext
        self.call = torch.compile(module) if options.form == "compiled" else module
        own = slice(options.rank, None, options.world)
        self.parts = list(zip(*([part.to(device) for part in t.chunk(options.microbatches)[own]]
                                for t in model.make_batch(options.batch))))
        self.share, self.loss = 1 / len(self.parts), model.loss
        self.losses = []

    def forward_backward(self):
        self.losses = []
        for i, (x, target) in enumerate(self.parts):
            with contextlib.nullcontext() if i + 1 == len(self.parts) else self.without_exchange():
                loss = self.loss(self.call(x), target)
                (loss * self.share).backward()
            self.losses.append(loss.detach())


class Pipeline:
    """The stages of one process."""

    def __init__(self, model, options, device):
        make, stages_of = SCHEDULES[options.work]
        own = stages_of(options.rank, options.world)
        stages = options.world * len(own)
        cut = options.cut or [len(model.layers) * (s + 1) // stages - len(model.layers) * s // stages for s in range(stages)]
        assert len(cut) == stages and sum(cut) == len(model.layers), (cut, stages, len(model.layers))
        modules = {s: torch.nn.Sequential(*model.layers[sum(cut[:s]):sum(cut[:s + 1])]).to(device) for s in own}
        self.parameters = [p for module in modules.values() for p in module.parameters()]
        if options.form == "compiled":
            for module in modules.values():
                module.compile()
        parts = [pipelining.PipelineStage(module, s, stages, device) for s, module in modules.items()]
        self.schedule = make(parts if len(own) > 1 else parts[0], options.microbatches, loss_fn=model.loss)
        x, target = (t.to(device) for t in model.make_batch(options.batch))
        self.inputs = (x,) if 0 in own else ()
        self.has_loss, self.target = stages - 1 in own, target
        self.losses = []

    def forward_backward(self):
        self.losses = []
        self.schedule.step(*self.inputs, **({"target": self.target, "losses": self.losses} if self.has_loss else {}))


def start(options):
    """Joins the other processes; returns this one's device."""
    torch.set_num_threads(options.threads)
    torch.set_flush_denormal(True)
    device = torch.device(options.device, options.rank) if options.device == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if options.world > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", init_method=f"file://{options.store}",
                                rank=options.rank, world_size=options.world,
                                timeout=datetime.timedelta(seconds=options.timeout))
    return device


def barrier(device):
    if device.type == "cuda":
        torch.cuda.synchronize()
    if dist.is_initialized():
        dist.barrier()


def mean_loss(losses, microbatches, device):
    """Of all processes' micro-batches."""
    total = torch.stack(losses).sum() if losses else torch.zeros((), device=device)
    if dist.is_initialized():
        dist.all_reduce(total)
    return total.item() / microbatches


def train(options):
    def say(**event):
        if options.rank == 0:
            print(json.dumps(event), flush=True)

    from models import MODELS

    device = start(options)
    # All processes draw the same model and batch, and each keeps its part.
    torch.manual_seed(1)
    model = MODELS[options.model](options)
    say(event="model", parameters=model.parameters)
    part = (Pipeline if options.work in SCHEDULES else Replica)(model, options, device)
    del model
    optimizer = torch.optim.AdamW(part.parameters, lr=1e-5, weight_decay=0.01, fused=True)
    for step in range(WARM_UP_STEPS + options.steps):
        barrier(device)
        begin = time.perf_counter()
        optimizer.zero_grad()
        part.forward_backward()
        optimizer.step()
        # A step ends where the last process has ended it.
        barrier(device)
        milliseconds = 1e3 * (time.perf_counter() - begin)
        loss = mean_loss(part.losses, options.microbatches, device)
        say(event="step" if step >= WARM_UP_STEPS else "warm_up", ms=round(milliseconds, 3), loss=loss)
    if dist.is_initialized():
        dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--versions", action="store_true")
    parser.add_argument("--model", default="default")
    parser.add_argument("--layers", type=int, help="of the default network [20]")
    parser.add_argument("--width", type=int, help="of the default network [2304]")
    parser.add_argument("--context", type=int, default=256, help="tokens of a row")
    parser.add_argument("--work", default="one", choices=["one", "ddp", *SCHEDULES])
    parser.add_argument("--form", default="eager", choices=["eager", "compiled"])
    parser.add_argument("--channels-last", action="store_true", help="images in the other order")
    parser.add_argument("--cut", type=lambda text: [int(part) for part in text.split(",")],
                        help="layers of each stage, such as 10,10 [equal]")
    parser.add_argument("--batch", type=int, default=512, help="rows of all processes")
    parser.add_argument("--microbatches", type=int, default=1, help="of all processes")
    parser.add_argument("--threads", type=int, default=1, help="of each process")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--steps", type=int, default=5, help="to be timed")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--world", type=int, default=1, help="processes")
    parser.add_argument("--store", help="file by which the processes find each other; there must be none")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds that one process waits for another")
    options = parser.parse_args()
    if options.versions:
        print(json.dumps(versions()))
    else:
        train(options)


if __name__ == "__main__":
    main()
