"""Where the time of a step goes, kernel by kernel: sums of what bench/cuda/kernel_times.cc records."""

import re

from .process import json_lines

_LONGEST_NAME = 60


def read(path):
    """What ran on the GPU: objects with name, grid, begin_ns and end_ns. Empty if nothing was recorded."""
    return json_lines(path.read_text(errors="replace")) if path.exists() else []


def of_last(works, ms):
    """Those that began within the last so many milliseconds."""
    last = max((work["end_ns"] for work in works), default=0)
    return [work for work in works if work["begin_ns"] >= last - ms * 1e6]


def busy_ms(works):
    """How long the GPU ran at least one of them."""
    busy, until = 0, 0
    for work in sorted(works, key=lambda work: work["begin_ns"]):
        busy += max(0, work["end_ns"] - max(work["begin_ns"], until))
        until = max(until, work["end_ns"])
    return busy / 1e6


def short(name):
    """A kernel's name without namespaces, arguments, and what is too long for a line."""
    name = re.sub(r"^void |\(anonymous namespace\)::|\bstagecoach::kernels::", "", name)
    name = re.sub(r"\(.*", "", name).replace("__nv_bfloat16", "bf16")
    return name if len(name) <= _LONGEST_NAME else name[:_LONGEST_NAME - 3] + "..."


def sums(works):
    """(name, calls, milliseconds) of each name, the longest first."""
    found = {}
    for work in works:
        calls, ns = found.get(short(work["name"]), (0, 0))
        found[short(work["name"])] = calls + 1, ns + work["end_ns"] - work["begin_ns"]
    return sorted(((name, calls, ns / 1e6) for name, (calls, ns) in found.items()),
                  key=lambda one: (-one[2], one[0]))
