"""The steps that train and run models, here and in PyTorch."""

import contextlib
import pathlib
import tempfile

from . import build, kernel_times, works
from .check import ANY_STATUS, Figure, StepFailed, StepSkipped, StepTimedOut
from .process import json_lines

# Of torch_step.py.
_NO_TORCH, _NO_LIBRARY = 77, 78
# Works, forms and precisions of torch_step.py, which prepare side by side and are timed in turn.
_TORCH = (("gpt2", "compiled", "bf16"), ("gpt2", "compiled-cudnn", "bf16"),
          ("attention", "flash", "bf16"), ("attention", "cudnn", "bf16"),
          ("generate", "cuda-graphs", "bf16"), ("generate", "compiled", "bf16"),
          ("generate", "hugging-face", "bf16"),
          ("network", "cuda-graphs", "bf16"), ("network", "compiled", "tf32"))
# Two of these would not fit into the memory of one GPU.
_TORCH_LLAMA = (("llama", "compiled", "bf16"),)
_TORCH_ADAPTERS = (("adapters", "compiled", "bf16"), ("adapters", "eager", "bf16"))
_TORCH_RESNETS = (("resnet50", "compiled", "bf16"), ("resnet18", "compiled", "bf16"),
                  ("resnet18", "cuda-graphs", "bf16"))
_TORCH_ENVIRONMENT = {"TORCHINDUCTOR_COMPILE_THREADS": "4"}  # of each of these processes
# How many times as fast as the fastest form of PyTorch we are to be.
_TARGETS = {works.step_of(works.NETWORK, "bf16"): 1.5, works.step_of(works.NETWORK, "tf32"): 1.2}
_TARGET = 1.0  # of all others
_SHOWN_KERNELS = 12  # of a model
# Print the times of each tile of attention, and of cuDNN's engines.
_TIMES_TESTS = ("cuda_kernels_gpu_test", "cuda_ops_gpu_test")


