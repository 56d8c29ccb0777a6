"""The steps of tools/gpu_check, the most telling first."""

import enum
import math
import pathlib
import re
import shutil
import tempfile
import time

from . import build, libraries, works
from .check import ANY_STATUS, CannotGoOn, Figure, Step, StepFailed, StepSkipped, StepTimedOut
from .model_steps import ModelSteps
from .process import json_lines, output_of

# What several NCCL ranks on one GPU need: each to look like a host of its own, and nothing but
# sockets between them. No measure of speed.
_NCCL_ON_ONE_GPU = {
    "NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "=lo", "NCCL_IB_DISABLE": "1",
    "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_NVLS_ENABLE": "0",
    "NCCL_MNNVL_ENABLE": "0", "NCCL_RAS_ENABLE": "0", "NCCL_MAX_CTAS": "2",
}
_FASHION_MNIST = "share/datasets/fashion-mnist"
_NCCL_RANKS = 4
# Orders that differ in which messages are one group, with two stages on a device or one.
_SCHEDULES_OF_NCCL = ("1f1b", "dualpipe-v", "interleaved", "auto")
# Groups of steps that --only may name. Each fits into the minutes of all.
_MODELS, _ADAPTERS, _IMAGES, _OTHERS = "transformers", "adapters", "images", "others"
# Their tests tell most, and are listed first.
_FIRST_TESTS = ("cuda_ops_gpu_test", "engine_cuda_gpu_test")
# A test program runs as so many processes at the same time.
_SHARDS = 4
# Under compute-sanitizer a test takes a hundred times as long: one of so many is run.
_SANITIZED_SHARE = 25


def _tiny_run(epochs=1, layers=4):
    # Sizes that fit no tile.
    return ["--data", "synthetic:192x37x5", "--layers", str(layers), "--width", "76",
            "--global-batch-size", "48", "--epochs", str(epochs)]


class Programs(enum.Enum):
    """Where the programs come from."""

    PACKED = "the archive"
    TO_BUILD = "a build that is the first step"
    BUILT = "a build that was made before"


