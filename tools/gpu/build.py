"""Builds what the check runs, for the GPU of this machine alone."""

import os
import pathlib
import re
import shutil
import subprocess

from . import archive
from .check import ANY_STATUS, CannotGoOn, StepFailed

# Those that exist are built. gpu_tests are all tests with the label gpu.
_TARGETS = ["stagecoach", "stagecoach_cuda", "cuda_bench", "gpu_tests"]


def output_of(command, env=None):
    """What a short command prints; "" if it cannot be run or fails."""
    try:
        result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                text=True, timeout=30, env={**os.environ, **(env or {})})
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout if result.returncode == 0 else ""


def architecture():
    """The CUDA architecture of the first GPU, as CMake has it: "90"."""
    answer = output_of(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"])
    match = re.match(r"\s*(\d+)\.(\d+)", answer)
    return match.group(1) + match.group(2) if match else "native"


def _nvcc():
    for nvcc in (shutil.which("nvcc"), "/usr/local/cuda/bin/nvcc"):
        if nvcc and pathlib.Path(nvcc).exists():
            return nvcc
    raise CannotGoOn("there is no nvcc: install the CUDA toolkit, and put it on the PATH")


def _nccl_of_python(python):
    """Where a Python package has NCCL, for systems that have none; "" if nowhere."""
    return output_of([python, "-c", "import nvidia.nccl as n; print(list(n.__path__)[0])"]).strip()


def _cublas_of_python(python):
    """The folder in which Python's packages have cuBLASLt with its headers; None if nowhere."""
    folders = output_of([python, "-c", "import nvidia; print(*nvidia.__path__, sep='\\n')"])
    for folder in map(pathlib.Path, folders.splitlines()):
        for header in sorted(folder.glob("*/include/cublasLt.h")):
            return header.parent.parent
    return None


def cublas_options(nvcc, python):
    """Arguments of CMake, and variables, for a toolkit that lacks cuBLASLt."""
    toolkit = pathlib.Path(nvcc).resolve().parent.parent
    if any(toolkit.glob("**/include/cublasLt.h")):
        return [], {}
    found = _cublas_of_python(python)
    libraries = sorted(found.glob("lib/libcublasLt.so*")) if found else []
    if not libraries:
        return [], {}
    return [f"-DCUDA_cublasLt_LIBRARY={libraries[0]}"], {"CPATH": str(found / "include")}


def configure_and_build(log, root, build_dir, archive_path, prefix, python):
    """Leaves the programs in `build_dir`. CannotGoOn if the build fails."""
    nvcc = _nvcc()
    options = [
        "-S", root, "-B", build_dir, "-DCMAKE_BUILD_TYPE=Release",
        f"-DCMAKE_CUDA_COMPILER={nvcc}", f"-DCMAKE_CUDA_ARCHITECTURES={architecture()}",
        "-DSTAGECOACH_CUDA=ON", "-DSTAGECOACH_BUILD_EXAMPLES=OFF",
        # Another compiler warns of other things.
        "-DSTAGECOACH_WARNINGS_AS_ERRORS=OFF",
    ]
    if shutil.which("ninja"):
        options += ["-G", "Ninja"]
    nccl = _nccl_of_python(python)
    if nccl:
        options.append(f"-DNCCL_ROOT={nccl}")
    of_cublas, variables = cublas_options(nvcc, python)
    options += of_cublas
    try:
        _configure(log, options, variables, build_dir, archive_path, prefix)
        known = log.run(["cmake", "--build", build_dir, "--target", "help"])[1]
        targets = [name for name in _TARGETS if re.search(rf"(?m)^(\.\.\. )?{name}\b", known)]
        jobs = len(os.sched_getaffinity(0))
        log.say(f"of {_TARGETS} there are {targets}")
        log.run(["cmake", "--build", build_dir, "--parallel", jobs, "--target", *targets],
                env=variables)
    except StepFailed as error:
        raise CannotGoOn(f"the build failed: {error}") from None
    except archive.ArchiveError as error:
        raise CannotGoOn(f"{archive_path} is of no use here: {error}") from None


def _configure(log, options, variables, build_dir, archive_path, prefix):
    if not (prefix / "unpacked").exists():
        status, _ = log.run(["cmake", *options], env=variables, accept=ANY_STATUS)
        if status == 0:
            return
        if not archive_path.exists():
            raise CannotGoOn(f"it could not be configured with this system's libraries, and there "
                             f"is no {archive_path}: make one with tools/gpu_check --pack on a "
                             "Debian system")
        # Nothing that was found before may be mixed with what the archive has.
        shutil.rmtree(build_dir, ignore_errors=True)
    if archive_path.exists():
        archive.unpack(archive_path, prefix)
    log.say(f"with the libraries in {prefix}")
    log.run(["cmake", *options, *archive.options_for(prefix)],
            env={**variables, **archive.environment_for(prefix)})
