#!/usr/bin/env python3
"""Does `stagecoach plan` answer in time, and what does the limit cost?

    bench/plan_in_time.py build/release/tools/stagecoach PROFILES [--limit 10] [--longer 60] [--only NAME]

Plans every PipeDream profile (*.txt) in the folder PROFILES on 2, 4, 8 and 16 devices of two hosts, without a limit of memory and with 64, 32 and 16 GB, for any
schedule, zb-h1 and 1f1b; batches are 32 micro-batches of one row. Prints how long each took, its step and its gap. A search that was cut short is repeated with
the longer limit (0: not), to see how far the first plan was from what more time finds. Exits with 1 if an answer took more than a tenth longer than the limit."""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

CLUSTER = """version = 1
[[group]]
name = "gpu"
hosts = 2
devices_per_host = {per_host}
{memory}
[links]
within_host = {{latency_us = 5, gigabytes_per_second = 300}}
between_hosts = {{latency_us = 20, gigabytes_per_second = 25}}
overlaps_messages = true
"""


def plan(program, profile, cluster, schedule, limit):
    """Seconds, and the receipt; or the exit status where there is no plan."""
    command = [program, "plan", "--profile", profile, "--batch", "32", "--microbatches", "32", "--cluster", cluster,
               "--schedule", schedule, "--time-limit", str(limit), "--json"]
    start = time.monotonic()
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - start
    return seconds, json.loads(run.stdout) if run.returncode == 0 else run.returncode


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("profiles", type=pathlib.Path)
    parser.add_argument("--limit", type=float, default=10)
    parser.add_argument("--longer", type=float, default=60)
    parser.add_argument("--only", default="", help="part of a profile's name")
    arguments = parser.parse_args()
    late = 0
    cluster = tempfile.NamedTemporaryFile("w", suffix=".toml")
    for profile in sorted(arguments.profiles.glob("*.txt")):
        if profile.name == "LICENSE.txt" or arguments.only not in profile.name:
            continue
        for devices in (2, 4, 8, 16):
            for gigabytes in (None, 64, 32, 16):
                memory = f'memory = "{gigabytes}GB"' if gigabytes else ""
                pathlib.Path(cluster.name).write_text(CLUSTER.format(per_host=devices // 2, memory=memory))
                for schedule in ("auto", "zb-h1", "1f1b"):
                    seconds, receipt = plan(arguments.program, profile, cluster.name, schedule, arguments.limit)
                    is_late = seconds > 1.1 * arguments.limit
                    late += is_late
                    row = f"{profile.stem:16} {devices:2} {gigabytes or '-':>3} {schedule:6} {seconds:6.2f} s"
                    if isinstance(receipt, int):
                        row += {75: "  no plan in time", 78: "  does not fit"}.get(receipt, f"  exit {receipt}")
                    else:
                        row += f"  {receipt['objective_ms']:10.1f} ms  gap {100 * receipt['gap']:5.1f} %"
                        if receipt["cut_short"] and arguments.longer == 0:
                            row += "  cut short"
                        elif receipt["cut_short"]:
                            _, more = plan(arguments.program, profile, cluster.name, schedule, arguments.longer)
                            gain = 100 * (receipt["objective_ms"] / more["objective_ms"] - 1)
                            row += f"  cut short: {gain:+.1f} % of what {arguments.longer:g} s find"
                    print(row + ("  LATE" if is_late else ""), flush=True)
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
