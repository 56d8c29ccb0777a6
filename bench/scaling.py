#!/usr/bin/env python3
"""How throughput grows with devices, as the planner simulates it: a table for docs/distributed.md.

    bench/scaling.py --program build/release/tools/stagecoach --profile mlp.json --rows 256

Each device brings --rows rows to a batch, so ideal is a throughput in proportion to the devices;
printed is the share of it that is reached. Hosts have eight devices. A column that has no plan for
as few devices, or none that the memory allows, says "-".
"""

import argparse
import json
import subprocess
import tempfile

DEVICES_PER_HOST = 8

# Title, stages (ranks of the pipeline), further flags of `plan`.
COLUMNS = (
    ("replicas", 1, ()),
    ("replicas, sharded optimizer", 1, ("--shard-optimizer",)),
    ("4 stages × replicas", 4, ()),
    ("8 stages × replicas", 8, ()),
    ("8 stages × replicas, sharded optimizer", 8, ("--shard-optimizer",)),
)


def cluster(devices, options):
    hosts = max(1, devices // DEVICES_PER_HOST)
    memory = f'memory = "{options.memory}"' if options.memory else ""
    return f"""version = 1
[[group]]
name = "device"
hosts = {hosts}
devices_per_host = {devices // hosts}
{memory}
[links]
within_host = {{latency_us = {options.latency[0]}, gigabytes_per_second = {options.rate[0]}}}
between_hosts = {{latency_us = {options.latency[1]}, gigabytes_per_second = {options.rate[1]}}}
overlaps_messages = true
"""


def step_ms(devices, stages, flags, options):
    """Returns the step time of the best plan, or None."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(cluster(devices, options))
        file.flush()
        done = subprocess.run(
            [options.program, "plan", "--json", "--profile", options.profile, "--cluster", file.name,
             "--schedule", options.schedule, "--replicas", str(devices // stages), "--batch",
             str(options.rows * devices), *flags], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        if options.verbose:
            print(done.stderr.strip())
        return None
    return json.loads(done.stdout)["step_ms"]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True)
    parser.add_argument("--profile", required=True)
    parser.add_argument("--rows", type=int, required=True, help="of each device, in a batch")
    parser.add_argument("--schedule", default="1f1b")
    parser.add_argument("--devices", type=int, nargs="+",
                        default=[1, 2, 4, 8, 16, 64, 256, 1024])
    parser.add_argument("--latency", type=float, nargs=2, default=(50, 100),
                        help="microseconds, within a host and between hosts")
    parser.add_argument("--rate", type=float, nargs=2, default=(1.5, 1.25),
                        help="gigabytes per second, within a host and between hosts")
    parser.add_argument("--memory", default="", help="of a device [no limit]")
    parser.add_argument("--verbose", action="store_true", help="say why there is no plan")
    options = parser.parse_args()

    alone = step_ms(1, 1, (), options)
    if alone is None:
        raise SystemExit("one device alone has no plan: see --verbose")
    print(f"one device: {alone:.1f} ms a step of {options.rows} rows\n")
    print("| devices | " + " | ".join(title for title, _, _ in COLUMNS) + " |")
    print("|--:|" + "--:|" * len(COLUMNS))
    for devices in options.devices:
        cells = []
        for _, stages, flags in COLUMNS:
            possible = devices >= stages and not (flags and devices == stages)
            step = step_ms(devices, stages, flags, options) if possible else None
            cells.append("-" if step is None else f"{100 * alone / step:.0f} %")
        print(f"| {devices:,} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
