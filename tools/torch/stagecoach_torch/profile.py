"""Measures what each layer of a model takes, as `stagecoach plan --profile` reads it (docs/profiles.md)."""

import json
import statistics
import time

import torch

from stagecoach_torch.errors import UserError
from stagecoach_torch.layers import layers_of, shared_parameters


def _bytes(tensor):
    return tensor.numel() * tensor.element_size()


def _address(tensor):
    return tensor.untyped_storage().data_ptr()


class _Clock:
    """Times work of a device, in ms: medians over repeats, and how far they spread as a share."""

    def __init__(self, device, repeats):
        self.device, self.repeats = device, repeats
        self.spread = 0.0

    def _now(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def ms(self, work, prepare=lambda: None):
        times = []
        for _ in range(self.repeats + 2):  # the first two warm up
            prepare()
            start = self._now()
            work()
            times.append(1e3 * (self._now() - start))
        times = sorted(times[2:])
        median = statistics.median(times)
        if median > 0:
            quarter = len(times) // 4
            self.spread = max(self.spread, (times[-1 - quarter] - times[quarter]) / median)
        return round(median, 6)


def _backward_times(clock, y, x, parameters, dy):
    """Returns B, W and what both begin with, in ms: apart, each repeats that; a whole backward pass does it once."""

    def backward(wanted):
        if not wanted or not y.requires_grad:
            return 0.0
        return clock.ms(lambda: torch.autograd.grad(y, wanted, dy, retain_graph=True, allow_unused=True))

    inputs = [x] if x.requires_grad else []
    both = backward(inputs + parameters)
    of_input, of_weight = backward(inputs), backward(parameters)
    if not inputs or not parameters:
        return (both, 0.0, 0.0) if inputs else (0.0, both, 0.0)
    # Measured apart: neither can take longer than both.
    of_input, of_weight = min(of_input, both), min(of_weight, both)
    return of_input, of_weight, round(max(0.0, of_input + of_weight - both), 6)


def _profile_layer(name, layer, x, is_first, clock, make_optimizer):
    """Returns what the layer takes at this number of rows, and its output."""
    if getattr(layer, "inplace", False):
        raise UserError(f"layer {name} changes its input in place, which another stage has too: make it with inplace=False")
    # Nothing wants the gradient of the model's input.
    x = x.detach().requires_grad_(x.is_floating_point() and not is_first)
    parameters = [p for p in layer.parameters() if p.requires_grad]
    saved = {}

    def keep(tensor):
        saved[_address(tensor)] = _bytes(tensor)
        return tensor

    clock.spread = 0.0
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        y = layer(x)
    if not isinstance(y, torch.Tensor):
        raise UserError(f"layer {name} returns a {type(y).__name__}; between layers of a plan there is one tensor")
    dy = torch.randn_like(y)
    b_ms, w_ms, shared_ms = _backward_times(clock, y, x, parameters, dy)
    others = {_address(tensor) for tensor in (x, y, *parameters)}
    forward_ms = clock.ms(lambda: layer(x))
    step_ms, optimizer_bytes = 0.0, 0
    if parameters:
        optimizer = make_optimizer(parameters)
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        step_ms = clock.ms(optimizer.step)
        optimizer_bytes = sum(_bytes(value) for state in optimizer.state.values() for value in state.values()
                              if isinstance(value, torch.Tensor) and value.dim() > 0)
        for parameter in parameters:
            parameter.grad = None
    figures = {
        "name": name,
        "parameters": sum(p.numel() for p in layer.parameters()),
        "parameter_bytes": sum(_bytes(p) for p in layer.parameters()),
        "optimizer_bytes": optimizer_bytes,
        "forward_ms": forward_ms,
        "backward_input_ms": b_ms,
        "backward_weight_ms": w_ms,
        "shared_backward_ms": shared_ms,
        "step_ms": step_ms,
        "spread": round(clock.spread, 4),
        "input_bytes": _bytes(x),
        "output_bytes": _bytes(y),
        "stash_bytes": sum(size for at, size in saved.items() if at not in others),
        "recompute_stash_bytes": 0,
        "output_last_use": "backward_input" if _address(y) in saved else "forward",
    }
    return figures, y.detach()


def _add_loss(task, figures, y, target, clock):
    """The loss is computed with the last layer."""
    y = y.detach().requires_grad_()
    loss = task.loss(y, target)
    if loss.dim() > 0:
        raise UserError(f"{task.name}.loss returns a tensor of {loss.dim()} dimensions, and must return one number")
    figures["forward_ms"] += clock.ms(lambda: task.loss(y, target))
    figures["backward_input_ms"] += clock.ms(lambda: torch.autograd.grad(loss, [y], retain_graph=True))


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


def profile(task, rows, optimizer="adamw", repeats=20, device="cpu"):
    """Returns the profile of the task's model at micro-batches of each number of `rows`, as JSON text."""
    device = torch.device(device)
    model = task.make_model().to(device)
    layers = layers_of(model)
    make_optimizer = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[optimizer]
    clock = _Clock(device, repeats)
    columns = []
    for count in rows:
        x, target = (tensor.to(device) for tensor in task.make_batch(count))
        if x.shape[0] != count or target.shape[0] != count:
            raise UserError(f"{task.name}.make_batch({count}) returns {x.shape[0]} rows of input and {target.shape[0]} of target")
        column = []
        for name, layer in layers:
            figures, x = _profile_layer(name, layer, x, not column, clock, lambda parameters: make_optimizer(parameters, lr=1e-3))
            column.append(figures)
        _add_loss(task, column[-1], x, target, clock)
        columns.append(column)
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
