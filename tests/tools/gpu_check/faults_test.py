#!/usr/bin/env python3
"""What tools/gpu_check reports of a step whose program misbehaves, and that the next step runs."""

import os
import sys
import unittest
import unittest.mock

sys.dont_write_bytecode = True

from folder import LONG_S, ROOT, Folder
from gpu import build, steps
from gpu.check import FAILED, NOT_RUN, PASSED, TIMED_OUT, Check, Step

STAGECOACH, BENCH, TEST = build.STAGECOACH, build.CUDA_BENCH, "tests/kernels/a_gpu_test"
PYTHON, SANITIZER = "bin/python", "bin/compute-sanitizer"

MISSING, CRASH, HANG, GARBAGE = "missing", "kill -SEGV $$", "sleep 1000", "echo '{}'; echo '}{'"
CRASH_OF_BUILD = f"[ $1 != --build ] || {CRASH}"  # and not of what configures

# The program at fault, and a part of the reason for each fault but HANG, whose status tells it.
# One that is missing is no fault: its steps are skipped.
SANITIZER_FAULTS = {CRASH: "status -11 from stagecoach", GARBAGE: "no summary of what stagecoach did"}
BENCH_FAULTS = {MISSING: "No such file", CRASH: "cuda_bench was ended by SIGSEGV",
                GARBAGE: "cuda_bench printed no figure"}
FAULTS = {
    "parity": (TEST, {MISSING: "no built test has the label gpu", CRASH: "a_gpu_test (status -11",
                      GARBAGE: "a_gpu_test (status 0, 0 passed"}),
    "step": (BENCH, BENCH_FAULTS),
    "stages": (BENCH, BENCH_FAULTS),
    "quantized": (BENCH, BENCH_FAULTS),
    "kernels": (BENCH, BENCH_FAULTS),
    "gpt2": (STAGECOACH, {MISSING: "No such file", CRASH: "GPT-2 124M, 1 x 64: no output",
                          GARBAGE: "8 x 8, 4 stages: }{"}),
    "attention": (BENCH, {**BENCH_FAULTS, CRASH: "by SIGSEGV; there is no cuda_kernels_gpu_test"}),
    "generate": (STAGECOACH, {MISSING: "No such file", CRASH: "stagecoach was ended by SIGSEGV",
                              GARBAGE: "not all tokens were generated"}),
    "llama": (STAGECOACH, {MISSING: "No such file", CRASH: "recompute full: no output",
                           GARBAGE: "Llama 1.1B, 1 x 8, recompute full: }{"}),
    "lora": (STAGECOACH, {MISSING: "No such file", CRASH: "1 x 4, nf4: no output",
                          GARBAGE: "adapters of 8 blocks of Llama 3 8B, 1 x 4: }{"}),
    "profile": (STAGECOACH, {MISSING: "No such file", CRASH: "ResNet-50, 1 x 256: no output",
                             GARBAGE: "GPT-2 124M, 1 x 64: }{"}),
    "torch": (PYTHON, {MISSING: "No such file", CRASH: "gpt2 compiled bf16: status -11, and no figure",
                       GARBAGE: "network cuda-graphs bf16: status 0, and no figure"}),
    "resnets": (STAGECOACH, {MISSING: "No such file", CRASH: "ResNet-50, 8 x 32, 4 stages: no output",
                             GARBAGE: "ResNet-18 of small images, 1 x 512: }{"}),
    "torch-resnets": (PYTHON, {MISSING: "No such file",
                               CRASH: "resnet50 compiled bf16: status -11, and no figure",
                               GARBAGE: "resnet18 cuda-graphs bf16: status 0, and no figure"}),
    "train": (STAGECOACH, {MISSING: "No such file", CRASH: "stagecoach was ended by SIGSEGV",
                           GARBAGE: "did not report two epochs and an end"}),
    "nccl": (STAGECOACH, {MISSING: "No such file", CRASH: "stagecoach was ended by SIGSEGV",
                          GARBAGE: "no rank reported the end of its run"}),
    "memcheck": (SANITIZER, SANITIZER_FAULTS),
    "racecheck": (SANITIZER, SANITIZER_FAULTS),
    "synccheck": (SANITIZER, SANITIZER_FAULTS),
    "initcheck": (SANITIZER, SANITIZER_FAULTS),
}
# Steps without which there is nothing to run.
ENDING_FAULTS = {
    "devices": (STAGECOACH, {MISSING: "No such file", CRASH: "stagecoach was ended by SIGSEGV",
                             HANG: "does not list this machine's devices in time",
                             GARBAGE: "there is no usable GPU: no reason is known"}),
    "build": ("bin/cmake", {CRASH_OF_BUILD: "the build failed: cmake was ended by SIGSEGV",
                            HANG: "the build did not end within the limit of its step"}),
    "unpack": ("gpu_check.tar.xz", {MISSING: "No such file", GARBAGE: "is of no use here"}),
}


