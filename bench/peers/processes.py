"""Runs the processes of one side, which end together whatever happens."""

import ctypes.util
import json
import math
import os
import signal
import subprocess
import tempfile
import time

# What slows the BLAS or the allocator of either side, or changes what they choose.
CLEARED = ("BLIS_", "DNNL_", "GLIBC_TUNABLES", "GOMP_", "KMP_", "LD_PRELOAD", "MALLOC_", "MKL_", "OMP_", "ONEDNN_", "OPENBLAS_")


class RunFailed(Exception):
    """With what the side said last, and what its first process had printed."""

    def __init__(self, message, output=""):
        super().__init__(message)
        self.output = output


def find_jemalloc():
    return ctypes.util.find_library("jemalloc")


def our_environment(environment):
    return {key: value for key, value in environment.items() if not key.startswith(CLEARED)}


def peers_environment(environment, threads, wait_policy, jemalloc):
    """glibc gives memory back, so that each gradient is new pages in every micro-batch; jemalloc keeps them."""
    result = our_environment(environment) | {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": wait_policy.upper()}
    result.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if jemalloc:
        result |= {"LD_PRELOAD": jemalloc, "MALLOC_CONF": "dirty_decay_ms:-1,muzzy_decay_ms:-1"}
    return result


def _text(file):
    file.seek(0)
    return file.read()


def _last_line(file):
    lines = [line.strip() for line in _text(file).splitlines() if line.strip()]
    return lines[-1] if lines else "nothing was said"


def _end(processes):
    for process in processes:
        # Also what they have started, such as compilers.
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()


def run(commands, environment, timeout):
    """Returns what the first prints. Raises RunFailed if one fails or takes longer than `timeout` seconds; none is left behind."""
    processes, deadline = [], time.monotonic() + timeout
    with tempfile.TemporaryDirectory() as folder:
        outputs = [open(os.path.join(folder, f"output{i}"), "w+", encoding="utf-8") for i in range(len(commands))]
        errors = [open(os.path.join(folder, f"errors{i}"), "w+", encoding="utf-8") for i in range(len(commands))]
        try:
            for command, output, error in zip(commands, outputs, errors):
                store = ["--store", os.path.join(folder, "store")] if len(commands) > 1 else []
                processes.append(subprocess.Popen([*command, *store], env=environment, stdin=subprocess.DEVNULL, stdout=output,
                                                  stderr=error, start_new_session=True))
            while True:
                states = [process.poll() for process in processes]
                for state, error in zip(states, errors):
                    if state:
                        raise RunFailed(f"status {state}: {_last_line(error)}", _text(outputs[0]))
                if None not in states:
                    return _text(outputs[0])
                if time.monotonic() > deadline:
                    raise RunFailed(f"not done after {timeout:g} s")
                time.sleep(0.05)
        except OSError as error:
            raise RunFailed(str(error)) from None
        finally:
            _end(processes)
            for file in outputs + errors:
                file.close()


def run_ours(commands, environment, timeout):
    """The times of steps in ms, of the one row of `stagecoach bench`, and what it says of the machine."""
    try:
        output = run(commands, environment, timeout)
    except RunFailed as failure:
        # A row that cannot be run says why.
        try:
            raise RunFailed(json.loads(failure.output)["rows"][0]["error"]) from None
        except (ValueError, KeyError, IndexError):
            raise failure from None
    try:
        result = json.loads(output)
        (row,) = result["rows"]
        steps = [float(ms) for ms in row["steps_ms"]]
    except (ValueError, KeyError, TypeError) as error:
        raise RunFailed(f"bench did not print one row with steps_ms: {error!r}") from None
    if not steps:
        raise RunFailed("bench timed no step")
    return steps, result.get("machine")


def run_peers(commands, environment, timeout):
    """The times of steps in ms, of the workers."""
    output = run(commands, environment, timeout)
    try:
        events = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        steps = [event for event in events if event["event"] == "step"]
        losses, times = [event["loss"] for event in steps], [float(event["ms"]) for event in steps]
    except (ValueError, KeyError, TypeError) as error:
        raise RunFailed(f"the worker printed something else: {error!r}") from None
    if not times:
        raise RunFailed("the worker timed no step")
    if not all(map(math.isfinite, losses)):
        raise RunFailed("a loss is not finite")
    return times
