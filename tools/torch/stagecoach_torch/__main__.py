"""The command line: see the package's own text, or docs/planner.md."""

import argparse
import sys

from stagecoach_torch.errors import UserError


def _rows(text):
    rows = [int(part) for part in text.split(",")]
    if not rows or any(row < 1 for row in rows) or sorted(set(rows)) != rows:
        raise argparse.ArgumentTypeError("expected ascending numbers of rows, such as 1,2,4")
    return rows


def _positive(text):
    if int(text) < 1:
        raise argparse.ArgumentTypeError("expected at least 1")
    return int(text)


def _parser():
    parser = argparse.ArgumentParser(prog="python -m stagecoach_torch",
                                     description="Profile PyTorch models for stagecoach plan, and run its plans.")
    commands = parser.add_subparsers(dest="command", required=True)
    profile = commands.add_parser("profile", help="measure the layers of a model")
    profile.add_argument("--rows", type=_rows, default=[1, 2, 4], metavar="N,...", help="of a micro-batch [1,2,4]")
    profile.add_argument("--repeats", type=_positive, default=20, metavar="N", help="of each measurement [20]")
    profile.add_argument("--beside", type=int, choices=range(64), default=0, metavar="N",
                         help="other processes that measure the same meanwhile, as devices on the cores of one machine compute [0]")
    profile.add_argument("-o", "--output", default="-", metavar="FILE", help="[standard output]")
    run = commands.add_parser("run", help="train by a plan, under torchrun")
    run.add_argument("plan", help="what stagecoach plan --json has printed")
    run.add_argument("schedule", help="what it has written to --export torch-lowered:FILE")
    run.add_argument("--steps", type=_positive, default=5, metavar="N", help="to measure, after two that warm up [5]")
    run.add_argument("--check", action="store_true", help="compare loss and gradients with one process's first")
    run.add_argument("--seed", type=int, default=1, metavar="N", help="of the parameters and the batch [1]")
    cluster = commands.add_parser("cluster", help="measure messages between processes, under torchrun")
    cluster.add_argument("--repeats", type=_positive, default=20, metavar="N", help="of each measurement [20]")
    cluster.add_argument("-o", "--output", default="-", metavar="FILE", help="[standard output]")
    for command in (profile, run):
        command.add_argument("module", metavar="MODULE[:FUNCTION]",
                             help="has make_model (or FUNCTION), make_batch(rows) and loss(output, target)")
        command.add_argument("--optimizer", choices=["adamw", "sgd"], default="adamw", help="[adamw]")
    for command in (profile, run, cluster):
        command.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="[cpu]")
    return parser


def _run(options, task):
    import torch.distributed

    from stagecoach_torch.plan import Plan
    from stagecoach_torch.run import run, start

    plan = Plan(options.plan, options.schedule)
    device = start(options.device)
    try:
        agrees = run(plan, task, device, options.steps, options.optimizer, options.seed, options.check)
        return 0 if agrees else 1
    finally:
        torch.distributed.destroy_process_group()


def _write(text, path):
    if path == "-":
        sys.stdout.write(text)
        return
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None


def _cluster(options):
    import torch.distributed

    from stagecoach_torch.cluster import cluster
    from stagecoach_torch.run import start

    device = start(options.device)
    try:
        text = cluster(device, options.repeats)
        if torch.distributed.get_rank() == 0:
            _write(text, options.output)
    finally:
        torch.distributed.destroy_process_group()


def main(arguments=None):
    options = _parser().parse_args(arguments)
    # Not before: --help needs no PyTorch.
    from stagecoach_torch.task import Task

    try:
        if options.command == "cluster":
            _cluster(options)
            return 0
        task = Task(options.module)
        if options.command == "run":
            return _run(options, task)
        from stagecoach_torch.profile import company, profile

        arguments = options.rows, options.optimizer, options.repeats, options.device
        if options.beside > 0 and options.device != "cpu":
            raise UserError("--beside is for CPU devices: those of several GPUs do not share memory")
        with company(options.beside, options.module, *arguments):
            text = profile(task, *arguments)
        _write(text, options.output)
        return 0
    except UserError as error:
        print(f"stagecoach_torch: {error}", file=sys.stderr)
        return 65


if __name__ == "__main__":
    sys.exit(main())