class FaultsTest(Folder):
    def run_with(self, step_name, program, fault):
        """The results of the step with that fault, and of one after it."""
        self.folder.joinpath(program).unlink(missing_ok=True)
        if fault != MISSING:
            self.write(program, f"#!/bin/sh\n{fault}\n", 0o755)
        where = {"build": steps.Programs.TO_BUILD, "unpack": steps.Programs.PACKED}
        with unittest.mock.patch.dict(os.environ, {
                "PATH": f"{self.folder}/bin:{os.environ['PATH']}"}):
            check = steps.GpuCheck(ROOT, self.folder, self.folder / "gpu_check.tar.xz",
                                   tuning=self.folder / "tuning.json", python=self.folder / PYTHON,
                                   programs=where.get(step_name, steps.Programs.BUILT))
            step, = [step for step in check.steps() if step.name == step_name]
            if fault == HANG:
                step.limit_s = 0.5
            next_step = Step("next", "The next step", LONG_S, lambda log: log.run(["true"]))
            # What is left beyond the limits goes to the first.
            budget_s = step.limit_s + LONG_S
            good = Check(self.folder / "out", [step, next_step], budget_s, say=lambda _: None).run()
        if fault == HANG:  # other steps may run it, too
            self.write(program, "#!/bin/sh\nexit 1\n", 0o755)
        self.assertFalse(good)
        summary = (self.folder / "out/summary.txt").read_text()
        self.assertRegex(summary, rf"(?m)^{step_name} +(FAILED|TIMED OUT) ")
        return self.results()["steps"]

    def setUp(self):
        super().setUp()
        gpu_test = self.folder / TEST
        self.write("CTestTestfile.cmake", f"""\
            if(EXISTS "{gpu_test}")
              add_test(on_gpu "{gpu_test}")
              set_tests_properties(on_gpu PROPERTIES LABELS gpu)
            endif()
            """)
        self.write("bin/nvcc", "#!/bin/sh\n", 0o755)
        self.write("bench/libcuda_kernel_times.so", "")

    def test_each_gives_its_line_and_the_next_step_runs(self):
        for name, (program, reasons) in FAULTS.items():
            for fault, reason in {**reasons, HANG: ""}.items():
                with self.subTest(step=name, fault=fault):
                    found, after = self.run_with(name, program, fault)
                    self.assertEqual(found["status"], TIMED_OUT if fault == HANG else FAILED)
                    self.assertIn(reason, found["reason"])
                    self.assertEqual(after["status"], PASSED)

    def test_of_what_all_need_ends_the_check_with_the_reason(self):
        for name, (program, reasons) in ENDING_FAULTS.items():
            for fault, reason in reasons.items():
                with self.subTest(step=name, fault=fault):
                    found, after = self.run_with(name, program, fault)
                    self.assertEqual(found["status"], FAILED)
                    self.assertIn(reason, found["reason"])
                    self.assertEqual((after["status"], after["reason"]), (NOT_RUN, found["reason"]))

    def test_covers_every_step(self):
        planned = {step.name for programs in steps.Programs
                   for step in steps.GpuCheck(ROOT, self.folder, self.folder, self.folder,
                                              programs=programs).steps()}
        self.assertEqual(planned, {*FAULTS, *ENDING_FAULTS})

    def test_of_the_sanitizer_itself_skips_its_step_after_the_other_programs(self):
        self.write(SANITIZER, """\
            #!/bin/sh
            case "$*" in
              *a_gpu_test*) echo '========= Internal Sanitizer Error: failed to handle'; exit 1 ;;
              *--help*) ;;
              *) echo '========= RACECHECK SUMMARY: 0 hazards displayed' ;;
            esac
            """, 0o755)
        self.write(TEST, "", 0o755)
        with unittest.mock.patch.dict(os.environ, {
                "PATH": f"{self.folder}/bin:{os.environ['PATH']}"}):
            check = steps.GpuCheck(ROOT, self.folder, self.folder, self.folder,
                                   programs=steps.Programs.BUILT)
            chosen = [step for step in check.steps() if step.name == "racecheck"]
            self.assertTrue(Check(self.folder / "out", chosen, LONG_S, say=lambda _: None).run())
        step, = self.results()["steps"]
        self.assertEqual((step["status"], step["reason"]), (
            "skipped", "Internal Sanitizer Error in a_gpu_test; 2 other programs without a finding"))


if __name__ == "__main__":
    unittest.main()
