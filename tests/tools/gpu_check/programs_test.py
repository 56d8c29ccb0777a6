#!/usr/bin/env python3
"""tools/gpu_check with the real programs on an emulated GPU, so that no step fails of a wrong flag.

    tests/tools/gpu_check/programs_test.py STAGECOACH CUDA_BENCH KERNELS_TEST EMULATED_BACKEND
"""

import os
import pathlib
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True

from folder import ROOT, Folder
from gpu import works
from gpu.check import PASSED, SKIPPED

# All but those that no flag changes, or that other tests run on emulated GPUs.
STEPS = ("devices,gpt2,attention,generate,step,torch,llama,lora,quantized,resnets,"
         "torch-resnets,train,stages,kernels")
PROGRAMS = ("tools/stagecoach", "bench/cuda_bench", "tests/kernels/cuda/cuda_kernels_gpu_test")


class ProgramsTest(Folder):
    def test_take_the_flags_that_each_step_gives_them(self):
        *programs, backend = map(pathlib.Path, ARGUMENTS)
        for name, program in zip(PROGRAMS, programs):
            link = self.folder / "build" / name
            link.parent.mkdir(parents=True)
            link.symlink_to(program.resolve())
        self.write("build/CTestTestfile.cmake", f"""\
            add_test(on_gpu "{self.folder}/build/{PROGRAMS[-1]}")
            set_tests_properties(on_gpu PROPERTIES LABELS gpu)
            """)
        # Without PyTorch: the flags of torch_step.py are read nevertheless.
        self.write("torch/torch.py", "raise ImportError")
        process = subprocess.run(
            [sys.executable, ROOT / "tools/gpu_check", self.folder / "out", "--small", "--only", STEPS,
             "--build-dir", self.folder / "build", "--minutes", "60"],  # for slow builds
            env={**os.environ, "STAGECOACH_CUDA_LIBRARY": str(backend.resolve()),
                 "STAGECOACH_CUDA_STAND_IN": "gpus=1,memory=256MB",
                 "PYTHONPATH": str(self.folder / "torch")},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        statuses = {step["step"]: step["status"] for step in self.results()["steps"]}
        expected = {name: SKIPPED if name in ("torch", "llama", "lora", "torch-resnets") else PASSED
                    for name in STEPS.split(",")}
        self.assertEqual(statuses, expected, process.stdout)

    def test_know_the_models_in_their_full_sizes(self):
        full = works.FULL
        cases = [(model, ["--context", str(model.context)])
                 for model in (full.gpt2, full.llama, full.adapters)]
        cases += [(model, ["--data", model.data]) for model in (full.resnet50, full.resnet18)]
        for model, of_data in cases:
            process = subprocess.run(
                [ARGUMENTS[0], "plan", "--model", model.model, *of_data,
                 "--global-batch-size", str(model.batch), "--micro-batches", "1", "--devices", "1"],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            self.assertEqual(process.returncode, 0, process.stdout)


if __name__ == "__main__":
    ARGUMENTS = sys.argv[1:]
    unittest.main(argv=sys.argv[:1])
