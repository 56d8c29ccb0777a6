"""Measures what each layer of a model takes, as `stagecoach plan --profile` reads it (docs/planner.md)."""

import contextlib
import json
import multiprocessing
import statistics
import time

import torch

from stagecoach_torch.errors import UserError, sentence
from stagecoach_torch.layers import changes_in_place, layers_of, shared_parameters
from stagecoach_torch.task import Task


def _bytes(tensor):
    return tensor.numel() * tensor.element_size()


def _shape(tensor):
    return " x ".join(map(str, tensor.shape))


def _address(tensor):
    return tensor.untyped_storage().data_ptr()


class _Part:
    """A layer, or the loss, at one number of rows: what its passes need, and what is found out about it."""

    def __init__(self, name, call, parameters, x, make_optimizer):
        self.name, self.call, self.x = name, call, x
        self.parameters = [p for p in parameters if p.requires_grad]
        self.optimizer = make_optimizer(self.parameters) if self.parameters else None
        self.saved = {}

        def keep(tensor):
            self.saved[_address(tensor)] = _bytes(tensor)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            self.y = self._first_call(x)
        if not isinstance(self.y, torch.Tensor):
            raise UserError(f"layer {name} returns a {type(self.y).__name__}; between layers of a plan there is one tensor")
        self.dy = torch.randn_like(self.y)
        self.times, self.spread = {}, 0.0

    def _first_call(self, x):
        version = x._version
        try:
            y = self.call(x)
        except Exception as error:
            # What autograd says of a tensor that others have too.
            if "leaf Variable that requires grad is being used in an in-place operation" in str(error):
                raise self._changes_input() from None
            raise UserError(f"layer {self.name} fails on an input of {_shape(x)}: {sentence(error)}") from None
        if x._version != version:
            raise self._changes_input()
        return y

    def _changes_input(self):
        if isinstance(self.call, torch.nn.Module):
            return changes_in_place(self.name, self.call)
        return UserError("the loss changes its input in place, which the last layer may keep: let it work on a copy")

    def gradients(self, wants_input, wants_parameters):
        """A pass that computes these, or None where there is nothing to compute."""
        wanted = [self.x] if wants_input and self.x.requires_grad else []
        wanted = wanted + self.parameters if wants_parameters else wanted
        if not wanted or not self.y.requires_grad:
            return None
        return lambda: torch.autograd.grad(self.y, wanted, self.dy, retain_graph=True, allow_unused=True)

    def update(self):
        if self.optimizer is None:
            return None

        def step():
            self.optimizer.step()

        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)
        return step

    def optimizer_bytes(self):
        states = self.optimizer.state.values() if self.optimizer else []
        return sum(_bytes(value) for state in states for value in state.values()
                   if isinstance(value, torch.Tensor) and value.dim() > 0)

    def backward_times(self):
        """B, W and what both begin with, in ms: apart, each repeats that; a whole backward pass does it once."""
        both, of_input, of_weight = (self.times[key] for key in ("both", "input", "weight"))
        if not of_input or not of_weight:
            return of_input, of_weight, 0.0
        # Measured apart: neither can take longer than both.
        of_input, of_weight = min(of_input, both), min(of_weight, both)
        return of_input, of_weight, round(max(0.0, of_input + of_weight - both), 6)


