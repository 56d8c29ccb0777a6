"""NVIDIA's libraries: where the CUDA toolkit and Python's packages have them."""

import os
import pathlib
import re
import shutil

from .process import output_of

# What the programs use, and the files that packed programs ask for.
OF_CUDA = {"cuBLASLt": "libcublasLt.so.13", "cudart": "libcudart.so.13", "NCCL": "libnccl.so.2",
           "cuDNN": "libcudnn.so.9", "CUPTI": "libcupti.so.13"}
# What programs can run without.
_OPTIONAL = {"cuDNN", "CUPTI"}


def find_nvcc():
    """The CUDA compiler; None if there is none."""
    for nvcc in (shutil.which("nvcc"), "/usr/local/cuda/bin/nvcc"):
        if nvcc and pathlib.Path(nvcc).exists():
            return pathlib.Path(nvcc)
    return None


def python_folders(python):
    """The folders of the Python packages named nvidia."""
    text = output_of([python, "-c", "import nvidia; print(*nvidia.__path__, sep='\\n')"])
    return [pathlib.Path(line) for line in text.splitlines()]


def library_folders(python):
    """Folders that may have NVIDIA's libraries, the first to be searched first."""
    folders = [pathlib.Path(name) for name in os.environ.get("LD_LIBRARY_PATH", "").split(":") if name]
    nvcc = find_nvcc()
    if nvcc:
        toolkit = nvcc.resolve().parent.parent
        folders += [toolkit / "lib64", toolkit / "lib", toolkit / "targets/x86_64-linux/lib"]
    for folder in python_folders(python):
        folders += sorted(folder.glob("*/lib"))
    return [*folders, pathlib.Path("/usr/lib/x86_64-linux-gnu"), pathlib.Path("/usr/lib64")]


def find_libraries(folders):
    """The file of each library of OF_CUDA that is in one of the folders, by the library's name."""
    found = {}
    for name, file in OF_CUDA.items():
        files = [folder / file for folder in folders if (folder / file).exists()]
        if files:
            found[name] = files[0]
    return found


def missing_libraries(found):
    """The files without which packed programs do not run, and that were not found."""
    return [file for name, file in OF_CUDA.items() if name not in found and name not in _OPTIONAL]


def taken_libraries(ldd_text):
    """Which file the dynamic linker takes for each library of OF_CUDA, from what ldd prints."""
    stems = {file.split(".")[0]: name for name, file in OF_CUDA.items()}
    return {stems[stem]: file for stem, file in
            re.findall(r"(?m)^\s*(\w+)\.so\S* => (/\S+)", ldd_text) if stem in stems}
