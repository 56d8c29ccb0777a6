"""Medians, ranges and ratios of a comparison, and how they are shown."""

import statistics

from contests import OURS, has_tokens

BUSY_LOAD = 0.5


def _median_and_range(numbers):
    return statistics.median(numbers), [min(numbers), max(numbers)]


def summarize(results):
    """Adds to each side the median step over rounds, and to PyTorch's how many times as long it takes as ours, by rounds. A round's
    step is the median of its steps."""
    batch = results["settings"]["batch"]
    for contest in results["contests"]:
        ours = next(side for side in contest["sides"] if side["name"] == OURS)
        for side in contest["sides"]:
            if not side["rounds"]:
                continue
            medians = [statistics.median(steps) for steps in side["rounds"]]
            side["step_ms"], side["step_ms_range"] = _median_and_range(medians)
            side["samples_per_second"] = 1e3 * batch / side["step_ms"]
            # Of rounds that both have: a side that fails is not run again.
            ratios = [theirs / statistics.median(own) for theirs, own in zip(medians, ours["rounds"])]
            if side is not ours and ratios:
                side["ratio"], side["ratio_range"] = _median_and_range(ratios)
    return results


def _heading(results):
    versions, machine, settings = results["versions"], results["machine"], results["settings"]
    libraries = [f"{name} {versions[key]}" for key, name in (("mkl", "MKL"), ("onednn", "oneDNN"), ("transformers", "transformers"),
                                                            ("cuda", "CUDA")) if versions.get(key)]
    tokens = f" rows of {settings['context']} tokens" if has_tokens(settings["model"]) else ""
    # Of the last minute before the first run.
    load = machine["load_before"]
    busy = f"; not idle when it began: load average {load:.1f}" if load > BUSY_LOAD else ""
    return [f"{versions['stagecoach']} beside PyTorch {versions['torch']} ({', '.join(libraries)}; Python {versions['python']}; "
            f"{'jemalloc' if versions['jemalloc'] else 'no jemalloc, which would be faster'})",
            f"{versions.get('gpu') or machine['cpu']}, {machine['cores']} cores, {results['date']}{busy}",
            f"Model {settings['model']}, fp32, batches of {settings['batch']}{tokens}; medians of {settings['rounds']} rounds of "
            f"{settings['repeats']} steps, and their ranges. Ratio: how many times as long PyTorch's step takes."]


def _rate(results):
    """Units of a sample, and their name."""
    settings = results["settings"]
    return (settings["context"], "tokens/s") if has_tokens(settings["model"]) else (1, "samples/s")


def _cells(side, units):
    """Time, throughput, ratio; the first says what failed."""
    if "step_ms" not in side:
        return [side.get("failed", "not run"), "", ""]
    low, high = side["step_ms_range"]
    cells = [f"{side['step_ms']:.1f} ({low:.1f}-{high:.1f})", f"{units * side['samples_per_second']:.1f}", ""]
    if "ratio" in side:
        low, high = side["ratio_range"]
        cells[2] = f"{side['ratio']:.2f} ({low:.2f}-{high:.2f})"
    if "failed" in side:
        cells[2] = f"then failed: {side['failed']}"
    return cells


def as_table(results):
    units, rate_name = _rate(results)
    lines = [*_heading(results), "", f"{'':42}  {'ms a step':>24}  {rate_name:>9}  ratio"]
    for contest in results["contests"]:
        lines.append(contest["title"])
        for side in contest["sides"]:
            time, rate, ratio = _cells(side, units)
            if rate:
                lines.append(f"  {side['name']:40}  {time:>24}  {rate:>9}  {ratio}".rstrip())
            else:
                lines.append(f"  {side['name']:40}  {time}")
    return "\n".join(lines)


def as_markdown(results):
    units, rate_name = _rate(results)
    lines = [*_heading(results), "", f"| | | ms a step | {rate_name} | ratio |", "|---|---|--:|--:|--:|"]
    for contest in results["contests"]:
        title = contest["title"]
        for side in contest["sides"]:
            cells = [cell.replace("|", "\\|") for cell in (title, side["name"], *_cells(side, units))]
            lines.append("| " + " | ".join(cells) + " |")
            title = ""
    return "\n".join(lines)
