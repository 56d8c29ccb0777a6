"""What is compared: contests, each of one row of Stagecoach's and others of the same work in PyTorch."""

import dataclasses
import json
import pathlib
import subprocess

WORKER = str(pathlib.Path(__file__).resolve().parent / "worker.py")
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb-v")
KINDS = ("one", *SCHEDULES, "ddp")
STAGES_OF_A_DEVICE = {"gpipe": 1, "1f1b": 1, "interleaved": 2, "zb-v": 2}
# Batch of each model, unless one is given. ResNet's layers and adapters are compared in one process alone.
MODELS = {"default": 512, "gpt2-124m": 8, "resnet18-small": 32, "qwen2.5-0.5b-lora": 1}
LORA = "-lora"  # the end of the name of a model that is frozen and has adapters of all matrices of its blocks
LORA_RANK = 16
OURS = "Stagecoach"


class UserError(Exception):
    """What the user asked for does not exist."""


@dataclasses.dataclass
class Side:
    name: str
    # Started together; the first prints the results.
    commands: list[list[str]]

    @property
    def is_ours(self):
        return self.name == OURS


@dataclasses.dataclass
class Contest:
    title: str
    kind: str
    threads: int  # of each process, or of each of our devices
    processes: int
    microbatches: int
    sides: list[Side]


def has_tokens(model):
    return model.startswith(("gpt2", "qwen"))


def count(number, noun, plural=None):
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def _our_side(options, kind, processes, threads, microbatches):
    flags = {"--model": options.model.removesuffix(LORA), "--devices": 1, "--microbatches": microbatches, "--batch": options.batch,
             "--repeats": options.repeats, "--layers": options.layers, "--width": options.width}
    if kind == "ddp":
        flags["--replicas"] = processes
    elif kind in SCHEDULES:
        flags |= {"--devices": processes, "--schedule": kind}
    if has_tokens(options.model):
        flags["--context"] = options.context
    if options.model.endswith(LORA):
        flags["--lora"] = f"rank={LORA_RANK}"
    if options.model.startswith("resnet"):
        flags["--data"] = "synthetic:10x3072x10"  # images of 3 x 32 x 32
    flags |= {"--device": "cuda"} if options.device == "cuda" else {"--threads-per-device": threads}
    words = [word for flag, value in flags.items() if value is not None for word in (flag, str(value))]
    return Side(OURS, [[options.program, "bench", *words, "--no-prediction", "--output", "json"]])


# PyTorch refuses to compile stages whose backward passes are split.
def _forms(options, kind):
    forms = [form for form in options.forms if form == "eager" or kind != "zb-v"]
    layouts = [(), ("--channels-last",)] if options.model.startswith("resnet") else [()]
    return [(form, layout) for form in forms for layout in layouts]


def _peers(options, kind, processes, threads, microbatches, cut):
    library = {"one": "PyTorch", "ddp": "DistributedDataParallel"}.get(kind, "torch.distributed.pipelining")
    for form, layout in _forms(options, kind):
        flags = {"--model": options.model, "--work": kind, "--form": form, "--batch": options.batch, "--microbatches": microbatches,
                 "--threads": threads, "--device": options.device, "--steps": options.repeats, "--world": processes,
                 "--layers": options.layers, "--width": options.width, "--context": options.context, "--cut": cut,
                 "--timeout": options.timeout}
        words = [word for flag, value in flags.items() if value is not None for word in (flag, str(value))]
        commands = [[options.python, WORKER, *words, *layout, "--rank", str(rank)] for rank in range(processes)]
        yield Side(", ".join([library, form, *(["channels last"] if layout else [])]), commands)


def planned_cut(program, model, context, processes, batch, microbatches, schedule):
    """The layers of each stage in PyTorch's chain, by Stagecoach's plan: of GPT-2, whose blocks are two layers of ours."""
    command = [program, "plan", "--model", model, "--context", str(context), "--devices", str(processes), "--batch", str(batch),
               "--microbatches", str(microbatches), "--schedule", schedule, "--json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise UserError(f"--program: {error}") from None
    if done.returncode != 0:
        raise UserError(f"no plan to cut by: {done.stderr.strip()}")
    layers = [stage["layers"] for stage in json.loads(done.stdout)["stages"]]
    ends, residuals, others = [0], 0, 0
    for stage in layers:
        residuals += sum(name.startswith("residual") for name in stage)
        others += sum(not name.startswith("residual") for name in stage)
        # A cut within a block moves behind it, away from the head.
        ends.append(others + (residuals + 1) // 2)
    cut = [end - begin for begin, end in zip(ends, ends[1:])]
    if min(cut) < 1:
        raise UserError(f"the plan of {schedule} cuts within a block: give a --cut")
    return ",".join(map(str, cut))


def _cut(options, kind, processes, microbatches):
    """None: equal numbers of layers."""
    if kind not in SCHEDULES or options.cut == "equal":
        return None
    if options.cut == "planned":
        return planned_cut(options.program, options.model, options.context, processes, options.batch, microbatches, kind)
    stages = processes * STAGES_OF_A_DEVICE[kind]
    if len(options.cut.split(",")) != stages:
        raise UserError(f"--cut {options.cut} does not have the {stages} stages of {kind}: choose schedules by --only")
    return options.cut


def plan(options):
    """Returns all contests, in order."""
    work = []  # kind, processes, threads, micro-batches
    if "one" in options.only:
        work += [("one", 1, threads, 1) for threads in options.threads]
    many = options.devices > 1 and not options.model.startswith("resnet") and not options.model.endswith(LORA)
    for kind in KINDS[1:]:
        if many and kind in options.only:
            work += [(kind, options.devices, options.threads_per_device, microbatches) for microbatches in options.microbatches
                     if kind != "ddp" or microbatches % options.devices == 0]
    if not work:
        raise UserError("nothing to compare: pipelines and ddp want two --devices, and another model than a ResNet or one with adapters")
    contests = []
    for kind, processes, threads, microbatches in work:
        if options.batch % microbatches != 0:
            raise UserError(f"a batch of {options.batch} is not {microbatches} equal micro-batches")
        each = "" if options.device == "cuda" else f" of {count(threads, 'thread')}"
        parts = count(microbatches, "micro-batch", "micro-batches")
        title = {"one": f"one device{each}", "ddp": f"{processes} replicas{each}, {parts}"}.get(
            kind, f"{kind}, {processes} devices{each}, {parts}")
        cut = _cut(options, kind, processes, microbatches)
        sides = [_our_side(options, kind, processes, threads, microbatches), *_peers(options, kind, processes, threads, microbatches, cut)]
        contests.append(Contest(title, kind, threads, processes, microbatches, sides))
    return contests
