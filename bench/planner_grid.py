#!/usr/bin/env python3
"""Does more time, memory or speed ever give a slower plan, and how far are plans from their bounds?

    bench/planner_grid.py build/release/tools/stagecoach PROFILES RESULTS.jsonl [--jobs 1] [--only NAME] [--limits 2,5,10,20] [--chained]

PROFILES is a folder with the 14 graphs that PipeDream was published with, each as NAME.txt (profiler/*/profiles/NAME/graph.txt
of its repository). There are 20 settings: a graph, devices (4 to 64, equal or not) and a schedule. Each is planned with five
sizes of memory and three speeds of links in 5 seconds, and with the middle links in 2, 10 and 20 seconds: 600 requests.

With --chained, each request begins with the plans of the next harder ones (plan --start), so that there is no violation by
construction. Without it, each is planned by itself.

Every answer is appended to RESULTS.jsonl, where it is found again if the program is started once more. Then prints a summary:

- violations: pairs of requests of which the easier one has a plan that is more than 0.1 % slower, or none. Easier are more
  time, more memory, faster links, all else being equal.
- how far plans are from their lower bounds (median and 90th percentile), what ended with exit status 75, what came late.

Exits with 1 if there is a violation, an exit status other than 0 or 78 (does not fit), or a late answer."""
import argparse
import concurrent.futures
import json
import pathlib
import subprocess
import sys
import tempfile
import time

LIMITS = (2, 5, 10, 20)  # seconds
MIDDLE_LIMIT = 5
# Shares of about what 1F1B takes on the device that needs most if memory is unlimited.
MEMORY = (0.6, 0.75, 0.9, 1.1, None)
LINKS = (12, 48, 192)  # GB/s within a host; an eighth of that between hosts
MIDDLE_LINK = 48
TOLERANCE = 1e-3
LATE = 1.1  # times the limit, and half a second to start and to write the answer
# graph, devices, relative speeds of the hosts' devices, bytes that a memory share of 1.0 stands for, schedule, further flags
SETTINGS = (
    ("alexnet", 4, (1,), 3319367168, "auto", ()),
    ("vgg16", 4, (1,), 26615265792, "auto", ("--micro-batches", "auto")),
    ("vgg16", 8, (1, 0.5), 46038452224, "auto", ("--replicas", "auto")),
    ("resnet18", 8, (1,), 23018341376, "auto", ()),
    ("resnet18", 6, (1, 1, 0.7), 22145247744, "1f1b", ()),
    ("resnet50", 8, (1,), 34117167104, "auto", ("--replicas", "auto")),
    ("resnet50", 16, (1, 0.8), 49839512576, "zb-h1", ()),
    ("resnet101", 16, (1,), 31650916352, "auto", ()),
    ("resnext50", 12, (1,), 42748915712, "auto", ("--replicas", "auto")),
    ("resnext101", 8, (1,), 33012947456, "auto", ("--replicas", "auto")),
    ("resnext101", 32, (1, 1, 0.5, 0.5), 79588671488, "1f1b", ()),
    ("squeezenet1_0", 4, (1, 0.6), 18682884608, "auto", ()),
    ("densenet121", 8, (1,), 21067381760, "auto", ()),
    ("densenet121", 64, (1, 0.9, 0.6, 0.3), 36634334720, "auto", ()),
    ("inception_v3", 16, (1,), 42156829184, "auto", ()),
    ("nasnetamobile", 16, (1,), 26712668160, "auto", ()),
    ("nasnetalarge", 16, (1,), 16827780352, "zb-v", ()),
    ("nasnetalarge", 64, (1, 0.9, 0.6, 0.3), 25519420416, "1f1b", ()),
    ("gnmt", 8, (1,), 741585408, "auto", ()),
    ("gnmt_large", 16, (1, 0.7), 5173115904, "auto", ("--replicas", "auto")),
)


def cluster_text(devices, speeds, memory, link, overlaps):
    """Returns a cluster with a host of equal devices for each of the speeds."""
    groups = []
    for i, speed in enumerate(speeds):
        memory_line = f'memory = "{memory}B"\n' if memory else ""
        groups.append(f'[[group]]\nname = "g{i}"\nhosts = 1\ndevices_per_host = {devices // len(speeds)}\nspeed = {speed}\n{memory_line}')
    return "version = 1\n" + "".join(groups) + (
        f"[links]\nwithin_host = {{latency_us = 5, gigabytes_per_second = {link}}}\n"
        f"between_hosts = {{latency_us = 20, gigabytes_per_second = {link / 8}}}\noverlaps_messages = {str(overlaps).lower()}\n")