class _Clock:
    """Times work of a device, in ms: medians over repeats, and how far they spread as a share."""

    def __init__(self, device, repeats):
        self.device, self.repeats = device, repeats

    def _now(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def sweep(self, key, parts, work_of):
        """Times work_of(part) of each as times[key], repeatedly all in turn: so each finds in the caches what a step leaves there, and not
        its own parameters. Where there is no work, 0."""
        works = [(part, work) for part in parts if (work := work_of(part)) is not None]
        times = {part: [] for part, _ in works}
        for _ in range(self.repeats + 2):  # the first two warm up
            for part, work in works:
                start = self._now()
                try:
                    work()
                except RuntimeError as error:
                    raise UserError(f"layer {part.name} fails in its {key} pass: {sentence(error)}") from None
                times[part].append(1e3 * (self._now() - start))
        for part in parts:
            part.times[key] = 0.0
        for part, of_part in times.items():
            of_part = sorted(of_part[2:])
            median = statistics.median(of_part)
            if median > 0:
                quarter = len(of_part) // 4
                part.spread = max(part.spread, (of_part[-1 - quarter] - of_part[quarter]) / median)
            part.times[key] = round(median, 6)

    def measure(self, parts):
        self.sweep("forward", parts, lambda part: lambda: part.call(part.x))
        last_first = parts[::-1]
        self.sweep("both", last_first, lambda part: part.gradients(True, True))
        self.sweep("input", last_first, lambda part: part.gradients(True, False))
        self.sweep("weight", last_first, lambda part: part.gradients(False, True))
        self.sweep("step", parts, lambda part: part.update())


def _parts(task, layers, x, target, make_optimizer):
    """The layers and, last, the loss."""
    parts = []
    for name, layer in layers:
        # Nothing wants the gradient of the model's input.
        x = x.detach().requires_grad_(x.is_floating_point() and bool(parts))
        parts.append(_Part(name, layer, layer.parameters(), x, make_optimizer))
        x = parts[-1].y
    loss = _Part("loss", lambda y: task.loss(y, target), [], x.detach().requires_grad_(), make_optimizer)
    if loss.y.dim() > 0:
        raise UserError(f"{task.name}.loss returns a tensor of {loss.y.dim()} dimensions, and must return one number")
    return [*parts, loss]


def _figures(part, layer):
    b_ms, w_ms, shared_ms = part.backward_times()
    others = {_address(tensor) for tensor in (part.x, part.y, *part.parameters)}
    return {
        "name": part.name,
        "parameters": sum(p.numel() for p in layer.parameters()),
        "parameter_bytes": sum(_bytes(p) for p in layer.parameters()),
        "optimizer_bytes": part.optimizer_bytes(),
        "forward_ms": part.times["forward"],
        "backward_input_ms": b_ms,
        "backward_weight_ms": w_ms,
        "shared_backward_ms": shared_ms,
        "step_ms": part.times["step"],
        "spread": round(part.spread, 4),
        "input_bytes": _bytes(part.x),
        "output_bytes": _bytes(part.y),
        "stash_bytes": sum(size for at, size in part.saved.items() if at not in others),
        "recompute_stash_bytes": 0,
        "output_last_use": "backward_input" if _address(part.y) in part.saved else "forward",
    }


def _column(task, layers, rows, clock, make_optimizer):
    """The figures of all layers at one number of rows."""
    x, target = (tensor.to(clock.device) for tensor in task.make_batch(rows))
    if x.shape[0] != rows or target.shape[0] != rows:
        raise UserError(f"{task.name}.make_batch({rows}) returns {x.shape[0]} rows of input and {target.shape[0]} of target")
    parts = _parts(task, layers, x, target, make_optimizer)
    clock.measure(parts)
    figures = [_figures(part, layer) for part, (_, layer) in zip(parts, layers)]
    # The loss is computed with the last layer.
    figures[-1]["forward_ms"] += parts[-1].times["forward"]
    figures[-1]["backward_input_ms"] += parts[-1].times["input"]
    for _, layer in layers:
        layer.zero_grad(set_to_none=True)
    return figures


# What depends on the rows has a list with a value for each of their numbers.
_PER_ROWS = ("forward_ms", "backward_input_ms", "backward_weight_ms", "shared_backward_ms", "input_bytes", "output_bytes",
             "stash_bytes")


def _merge(columns):
    merged = []
    for of_layer in zip(*columns):
        layer = dict(of_layer[0])
        for key in _PER_ROWS:
            layer[key] = [figures[key] for figures in of_layer]
        layer["spread"] = max(figures["spread"] for figures in of_layer)
        merged.append(layer)
    return merged


def _profile_endlessly(spec, started, *arguments):
    task = Task(spec)
    started.set()
    while True:
        profile(task, *arguments)


@contextlib.contextmanager
def company(count, spec, *arguments):
    """So many other processes that profile the task `spec` all the while, as devices that share this machine's memory compute."""
    context = multiprocessing.get_context("spawn")
    processes = []
    try:
        for _ in range(count):
            started = context.Event()
            processes.append(context.Process(target=_profile_endlessly, args=(spec, started, *arguments), daemon=True))
            processes[-1].start()
            started.wait()
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def profile(task, rows, optimizer="adamw", repeats=20, device="cpu"):
    """Returns the profile of the task's model at micro-batches of each number of `rows`, as JSON text."""
    device = torch.device(device)
    model = task.make_model().to(device)
    layers = layers_of(model)
    make_optimizer = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[optimizer]
    clock = _Clock(device, repeats)
    columns = [_column(task, layers, count, clock, lambda parameters: make_optimizer(parameters, lr=1e-3)) for count in rows]
    profile_of_model = {
        "format": "stagecoach-profile", "version": 1, "model": task.name, "micro_batch_rows": list(rows),
        "layers": _merge(columns),
    }
    ties = [{"layer": first, "other_layer": other, "bytes": _bytes(dict(dict(layers)[other].named_parameters())[own])}
            for own, first, other in shared_parameters(layers)]
    if ties:
        profile_of_model["ties"] = ties
    layers_text = ",\n    ".join(json.dumps(layer) for layer in profile_of_model.pop("layers"))
    head = json.dumps(profile_of_model)[:-1]
    return f'{head},\n  "layers": [\n    {layers_text}\n  ]}}\n'
