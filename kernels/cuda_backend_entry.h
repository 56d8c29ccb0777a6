#ifndef STAGECOACH_KERNELS_CUDA_BACKEND_ENTRY_H_
#define STAGECOACH_KERNELS_CUDA_BACKEND_ENTRY_H_

#include "kernels/cuda_backend.h"

// The contract between libstagecoach_cuda.so and the program that loads it: two C functions, of
// which the first tells whether the second may be called. C++ objects cross the boundary, so both
// sides must come from the same sources and the same compiler.
namespace stagecoach::kernels {

// The versions of library and program must be equal. The number of the backend must be raised when
// an interface that crosses the boundary changes (Device, Stream, the operations, CudaBackend, ...)
// while the version of Stagecoach does not.
inline constexpr char kCudaBackendVersion[] =
    "Stagecoach " STAGECOACH_VERSION ", backend 3, compiler " __VERSION__;

// Returns the kCudaBackendVersion that the library was built with.
inline constexpr char kCudaVersionSymbol[] = "StagecoachCudaVersion";
using CudaVersionFunction = const char*();

// Returns the one backend, which lives as long as the library.
inline constexpr char kCudaBackendSymbol[] = "StagecoachCudaBackend";
using CudaBackendFunction = CudaBackend*();

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_BACKEND_ENTRY_H_