class Grid:
    def __init__(self, program, profiles, results, plans):
        self.program, self.profiles, self.results = program, profiles, results
        self.plans = plans  # where each request's plan is kept for the easier ones; None: nowhere
        self.known = {}
        if results.exists():
            for line in results.read_text().splitlines():
                answer = json.loads(line)
                self.known[tuple(answer["key"])] = answer

    def plan_file(self, key):
        return self.plans / ("-".join(map(str, key)) + ".json")

    def chain(self, key):
        """Returns the flags that begin with the plans of the next harder requests, and keep this one's."""
        starts = [str(self.plan_file(other)) for _, other in next_to(key, -1) if self.plan_file(other).exists()]
        return [*(["--start", ",".join(starts)] if starts else []), "--save", str(self.plan_file(key))]

    def plan(self, setting, memory, link, limit):
        name, devices, speeds, usual, schedule, flags = SETTINGS[setting]
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as cluster:
            cluster.write(cluster_text(devices, speeds, memory and int(memory * usual), link, setting % 2 == 0))
            cluster.flush()
            command = [self.program, "plan", "--profile", self.profiles / f"{name}.txt", "--cluster", cluster.name, "--schedule", schedule,
                       "--time-limit", str(limit), "--json", "--global-batch-size", "32", *(() if "--micro-batches" in flags else ("--micro-batches", "32")), *flags,
                       *(self.chain((setting, memory, link, limit)) if self.plans else ())]
            start = time.monotonic()
            run = subprocess.run(command, capture_output=True, text=True, check=False)
            return time.monotonic() - start, run

    def ask(self, setting, memory, link, limit):
        key = (setting, memory, link, limit)
        if key in self.known:
            return self.known[key]
        seconds, run = self.plan(setting, memory, link, limit)
        answer = {"key": key, "name": SETTINGS[setting][0], "exit": run.returncode, "seconds": round(seconds, 2)}
        if run.returncode == 0:
            evaluation = json.loads(run.stdout)
            answer |= {"ms": evaluation["objective_ms"], "gap": evaluation["gap"], "cut_short": evaluation["cut_short"], "schedule": evaluation["schedule"]}
        else:
            answer["error"] = run.stderr.splitlines()[:1]
        self.known[key] = answer
        with self.results.open("a") as file:
            file.write(json.dumps(answer) + "\n")
        return answer


def requests(settings, limits):
    for setting in settings:
        for memory in MEMORY:
            for link in LINKS:
                for limit in limits if link == MIDDLE_LINK else (MIDDLE_LIMIT,):
                    yield setting, memory, link, limit


def next_to(key, step):
    """Returns the next easier requests (step 1), or the next harder ones (step -1)."""
    setting, memory, link, limit = key

    def following(values, value):
        place = values.index(value) + step
        return [values[place]] if 0 <= place < len(values) else []
    for other in following(MEMORY, memory):
        yield "memory", (setting, other, link, limit)
    for other in following(LINKS, link):
        yield "links", (setting, memory, other, limit)
    for other in following(LIMITS, limit):
        yield "time", (setting, memory, link, other)


def summarize(answers):
    """Prints what is wrong, and returns how much of it there is."""
    plans = {key: answer["ms"] for key, answer in answers.items() if answer["exit"] == 0}
    pairs, wrong = {"time": 0, "memory": 0, "links": 0}, []
    for key, answer in answers.items():
        for what, other in next_to(key, 1):
            if key not in plans or other not in answers:
                continue
            pairs[what] += 1
            loss = plans.get(other, float("inf")) / plans[key] - 1
            if loss > TOLERANCE:
                wrong.append((what, loss, key, other))
    print(f"{len(answers)} requests, {len(plans)} plans, {sum(a.get('cut_short', False) for a in answers.values())} cut short")
    for what, count in pairs.items():
        losses = sorted(loss for kind, loss, _, _ in wrong if kind == what)
        print(f"more {what}: {len(losses)} of {count} pairs get slower by more than {100 * TOLERANCE:g} %" + (f", the worst by {100 * losses[-1]:.1f} %" if losses else ""))
    for what, loss, key, other in sorted(wrong, key=lambda w: -w[1])[:20]:
        print(f"  {what}: {SETTINGS[key[0]][:3]} memory {key[1]}, link {key[2]}, limit {key[3]} -> {other[1:]}: {100 * loss:+.2f} %")
    gaps = sorted(100 * answer["gap"] for answer in answers.values() if answer["exit"] == 0)
    if gaps:
        print(f"gap to the lower bound: median {gaps[len(gaps) // 2]:.1f} %, 90th percentile {gaps[len(gaps) * 9 // 10]:.1f} %")
    failed = [answer for answer in answers.values() if answer["exit"] not in (0, 78)]
    late = [answer for answer in answers.values() if answer["seconds"] > LATE * answer["key"][3] + 0.5]
    print(f"does not fit: {sum(a['exit'] == 78 for a in answers.values())}; other exit statuses: {len(failed)}; late: {len(late)}")
    for answer in failed + late:
        print(f"  {answer}")
    return len(wrong) + len(failed) + len(late)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("profiles", type=pathlib.Path)
    parser.add_argument("results", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="", help="part of a graph's name")
    parser.add_argument("--limits", default=",".join(map(str, LIMITS)), help="seconds, of 2, 5, 10 and 20; 5 is always asked")
    parser.add_argument("--chained", action="store_true", help="begin with the plans of harder requests; they are kept in RESULTS.plans")
    arguments = parser.parse_args()
    limits = [limit for limit in LIMITS if limit == MIDDLE_LIMIT or str(limit) in arguments.limits.split(",")]
    plans = arguments.results.with_suffix(".plans") if arguments.chained else None
    if plans:
        plans.mkdir(parents=True, exist_ok=True)
    grid = Grid(arguments.program, arguments.profiles, arguments.results, plans)
    settings = [i for i, setting in enumerate(SETTINGS) if arguments.only in setting[0]]
    asked = list(requests(settings, limits))
    # The requests of one setting are asked in turn, harder ones first.
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(lambda setting: [grid.ask(*key) for key in asked if key[0] == setting], settings))
    return 1 if summarize({key: grid.known[key] for key in asked}) else 0


if __name__ == "__main__":
    sys.exit(main())