class ModelSteps:
    """What these steps share, with the GpuCheck that they are part of."""

    def __init__(self, check, sizes):
        self.check = check
        self.sizes = sizes
        self.ours = {}  # milliseconds, by what is timed (see works)
        self._of_bench = {f"step_{precision}": works.step_of(works.NETWORK, precision)
                          for precision in ("bf16", "tf32")}
        self._of_bench |= {"_".join(map(str, ("attention", direction, *shape))):
                           works.attention_of(shape, direction)
                           for shape in sizes.attention for direction in ("forward", "backward")}

    def take(self, bench_id, ms):
        """Keeps a figure of cuda_bench if PyTorch has one beside it."""
        if bench_id in self._of_bench:
            self._take_ours(self._of_bench[bench_id], ms)

    def _take_ours(self, what, ms):
        self.ours[what] = min(ms, self.ours.get(what, ms))

    # ---- Training.

    def gpt2(self, log):
        model = self.sizes.gpt2
        one_stage = [lambda parts=parts: self._train(log, works.GPT2, model, 1, parts)
                     for parts in (1, 4)]
        four_stages = [lambda offload=offload: self._train(log, works.GPT2, model, 4, 8, offload=offload)
                       for offload in ("none", "full", "optimizer")]
        _all_of([*one_stage, *four_stages])

    def llama(self, log):
        model = self.sizes.llama
        runs = [lambda recompute=recompute: self._train(log, works.LLAMA, model, 1, 1, recompute)
                for recompute in ("none", "full")]
        _all_of([*runs, lambda: self._beside_torch(log, _TORCH_LLAMA)])

    def lora(self, log):
        """Of weights in bfloat16, and in 4 bits."""
        runs = [lambda quantize=quantize: self._train(
            log, works.ADAPTERS, self.sizes.adapters, 1, 1, quantize=quantize)
            for quantize in (None, "nf4")]
        _all_of([*runs, lambda: self._beside_torch(log, _TORCH_ADAPTERS)])

    def resnets(self, log):
        """Batch norms compute what they do from a micro-batch: stages are compared at as many."""
        runs = [(works.RESNET50, self.sizes.resnet50, 1, 1), (works.RESNET50, self.sizes.resnet50, 1, 8),
                (works.RESNET50, self.sizes.resnet50, 4, 8), (works.RESNET18, self.sizes.resnet18, 1, 1)]
        _all_of([lambda run=run: self._train(log, *run) for run in runs])

    def torch_resnets(self, log):
        self._beside_torch(log, _TORCH_RESNETS)

    def _bench(self, log, what, model, stages, micro_batches, recompute="none", quantize=None,
               offload="none", steps=None, env=None):
        """What is measured, and the row of `stagecoach bench`, which trains on random samples."""
        warm_up, repeats = steps or self.sizes.bench_steps
        with tempfile.TemporaryDirectory(prefix="gpu_check.") as place:
            if isinstance(model, works.ConvNet):
                of_data = ["--data", model.data]
                if not model.model:
                    pathlib.Path(place, "model.toml").write_text(model.model_file())
            else:
                of_data = ["--context", model.context]
                of_data += (["--lora", f"rank={works.ADAPTER_RANK}"] if what == works.ADAPTERS else
                            ["--clip-norm", "1"])
                of_data += ["--quantize", quantize] if quantize else []
            command = [self.check.stagecoach, "bench", *self.check.on_gpus(stages),
                       "--model", model.model or pathlib.Path(place, "model.toml"),
                       "--global-batch-size", model.batch, "--micro-batches", micro_batches, *of_data,
                       "--precision", "bf16", "--schedule", "1f1b", "--recompute", recompute,
                       *(["--offload-optimizer"] if offload == "optimizer" else ["--offload", offload]),
                       "--no-prediction", "--warm-up", warm_up, "--repeats", repeats,
                       "--output", "json"]
            _, text = self.check.run(log, command, env, accept=ANY_STATUS)
        name = ", ".join(filter(None, (
            f"{what}, {micro_batches} x {model.batch // micro_batches}",
            f"{stages} stages" if stages > 1 else "",
            f"recompute {recompute}" if recompute != "none" else "",
            f"offload {offload}" if offload != "none" else "", quantize)))
        row = next((row for report in json_lines(text) for row in report.get("rows", [])), {})
        if "step_ms" not in row:
            last = (text.strip().splitlines() or ["no output"])[-1]
            raise StepFailed(f"{name}: {row.get('error', last)}")
        return name, row

    def _train(self, log, what, model, stages, micro_batches, recompute="none", quantize=None,
               offload="none"):
        """Figures of a model's training."""
        name, row = self._bench(log, what, model, stages, micro_batches, recompute, quantize, offload)
        is_image = isinstance(model, works.ConvNet)
        unit, rate = (("images", "samples_per_second") if is_image else
                      ("tokens", "tokens_per_second"))
        log.figures += [
            Figure(f"{name}: a step", row["step_ms"], "ms"),
            Figure(f"{name}: {unit}/s", row[rate]),
            Figure(f"{name}: of peak", row["peak_share"]),
            Figure(f"{name}: memory of the fullest device", row["peak_bytes"] / 1e9, "GB")]
        if quantize is None and stages == 1 and (micro_batches == 1 or not is_image):
            self._take_ours(works.step_of(what, "bf16"), row["step_ms"])
        if row["peak_bytes"] != row["predicted_peak_bytes"]:
            raise StepFailed(f"{name}: held {row['peak_bytes']} bytes, predicted were "
                             f"{row['predicted_peak_bytes']}")

    def profile(self, log):
        """Where the time of a step goes: the longest kernels of each model."""
        recorder = self.check.build_dir / build.KERNEL_TIMES
        if not recorder.exists():
            raise StepSkipped(f"there is no {recorder.name}, which needs CUPTI")
        models = ((works.GPT2, self.sizes.gpt2), (works.LLAMA, self.sizes.llama),
                  (works.RESNET50, self.sizes.resnet50))
        _all_of([lambda one=one: self._profile(log, recorder, *one) for one in models])

    def _profile(self, log, recorder, what, model):
        steps = 2
        with tempfile.TemporaryDirectory(prefix="gpu_check.") as place:
            times = pathlib.Path(place, "times.jsonl")
            name, row = self._bench(log, what, model, 1, 1, steps=(2, steps), env={
                "CUDA_INJECTION64_PATH": recorder, "STAGECOACH_KERNEL_TIMES": times})
            ran = kernel_times.of_last(kernel_times.read(times), steps * row["step_ms"])
        if not ran:
            raise StepSkipped("CUPTI recorded nothing")
        log.figures.append(Figure(f"{name}: busy, of {row['step_ms']:.4g} ms",
                                  kernel_times.busy_ms(ran) / steps, "ms"))
        found = kernel_times.sums(ran)
        for kernel, calls, ms in found:
            log.say(f"{ms / steps:9.4f} ms {calls / steps:7.1f} calls  {kernel}")
        log.figures += [Figure(f"{what}: {kernel}", ms / steps, "ms")
                        for kernel, _, ms in found[:_SHOWN_KERNELS]]

    # ---- Attention.

    def attention(self, log):
        _all_of([lambda: self.check.bench("attention")(log), lambda: self._kernels(log)])

    def _kernels(self, log):
        """Figures of each instance of the kernels and of each engine, which no command line reaches."""
        programs = [program for program in self.check.gpu_test_programs(log)
                    if pathlib.Path(program).name in _TIMES_TESTS]
        if not programs:
            raise StepFailed(f"there is no {_TIMES_TESTS[0]}")
        for program in programs:
            _, text = self.check.run(log, [program, "--gtest_also_run_disabled_tests",
                                           "--gtest_filter=*.DISABLED_*"])
            for line in text.splitlines():
                name, _, time = line.rpartition(": ")
                if (": tile " in name or ": by " in name) and time.endswith(" ms"):
                    log.figures.append(Figure(name, float(time.removesuffix(" ms")), "ms"))

    # ---- Generation.

    def generate(self, log):
        _all_of([lambda: self._continue(log), lambda: self.check.bench("generate")(log)])

    def _continue(self, log):
        """Continues a text after a short training, whose checkpoint the model is read from."""
        generation, model = self.sizes.generation, self.sizes.generation.model
        with tempfile.TemporaryDirectory(prefix="gpu_check.") as place:
            text, prompt, run = (pathlib.Path(place, name)
                                 for name in ("text.txt", "prompt.txt", "run"))
            words = " ".join(map(str, range(model.batch * model.context)))
            text.write_text(words[:2 * model.batch * model.context])
            prompt.write_text(words[:generation.prompt])
            self.check.run(log, self.check.train_command(
                1, "--precision", "bf16", "--model", model.model, "--context", model.context,
                "--data", text, "--tokenizer", "bytes", "--global-batch-size", model.batch // 4,
                "--micro-batches", "1", "--steps", "2",
                "--eval-rows", "1", "--clip-norm", "1", "--checkpoint", run))
            _, printed = self.check.run(log, [
                self.check.stagecoach, "generate", "--json", *self.check.on_gpus(1),
                "--precision", "bf16", "--checkpoint", run, "--prompt-file", prompt,
                "--tokens", generation.tokens, "--temperature", "0"])
        end = next((one for one in json_lines(printed) if one.get("event") == "end"), None)
        if end is None or end["tokens"] != generation.tokens:
            raise StepFailed("not all tokens were generated")
        self._take_ours(works.TOKEN, 1e3 / end["tokens_per_second"])
        log.figures += [
            Figure(f"{works.GPT2}: tokens/s, one after the other", end["tokens_per_second"]),
            Figure(f"{works.GPT2}: tokens/s of the prompt", end["prompt_tokens_per_second"])]
        for device in end["devices"]:
            if device["measured_peak_bytes"] != device["predicted_peak_bytes"]:
                raise StepFailed(f"{device['device']} held {device['measured_peak_bytes']} bytes, "
                                 f"predicted were {device['predicted_peak_bytes']}")

    # ---- PyTorch.

    def torch(self, log):
        self._beside_torch(log, _TORCH)

    def _beside_torch(self, log, forms):
        """Metrics of PyTorch, and of it beside ours. Each form is a process of its own.

        StepFailed or StepTimedOut if one has not answered; those of the others count.
        """
        begin = log.path.stat().st_size
        statuses = [None] * len(forms)
        with tempfile.NamedTemporaryFile(prefix="gpu_check.") as turn:
            commands = [[self.check.python, self.check.root / "tools/gpu/torch_step.py", work, form,
                         "--precision", precision, "--turn", turn.name, *self.check.small]
                        for work, form, precision in forms]
            # An answer counts even if its process does not end.
            with contextlib.suppress(StepTimedOut):
                found = log.run_together(commands, [_TORCH_ENVIRONMENT] * len(forms), ANY_STATUS)
                statuses = [status for status, _ in found]
        if all(status == _NO_TORCH for status in statuses):
            raise StepSkipped(f"{self.check.python} has no PyTorch that sees a GPU")
        answers = {}
        for answer in json_lines(log.path.read_bytes()[begin:].decode(errors="replace")):
            form = tuple(answer.get(key) for key in ("work", "form", "precision"))
            answers.setdefault(form, []).append(answer)
        fastest = self._show_torch(log, [one for form in forms for one in answers.get(form, [])])
        self._compare(log, fastest)
        _check_answers(forms, answers, statuses)

    def _show_torch(self, log, answers):
        """The least milliseconds by what is timed."""
        fastest = {}
        for answer in answers:
            self.check.facts["torch"] = answer.get("torch", "unknown")
            if "ms" not in answer:
                continue
            what, ms = answer["what"], answer["ms"]
            others = "" if answer.get("alone", True) else ", beside others"
            name = f"PyTorch {answer['form']}{others}: {what}"
            log.figures.append(Figure(name, ms, "ms"))
            for unit in ("tokens", "images"):
                if f"{unit}_per_second" in answer:
                    log.figures.append(Figure(f"{name}, {unit}/s", answer[f"{unit}_per_second"]))
            if "peak_bytes" in answer:
                log.figures.append(Figure(f"{name}, memory", answer["peak_bytes"] / 1e9, "GB"))
            fastest[what] = min(ms, fastest.get(what, ms))
        return fastest

    def _compare(self, log, fastest):
        for what, ms in fastest.items():
            if what not in self.ours:
                continue
            ratio, target = ms / self.ours[what], _TARGETS.get(what, _TARGET)
            log.figures.append(Figure(
                f"{what}: {self.ours[what]:.4g} ms, PyTorch {ms:.4g} ms: ratio", ratio, "",
                f">= {target}", ratio >= target))


def _check_answers(forms, answers, statuses):
    errors, late = [], []
    for form, status in zip(forms, statuses):
        name = " ".join(form)
        reasons = [answer["error"] for answer in answers.get(form, []) if "error" in answer]
        if reasons:
            errors.append(f"{name}: {reasons[0]}")
        elif status is None and form not in answers:
            late.append(name)
        elif status not in (None, 0, _NO_LIBRARY) or (status == 0 and form not in answers):
            errors.append(f"{name}: status {status}, and no figure")
    if errors:
        raise StepFailed("; ".join(errors + [f"{name}: no answer in time" for name in late]))
    if late:
        raise StepTimedOut(f"no answer from {', '.join(late)}")


def _all_of(runs):
    """Runs all of them, even if one fails. StepFailed with all reasons."""
    errors = []
    for run in runs:
        try:
            run()
        except StepFailed as error:
            errors.append(str(error))
    if errors:
        raise StepFailed("; ".join(errors))
