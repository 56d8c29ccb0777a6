"""Measures what messages between processes take, as `stagecoach plan --cluster` reads it (docs/planner.md)."""

import os
import statistics
import time

import torch
import torch.distributed as dist

from stagecoach_torch.errors import UserError

SMALL_BYTES, LARGE_BYTES = 4, 1 << 23


def _round_trip_s(device, peer, is_first, size, repeats):
    """Median time of a message to `peer` and back, each sent as the schedules of PyTorch do."""
    mine, theirs = (torch.zeros(size // 4, device=device) for _ in range(2))

    def pass_on(operation, tensor):
        for work in dist.batch_isend_irecv([dist.P2POp(operation, tensor, peer)]):
            work.wait()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    first, second = ((dist.isend, mine), (dist.irecv, theirs)) if is_first else ((dist.irecv, theirs), (dist.isend, mine))
    times = []
    for _ in range(repeats + 2):  # the first two warm up
        start = time.perf_counter()
        pass_on(*first)
        pass_on(*second)
        times.append(time.perf_counter() - start)
    return statistics.median(times[2:])


def _link(device, a, b, repeats):
    """Latency in us and GB/s between two ranks, the same on all; None if there is no such pair."""
    rank, link = dist.get_rank(), [None]
    if rank in (a, b):
        small, large = (_round_trip_s(device, b if rank == a else a, rank == a, size, repeats) / 2
                        for size in (SMALL_BYTES, LARGE_BYTES))
        link = [(1e6 * small, 1e-9 * (LARGE_BYTES - SMALL_BYTES) / max(large - small, 1e-9))]
    dist.broadcast_object_list(link, src=a)
    return link[0]


def cluster(device, repeats=20):
    """Returns the cluster file of torchrun's processes as text, by a link within a host and one between two, where there are such. All
    of them call this, behind start()."""
    ranks, own = dist.get_world_size(), int(os.environ.get("LOCAL_WORLD_SIZE", dist.get_world_size()))
    if ranks < 2:
        raise UserError("there is no message to measure with one process: torchrun --nproc-per-node 2 -m stagecoach_torch cluster ...")
    links = {}
    if own > 1:
        links["within_host"] = _link(device, 0, 1, repeats)
    if ranks > own:
        links["between_hosts"] = _link(device, 0, own, repeats)
    lines = ["version = 1", "", "[[group]]", f'name = "{device.type}"', f"hosts = {ranks // own}", f"devices_per_host = {own}", "", "[links]"]
    lines += [f"{name} = {{latency_us = {latency:.1f}, gigabytes_per_second = {speed:.4g}}}" for name, (latency, speed) in links.items()]
    return "\n".join(lines) + "\n"