class GpuCheck:
    """What the steps share."""

    def __init__(self, root, build_dir, archive_path, tuning, python="python3",
                 programs=Programs.TO_BUILD, small=False):
        self.root = pathlib.Path(root)
        self.build_dir = pathlib.Path(build_dir)
        self.archive_path = pathlib.Path(archive_path)
        self.prefix = self.build_dir.parent / "prefix"
        self.python = python
        self.programs = programs
        self.environment = {}  # of programs, so that they find their libraries
        self.small = ["--small"] if small else []
        self.tuning = pathlib.Path(tuning)  # which algorithms are fastest is found out once
        self.facts = {"date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())}
        self.gpus = 1
        self.models = ModelSteps(self, works.works(small))

    def steps(self):
        every = (_MODELS, _ADAPTERS, _IMAGES, _OTHERS)
        first = {
            Programs.PACKED: [Step("unpack", "Unpack the programs built beforehand", 10, self.unpack,
                                   is_needed=True)],
            Programs.TO_BUILD: [Step("build", "Configure and build for this GPU", 240, self.build,
                                     is_needed=True)],
            Programs.BUILT: [],
        }
        models = [
            Step("devices", "What this machine has", 3, self.devices, every),
            Step("parity", "Tests on the GPU, against the CPU", 70, self.parity,
                 (_MODELS, _IMAGES)),
            Step("gpt2", "GPT-2 124M, steps of 64 x 1,024 tokens", 28, self.models.gpt2),
            Step("attention", "Attention, forward and backward", 25, self.models.attention),
            Step("generate", "GPT-2 124M continues a text", 22, self.models.generate),
            Step("step", "Default network, a step of batch 4,096 on one device", 10,
                 self.bench("step")),
            Step("torch", "The same in PyTorch", 79, self.models.torch),
        ]
        adapters = [
            Step("llama", "A Llama of 1.1 B, here and in PyTorch", 80, self.models.llama,
                 is_extra=True),
            Step("lora", "Adapters of 8 blocks of Llama 3 8B, here and in PyTorch", 150,
                 self.models.lora, is_extra=True),
            Step("quantized", "Few rows by weights in 4 and 8 bits", 15, self.bench("quantized"),
                 is_extra=True),
        ]
        images = [
            Step("resnets", "ResNet-50 and ResNet-18, steps of 256 and 512 images", 70,
                 self.models.resnets, is_extra=True),
            Step("torch-resnets", "The same in PyTorch", 100, self.models.torch_resnets,
                 is_extra=True),
        ]
        others = [
            Step("train", "stagecoach train: loss, accuracy, memory", 10, self.train),
            Step("nccl", "Four processes that exchange by NCCL", 14, self.nccl),
            Step("stages", "Four stages on one GPU against one stage", 10, self.bench("stages")),
            Step("kernels", "AdamW and LayerNorm against copies", 4, self.bench("kernels")),
            Step("profile", "Kernels of a step of GPT-2, the Llama and ResNet-50", 75,
                 self.models.profile, is_extra=True),
            Step("memcheck", "compute-sanitizer memcheck", 10, self.sanitizer("memcheck"),
                 is_extra=True),
            Step("racecheck", "compute-sanitizer racecheck", 8, self.sanitizer("racecheck"),
                 is_extra=True),
            Step("synccheck", "compute-sanitizer synccheck", 7, self.sanitizer("synccheck"),
                 is_extra=True),
            Step("initcheck", "compute-sanitizer initcheck", 7, self.sanitizer("initcheck"),
                 is_extra=True),
        ]
        for group, steps in zip(every, (models, adapters, images, others)):
            for step in steps:
                step.groups = step.groups or (group,)
        return first[self.programs] + models + adapters + images + others

    @property
    def stagecoach(self):
        return self.build_dir / build.STAGECOACH

    def unpack(self, log):
        self.environment, commit = build.unpack_programs(self.archive_path, self.prefix, self.python)
        self.facts["programs"] = f"packed, of {commit}"
        self.build_dir = self.prefix / "programs"
        log.say(f"with {self.environment}")

    def build(self, log):
        build.configure_and_build(log, self.root, self.build_dir, self.archive_path, self.prefix,
                                  self.python)

    def devices(self, log):
        for command in (["nvidia-smi"], ["nvcc", "--version"], ["c++", "--version"]):
            log.say(output_of(command))
        commit = output_of(["git", "-C", str(self.root), "describe", "--always", "--dirty"])
        self.facts["commit"] = commit.strip() or "unknown"
        try:
            _, text = self.run(log, [self.stagecoach, "devices", "--json"])
        except (StepFailed, StepTimedOut) as error:
            raise CannotGoOn(str(error) or "stagecoach does not list this machine's devices in time"
                             ) from None
        self.facts.update(libraries.taken_libraries(output_of(
            ["ldd", self.build_dir / build.BACKEND], self.environment)))
        answer = (json_lines(text) or [{}])[-1]
        cuda = answer.get("cuda", {})
        gpus = [device for device in answer.get("devices", []) if device.get("kind") == "cuda"]
        for name in ("driver", "runtime", "cublaslt", "cudnn", "nccl"):
            if cuda.get(name):
                self.facts[name] = cuda[name]
        if not gpus:
            raise CannotGoOn(f"there is no usable GPU: {cuda.get('reason', 'no reason is known')}")
        self.gpus = len(gpus)
        self.facts["gpus"] = ", ".join(str(gpu.get("name", "?")) for gpu in gpus)

    def run(self, log, command, env=None, **options):
        """Log.run(), for programs that need what packed ones do."""
        return log.run(command, {**self.environment, **(env or {})}, **options)

    def gpu_test_programs(self, log):
        """The programs of all tests with the label gpu."""
        if self.programs == Programs.PACKED:
            found = (self.build_dir / "tests").rglob("*")  # others are not packed
            programs = sorted(str(file) for file in found if file.is_file())
        else:
            programs = build.gpu_tests(log.run(build.list_gpu_tests(self.build_dir))[1])
        if not programs:
            raise StepFailed("no built test has the label gpu")
        return sorted(programs, key=lambda program: pathlib.Path(program).name not in _FIRST_TESTS)

    def parity(self, log):
        # Not a process for each test, which would spend its time on starting CUDA.
        programs = self.gpu_test_programs(log)
        environments = [{**self.environment, "STAGECOACH_REQUIRE_GPU": "1",
                         "GTEST_TOTAL_SHARDS": str(_SHARDS), "GTEST_SHARD_INDEX": str(shard)}
                        for shard in range(_SHARDS)]
        answers = log.run_together(
            [[program, "--gtest_brief=1"] for program in programs for _ in range(_SHARDS)],
            environments * len(programs), accept=ANY_STATUS)
        failed = []
        for i, program in enumerate(programs):
            name = pathlib.Path(program).name
            of_shards = answers[i * _SHARDS:(i + 1) * _SHARDS]
            text = "\n".join(text for _, text in of_shards)
            status = next((status for status, _ in of_shards if status != 0), 0)
            passed, skipped = _count(text, "PASSED"), _count(text, "SKIPPED")
            log.figures.append(Figure(f"{name}: tests passed", passed))
            if skipped:
                log.figures.append(Figure(f"{name}: tests skipped", skipped))
            if status != 0 or passed + skipped == 0:
                failed.append(f"{name} ({_failures(text) or f'status {status}, {passed} passed'})")
        if failed:
            raise StepFailed("; ".join(failed))

    def bench(self, section):
        def run(log):
            try:
                self.run(log, [self.build_dir / build.CUDA_BENCH, "--json", "--tuning", self.tuning,
                               *self.small, section])
            finally:
                for line in json_lines(log.path.read_text(errors="replace")):
                    if not {"name", "value"} <= line.keys():
                        continue
                    self.models.take(line.get("id", ""), line["value"])
                    log.figures.append(Figure(line["name"], line["value"], line.get("unit", ""),
                                              line.get("target", ""), line.get("met")))
            if not log.figures:
                raise StepFailed("cuda_bench printed no figure")
        return run

    def gpu_list(self, stages):
        """The GPU of each stage: all on one, unless there are enough."""
        return list(range(stages)) if self.gpus >= stages else [0] * stages

    def on_gpus(self, stages):
        """Flags of a command that runs so many stages."""
        gpus = ",".join(str(gpu) for gpu in self.gpu_list(stages))
        # It would take long for figures that are meaningless.
        tuning = "none" if self.small else self.tuning
        return ["--device", "cuda", "--devices", stages, "--gpus", gpus, "--tuning", tuning]

    def train_command(self, stages, *more):
        return [self.stagecoach, "train", "--json", *self.on_gpus(stages), *more]

    def data(self):
        """Fashion-MNIST where it is, or made-up data of the same size."""
        for base in (pathlib.Path("/usr"), self.prefix):
            if (base / _FASHION_MNIST).is_dir():
                return ["--data", str(base / _FASHION_MNIST)]
        return ["--data", "synthetic:10000x784x10"]

    def train(self, log):
        run = _tiny_run(epochs=2) if self.small else [*self.data(), "--epochs", "2"]
        self.facts["data of train"] = run[1]
        for precision in ("fp32", "bf16"):
            command = self.train_command(4, "--precision", precision, *run)
            log.figures += check_training(json_lines(self.run(log, command)[1]), precision)

    def nccl(self, log):
        # The same bits for every schedule.
        run = [*_tiny_run(layers=10), "--micro-batches", "8", "--timeout", "30"]
        _, text = self.run(log, self.train_command(_NCCL_RANKS, "--exchange", "copies", *run))
        expected = hashes(json_lines(text))
        for schedule in _SCHEDULES_OF_NCCL:
            ranks = self.nccl_run(log, schedule, run, expected)
            log.figures.append(Figure(f"{schedule}: ranks that report the bits of one process",
                                      ranks))

    def nccl_run(self, log, schedule, run, expected):
        """How many ranks report the expected hashes. StepFailed if one reports others."""
        ranks = _NCCL_RANKS
        one_gpu = self.gpus < ranks
        with tempfile.TemporaryDirectory(prefix="gpu_check.") as place:
            environments = [{
                **self.environment, "STAGECOACH_RANK": str(rank), "STAGECOACH_RANKS": str(ranks),
                "STAGECOACH_RENDEZVOUS": f"file:{place}",
                **({"NCCL_HOSTID": f"stage{rank}", **_NCCL_ON_ONE_GPU} if one_gpu else {}),
            } for rank in range(ranks)]
            command = self.train_command(ranks, "--exchange", "nccl", "--schedule", schedule, *run)
            answers = log.run_together([command] * ranks, environments, accept=ANY_STATUS)
        if one_gpu and any("Duplicate GPU" in text for _, text in answers):
            raise StepSkipped("NCCL refuses several ranks on one GPU")
        for rank, (status, text) in enumerate(answers):
            if status != 0:
                last = (text.strip().splitlines() or ["no output"])[-1]
                raise StepFailed(f"{schedule}: rank {rank} ended with status {status}: {last}")
        found = [hashes(json_lines(text)) for _, text in answers]
        if not any(found):
            raise StepFailed(f"{schedule}: no rank reported the end of its run")
        if any(one and one != expected for one in found):
            raise StepFailed(f"{schedule}: the losses or parameters differ from those of one "
                             "process")
        return sum(map(bool, found))

    def sanitizer(self, tool):
        def run(log):
            program = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
            if not pathlib.Path(program).exists():
                raise StepSkipped("compute-sanitizer is not installed")
            sanitize = [program, "--tool", tool, "--error-exitcode", "99"]
            # Libraries try calls that may fail, and we ask whether events were reached.
            if tool == "memcheck":
                sanitize += ["--report-api-errors", "no"]
            # What cuBLASLt's kernels do with shared memory is not for us to judge.
            if tool == "racecheck" and "--kernel-name" in log.run([program, "--help"],
                                                                  accept=ANY_STATUS)[1]:
                sanitize += ["--kernel-name", "kernel_substring=stagecoach"]
            commands = [self.train_command(2, *_tiny_run(), "--precision", precision)
                        for precision in ("fp32", "bf16")]
            commands += [[test] for test in self.gpu_test_programs(log)
                         if "/tests/kernels/" in test]
            gave_up, clean = [], 0
            for command in commands:
                name = pathlib.Path(str(command[0])).name
                status, text = self.run(
                    log, sanitize + command,
                    {"STAGECOACH_REQUIRE_GPU": "1", "GTEST_TOTAL_SHARDS": str(_SANITIZED_SHARE),
                     "GTEST_SHARD_INDEX": "0"}, accept=ANY_STATUS)
                if "Device not supported" in text:
                    raise StepSkipped("compute-sanitizer does not support this device")
                if "Internal Sanitizer Error" in text:  # which cuBLASLt's kernels bring about
                    gave_up.append(name)
                    continue
                if status != 0 or " SUMMARY: " not in text:
                    raise StepFailed(f"status {status} from {name}" if status else
                                     f"no summary of what {name} did")
                clean += 1
                log.figures = [Figure("programs without a finding", clean)]
            if gave_up:
                raise StepSkipped(f"Internal Sanitizer Error in {', '.join(gave_up)}; {clean} other "
                                  "programs without a finding")
        return run


def _count(text, result):
    """How many tests the processes of a program of GoogleTest say have PASSED or were SKIPPED."""
    return sum(map(int, re.findall(rf"(?m)^\[ +{result} +\] (\d+) tests?\b", text)))


def _failures(text):
    names = [line.split("]")[1].split()[0].rstrip(",") for line in text.splitlines()
             if line.startswith("[  FAILED  ]") and "." in line]
    distinct = list(dict.fromkeys(names))
    return f"{len(distinct)} failed, first {distinct[0]}" if distinct else ""


def hashes(events):
    """The fingerprints of a run that `stagecoach train --json` reports; None without an end."""
    for event in events:
        if event.get("event") == "end":
            return event["step_losses_hash"], event["parameters_hash"]
    return None


def check_training(events, precision):
    """Figures of a run; StepFailed unless the loss fell and the memory was as predicted."""
    epochs = [event for event in events if event.get("event") == "epoch"]
    ends = [event for event in events if event.get("event") == "end"]
    if len(epochs) < 2 or not ends:
        raise StepFailed(f"{precision}: the run did not report two epochs and an end")
    losses = [epoch["loss"] for epoch in epochs]
    if not all(isinstance(loss, float) and math.isfinite(loss) for loss in losses):
        raise StepFailed(f"{precision}: a loss is not a number")
    if losses[-1] >= losses[0]:
        raise StepFailed(f"{precision}: the loss rose from {losses[0]} to {losses[-1]}")
    for device in ends[0]["devices"]:
        if device["measured_peak_bytes"] != device["predicted_peak_bytes"]:
            raise StepFailed(f"{precision}: {device['device']} held "
                             f"{device['measured_peak_bytes']} bytes, predicted were "
                             f"{device['predicted_peak_bytes']}")
        graphs = device.get("graphs", {})
        if graphs.get("plain", 0) > 0:
            raise StepFailed(f"{precision}: {device['device']} issued {graphs['plain']} actions "
                             f"without a graph: {graphs['why_plain']}")
    replayed = sum(d.get("graphs", {}).get("replayed", 0) for d in ends[0]["devices"])
    figures = [Figure(f"{precision}: actions issued as graphs", replayed)]
    figures += [Figure(f"{precision}: loss of epoch {i + 1}", loss) for i, loss in enumerate(losses)]
    figures.append(Figure(f"{precision}: test accuracy", epochs[-1]["test_accuracy"]))
    figures.append(Figure(f"{precision}: samples/s", epochs[-1]["samples_per_second"]))
    figures.append(Figure(f"{precision}: memory of all devices, measured = predicted",
                          sum(d["measured_peak_bytes"] for d in ends[0]["devices"]) / 1e6, "MB"))
    # Devices that share a GPU report the same.
    memory = [device["accelerator"] for device in ends[0]["devices"] if "accelerator" in device]
    for name, field in [("context", "context_bytes"), ("libraries", "library_bytes")]:
        figures += [Figure(f"{precision}: memory of {name}", one[field] / 1e6, "MB")
                    for one in memory[:1]]
    return figures
