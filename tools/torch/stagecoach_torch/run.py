"""Runs a plan under torchrun, by torch.distributed.pipelining."""

import contextlib
import copy
import os
import statistics
import tempfile
import time

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, schedules
from torch.utils.checkpoint import checkpoint

from stagecoach_torch.errors import UserError, sentence
from stagecoach_torch.layers import layers_of, shared_parameters

WARM_UP_STEPS = 2
SHORT_STEP_MS = 20
# Of the largest number of a tensor: float32 sums in another order.
TOLERANCE = 1e-4


class _Recomputed(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return checkpoint(self.layer, x, use_reentrant=False)


@contextlib.contextmanager
def _without_dropout(module):
    """By training flags, which functions such as scaled_dot_product_attention are given too. Norms keep theirs, with which they take a
    micro-batch's own statistics, and so do recurrent layers, which CUDA trains by no other."""
    trained = [child for child in module.modules() if child.training]
    rates = {child: child.dropout for child in trained if isinstance(child, torch.nn.RNNBase)}
    for child in trained:
        child.training = child in rates or isinstance(child, torch.nn.modules.batchnorm._NormBase)
    for child in rates:
        child.dropout = 0.0
    try:
        yield
    finally:
        for child in trained:
            child.training = True
        for child, rate in rates.items():
            child.dropout = rate


def _draws(module, x):
    """Whether a forward pass on CPUs takes random numbers."""
    before = torch.get_rng_state()
    with torch.no_grad():
        copy.deepcopy(module)(x)
    after = torch.get_rng_state()
    torch.set_rng_state(before)
    return not torch.equal(before, after)


class _Memory:
    """The most that this process has taken since it began: allocations of a GPU, resident memory of a CPU."""

    def __init__(self, device):
        self.device = device
        self.before = 0 if device.type == "cuda" else self._status("VmRSS")

    @staticmethod
    def _status(key):
        with open("/proc/self/status", encoding="ascii") as file:
            return next(1024 * int(line.split()[1]) for line in file if line.startswith(key))

    def restart(self):
        """From here on; what is there now counts."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            return
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")

    def peak_bytes(self):
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        return max(0, self._status("VmHWM") - self.before)


class Run:
    """This process's part of a plan."""

    def __init__(self, plan, task, device, seed, checks):
        self.plan, self.task, self.device = plan, task, device
        self.rank = dist.get_rank()
        self.memory = _Memory(device)
        # All ranks draw the same model and batch, and each keeps its stages.
        torch.manual_seed(seed)
        layers = layers_of(task.make_model())
        self._check_layers(layers)
        self.x, self.target = task.make_batch(plan.micro_batches * plan.micro_batch_rows)
        # What rank 0 compares with; the others' layers are dropped with `layers`.
        whole = torch.nn.Sequential(*(layer for _, layer in layers))
        self.whole = copy.deepcopy(whole) if checks and self.rank == 0 else None
        by_name, numbers = dict(layers), {name: i for i, (name, _) in enumerate(layers)}
        self.modules = {}
        for stage in plan.stages_of(self.rank):
            own = [(name, by_name[name]) for name in plan.layers[stage]]
            self.modules[stage] = torch.nn.Sequential(
                *(_Recomputed(layer) if numbers[name] in plan.recomputed else layer for name, layer in own)).to(device)
        stages = [PipelineStage(module, stage, len(plan.layers), device) for stage, module in self.modules.items()]
        self.schedule = schedules._PipelineScheduleRuntime(stages, plan.micro_batches, loss_fn=task.loss)
        self._load()

    def _check_layers(self, layers):
        names = [name for name, _ in layers]
        planned = [name for stage in self.plan.layers for name in stage]
        if names != planned:
            at = next((i for i, (a, b) in enumerate(zip(names, planned)) if a != b), min(len(names), len(planned)))
            have = names[at] if at < len(names) else "no more"
            want = planned[at] if at < len(planned) else "no more"
            raise UserError(f"layer {at} of the model is {have}, and of the plan {want}: it was made for another model")
        stage_of = {name: stage for stage, own in enumerate(self.plan.layers) for name in own}
        for parameter, first, other in shared_parameters(layers):
            if stage_of[first] != stage_of[other]:
                raise UserError(f"{first} and {other} share {parameter}, but are in stages {stage_of[first]} and "
                                f"{stage_of[other]}; PyTorch does not tie parameters of two stages")

    def _load(self):
        with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
            file.write("".join(",".join(row) + "\n" for row in self.plan.rows))
            file.flush()
            try:
                self.schedule._load_csv(file.name, format="compute_comms")
            except RuntimeError as error:
                raise UserError(f"PyTorch {torch.__version__} does not know the schedule's actions ({error}); "
                                "2.15 does") from None

    def forward_backward(self):
        """Returns the mean loss, on the rank of the last stage; None elsewhere."""
        losses = []
        last = len(self.plan.layers) - 1
        inputs = (self.x.to(self.device),) if 0 in self.modules else ()
        wanted = {"target": self.target.to(self.device), "losses": losses} if last in self.modules else {}
        try:
            self.schedule.step(*inputs, **wanted)
        except Exception as error:
            raise UserError(f"rank {self.rank}, stages {', '.join(map(str, self.modules))}: {sentence(error)}") from None
        return sum(loss.item() for loss in losses) / len(losses) if losses else None

    def check(self):
        """Compares loss and gradients with those of this model in one process; returns whether they agree, on rank 0."""
        example = self.x.chunk(self.plan.micro_batches)[0]
        draws = [self.whole is not None and _draws(self.whole, example)]
        dist.broadcast_object_list(draws, src=0)
        if not draws[0]:
            return self._check("")
        with contextlib.ExitStack() as stack:
            for module in (*self.modules.values(), self.whole):
                if module is not None:
                    stack.enter_context(_without_dropout(module))
            if self.rank == 0:
                print("the model draws random numbers, which each stage does on its own: compared with dropout off", flush=True)
            still = self.rank == 0 and _draws(self.whole, example)
            return self._check("; they differ because the model draws random numbers even with dropout off" if still else "")

    def _check(self, reason):
        """`reason`: of a difference, where one is known."""
        loss = self.forward_backward()
        gradients = {}
        for stage, module in self.modules.items():
            for name, layer in zip(self.plan.layers[stage], module):
                layer = layer.layer if isinstance(layer, _Recomputed) else layer
                gradients.update({f"{name}.{own}": p.grad.cpu() for own, p in layer.named_parameters() if p.grad is not None})
                for parameter in layer.parameters():
                    parameter.grad = None
        parts = [None] * dist.get_world_size() if self.rank == 0 else None
        dist.gather_object((loss, gradients), parts, dst=0)
        if self.rank != 0:
            return True
        return self._compare(parts, reason)

    def _compare(self, parts, reason):
        whole, self.whole = self.whole, None
        count = self.plan.micro_batches
        expected_loss = 0.0
        for x, target in zip(self.x.chunk(count), self.target.chunk(count)):
            part = self.task.loss(whole(x), target) / count
            part.backward()
            expected_loss += part.item()
        names = [name for stage in self.plan.layers for name in stage]
        expected = {f"{name}.{own}": p.grad for name, layer in zip(names, whole)
                    for own, p in layer.named_parameters() if p.grad is not None}
        found = {}
        for _, gradients in parts:
            found.update(gradients)
        loss = next(loss for loss, _ in parts if loss is not None)
        worst, worst_name = abs(loss - expected_loss) / max(abs(expected_loss), 1e-30), "the loss"
        if set(found) != set(expected):
            print(f"gradients of other parameters: {sorted(set(found) ^ set(expected))[0]}")
            return False
        for name, gradient in expected.items():
            difference = ((found[name] - gradient).abs().max() / gradient.abs().max().clamp(min=1e-30)).item()
            if not difference <= worst:
                worst, worst_name = difference, name
        agrees = worst <= TOLERANCE
        verdict = "are the same" if worst == 0 else \
            f"{'agree' if agrees else 'DIFFER'}: at most by {worst:.1e} of the largest number, of {worst_name}{'' if agrees else reason}"
        print(f"loss {loss:.6f}, in one process {expected_loss:.6f}; {len(expected)} gradients {verdict}", flush=True)
        return agrees

    def train(self, steps, optimizer):
        """Returns the medians of steps in ms, and this rank's memory."""
        parameters = [p for module in self.modules.values() for p in module.parameters()]
        make = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[optimizer]
        update = make(parameters, lr=1e-3) if parameters else None
        self.memory.restart()
        times = []
        for _ in range(WARM_UP_STEPS + steps):
            dist.barrier()
            start = time.perf_counter()
            if update is not None:
                update.zero_grad(set_to_none=True)
            self.forward_backward()
            if update is not None:
                update.step()
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            dist.barrier()
            times.append(1e3 * (time.perf_counter() - start))
        return statistics.median(times[WARM_UP_STEPS:]), self.memory.peak_bytes()


def start(device):
    """Joins the processes that torchrun has started; returns this one's device. To be left by dist.destroy_process_group()."""
    if "RANK" not in os.environ:
        raise UserError("start this under torchrun: torchrun --nproc-per-node RANKS -m stagecoach_torch run ...")
    local = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if device == "cuda" else torch.device("cpu")
    if local.type == "cuda":
        torch.cuda.set_device(local)
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    return local


def run(plan, task, device, steps=5, optimizer="adamw", seed=1, checks=False):
    """Trains by the plan, on `device` of start(). Returns whether gradients agree with one process's, if that is checked. Prints
    on rank 0."""
    ranks = dist.get_world_size()
    if ranks != plan.ranks:
        raise UserError(f"the plan has {plan.ranks} ranks, and torchrun has started {ranks} processes")
    part = Run(plan, task, device, seed, checks)
    agrees = part.check() if checks else True
    step_ms, peak = part.train(steps, optimizer)
    peaks = [None] * ranks
    dist.all_gather_object(peaks, peak)
    if part.rank == 0:
        _print(plan, step_ms, peaks)
    return agrees


def _print(plan, step_ms, peaks):
    print(f"step  predicted {plan.step_ms:.1f} ms, measured {step_ms:.1f} ms ({100 * (plan.step_ms / step_ms - 1):+.1f} %)")
    if step_ms < SHORT_STEP_MS:
        print(f"      of a step under {SHORT_STEP_MS:.0f} ms, PyTorch's own time per action is a large part, which plans do not count")
    print("rank  stages  layers  predicted peak  measured peak")
    for rank, peak in enumerate(peaks):
        stages = plan.stages_of(rank)
        layers = sum(len(plan.layers[stage]) for stage in stages)
        predicted = max(plan.peak_bytes[stage] for stage in stages)
        print(f"{rank:4}  {','.join(map(str, stages)):6}  {layers:6}  {predicted / 1e6:11.1f} MB  {peak / 1e6:10.1f} MB")
