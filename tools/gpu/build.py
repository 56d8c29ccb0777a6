"""Builds what the check runs: for the GPU of this machine alone, or to be packed."""

import json
import lzma
import os
import pathlib
import re
import shutil
import subprocess
import tarfile

from . import archive, libraries
from .check import ANY_STATUS, CannotGoOn, StepFailed, StepTimedOut
from .process import output_of

# Those that exist are built. gpu_tests are all tests with the label gpu.
_TARGETS = ["stagecoach", "stagecoach_cuda", "cuda_bench", "cuda_kernel_times", "gpu_tests"]

# Where a build folder and the packed programs have each.
STAGECOACH = "tools/stagecoach"
CUDA_BENCH = "bench/cuda_bench"
KERNEL_TIMES = "bench/libcuda_kernel_times.so"  # where CUPTI is
BACKEND = "kernels/cuda/libstagecoach_cuda.so"
# Packed programs are for these: Hopper, and processors with AVX2.
_PACKED_CUDA, _PACKED_CPU = "90", "x86-64-v3"


def architecture():
    """The CUDA architecture of the first GPU, as CMake has it: "90"."""
    answer = output_of(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"])
    match = re.match(r"\s*(\d+)\.(\d+)", answer)
    return match.group(1) + match.group(2) if match else "native"


def _nvcc():
    nvcc = libraries.find_nvcc()
    if nvcc is None:
        raise CannotGoOn("there is no nvcc: install the CUDA toolkit, and put it on the PATH")
    return nvcc


def _nccl_of_python(python):
    """Where a Python package has NCCL, for systems that have none; "" if nowhere."""
    return output_of([python, "-c", "import nvidia.nccl as n; print(list(n.__path__)[0])"]).strip()


def _cublas_of_python(python):
    """The folder in which Python's packages have cuBLASLt with its headers; None if nowhere."""
    for folder in libraries.python_folders(python):
        for header in sorted(folder.glob("*/include/cublasLt.h")):
            return header.parent.parent
    return None


def cublas_options(nvcc, python):
    """Arguments of CMake, and variables, for a toolkit that lacks cuBLASLt."""
    toolkit = pathlib.Path(nvcc).resolve().parent.parent
    if any(toolkit.glob("**/include/cublasLt.h")):
        return [], {}
    found = _cublas_of_python(python)
    files = sorted(found.glob("lib/libcublasLt.so*")) if found else []
    if not files:
        return [], {}
    return [f"-DCUDA_cublasLt_LIBRARY={files[0]}"], {"CPATH": str(found / "include")}


def configure_and_build(log, root, build_dir, archive_path, prefix, python):
    """Leaves the programs in `build_dir`. CannotGoOn if the build fails."""
    nvcc = _nvcc()
    options = [
        "-S", root, "-B", build_dir, "-DCMAKE_BUILD_TYPE=Release",
        f"-DCMAKE_CUDA_COMPILER={nvcc}", f"-DCMAKE_CUDA_ARCHITECTURES={architecture()}",
        "-DSTAGECOACH_CUDA=ON", "-DSTAGECOACH_BUILD_EXAMPLES=OFF",
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
    except StepTimedOut:
        raise CannotGoOn("the build did not end within the limit of its step") from None
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


def build_to_pack(root, build_dir, say=print):
    """Builds the programs that the archive takes along. ArchiveError if that fails."""
    say(f"building in {build_dir} for sm_{_PACKED_CUDA} and {_PACKED_CPU}")
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    configure = ["cmake", "-S", root, "-B", build_dir, *generator, "-DCMAKE_BUILD_TYPE=Release",
                 f"-DCMAKE_CUDA_ARCHITECTURES={_PACKED_CUDA}", "-DSTAGECOACH_CUDA=ON",
                 f"-DSTAGECOACH_CPU_ARCH={_PACKED_CPU}", "-DSTAGECOACH_BUILD_EXAMPLES=OFF"]
    compile_all = ["cmake", "--build", build_dir, "--parallel", str(len(os.sched_getaffinity(0))),
                   "--target", *_TARGETS]
    for command in (configure, compile_all):
        try:
            subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise archive.ArchiveError(f"the programs were not built: {error}") from None


def gpu_tests(ctest_json):
    """The programs of tests with the label gpu, from `ctest -L '^gpu$' --show-only=json-v1`."""
    start = ctest_json.find("{")
    tests = json.loads(ctest_json[start:]).get("tests", []) if start >= 0 else []
    return sorted({test["command"][0] for test in tests if test.get("command")})


def list_gpu_tests(build_dir):
    """The command that prints what gpu_tests() reads."""
    return ["ctest", "--test-dir", build_dir, "-L", "^gpu$", "--show-only=json-v1"]


def programs_to_pack(build_dir):
    """The files of a build that the archive takes along, by their paths in it."""
    tests = gpu_tests(output_of(list_gpu_tests(build_dir)))
    if not tests:
        raise archive.ArchiveError(f"{build_dir} has no test with the label gpu")
    inside = [STAGECOACH, CUDA_BENCH, BACKEND]
    inside += [os.path.relpath(test, build_dir) for test in tests]
    if pathlib.Path(build_dir, KERNEL_TIMES).exists():
        inside.append(KERNEL_TIMES)
    return {name: pathlib.Path(build_dir) / name for name in inside}


def unpack_programs(archive_path, prefix, python):
    """Unpacks the archive. Returns the environment of its programs, and the commit they are of.

    CannotGoOn if they cannot be run here.
    """
    try:
        archive.unpack(archive_path, prefix)
        commit = archive.programs_commit(prefix)
    except (archive.ArchiveError, OSError, EOFError, lzma.LZMAError, tarfile.TarError,
            KeyError) as error:
        raise CannotGoOn(f"{archive_path} is of no use here: {error}; compile with --build") from None
    found = libraries.find_libraries(libraries.library_folders(python))
    missing = libraries.missing_libraries(found)
    if missing:
        raise CannotGoOn(f"neither the CUDA toolkit nor Python's packages have {', '.join(missing)}")
    folders = dict.fromkeys([*archive.library_folders(prefix), *(f.parent for f in found.values())])
    return {"LD_LIBRARY_PATH": ":".join(map(str, folders)),
            "STAGECOACH_CUDA_LIBRARY": str(prefix / "programs" / BACKEND)}, commit
