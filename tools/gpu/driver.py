"""What the CUDA driver says of this machine, before anything is built or unpacked."""

import ctypes


def why_no_gpu():
    """Why there is no GPU to use; "" if there is one."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "there is no CUDA driver (libcuda.so.1)"
    status = cuda.cuInit(0)
    if status != 0:
        return f"the CUDA driver does not start (error {status})"
    count = ctypes.c_int(0)
    if cuda.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
        return "the CUDA driver lists none"
    return ""
