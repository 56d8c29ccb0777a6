#include <cuda.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdio>
#include <cstring>

#include "tests/testing/cuda/emulator/call.h"

// Calls of the runtime about the system, and about errors.

using stagecoach::testing::cuda::Call;
using stagecoach::testing::cuda::CurrentFailure;
using stagecoach::testing::cuda::CurrentThread;
using stagecoach::testing::cuda::Machine;
using stagecoach::testing::cuda::Refuse;
using stagecoach::testing::cuda::Remember;
using stagecoach::testing::cuda::SystemCall;
using stagecoach::testing::cuda::ThreadState;

namespace stagecoach::testing::cuda {

cudaError_t Refuse(const char* call, const char* why) {
  std::fprintf(stderr, "CUDA stand-in: %s: %s\n", call, why);
  return cudaErrorInvalidValue;
}

namespace {

constexpr int kVersion = CUDART_VERSION;

bool IsGpu(const Machine& machine, int gpu) {
  return gpu >= 0 && gpu < static_cast<int>(machine.gpus.size());
}

struct ErrorText {
  cudaError_t error;
  const char* name;
  const char* text;
};

// The errors that the stand-in returns.
constexpr ErrorText kErrors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
     "invalid configuration argument"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorIllegalState, "cudaErrorIllegalState",
     "the operation cannot be performed in the present state"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {cudaErrorNoKernelImageForDevice, "cudaErrorNoKernelImageForDevice",
     "no kernel image is available for execution on the device"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
     "an illegal memory access was encountered"},
    {cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources",
     "too many resources requested for launch"},
    {cudaErrorPeerAccessAlreadyEnabled, "cudaErrorPeerAccessAlreadyEnabled",
     "peer access is already enabled"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation",
     "dependency created on uncaptured work in another stream"},
    {cudaErrorStreamCaptureMerge, "cudaErrorStreamCaptureMerge",
     "operation would result in a merge of separate capture sequences"},
    {cudaErrorStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched",
     "capture was not initiated in this stream"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined",
     "capturing stream has unjoined work"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent",
     "operation not permitted on an event last recorded in a capturing stream"},
    {cudaErrorStreamCaptureWrongThread, "cudaErrorStreamCaptureWrongThread",
     "attempt to terminate a thread-local capture sequence from another thread"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};

const ErrorText* FindName(cudaError_t error) {
  for (const ErrorText& known : kErrors) {
    if (known.error == error) return &known;
  }
  return nullptr;
}

// Errors of the driver have the runtime's numbers.
CUresult StreamWriteValue32(CUstream stream, CUdeviceptr address, cuuint32_t value,
                            unsigned int flags) {
  if (!Machine::Get().options().memory_operations) return CUDA_ERROR_NOT_SUPPORTED;
  const cudaError_t error = Call("cuStreamWriteValue32", [&](Machine& machine, Machine::Lock&) {
    auto* const where = reinterpret_cast<uint32_t*>(address);
    if (flags != CU_STREAM_WRITE_VALUE_DEFAULT || address % sizeof(*where) != 0 ||
        !machine.InHostMemory(where, sizeof(*where))) {
      return cudaErrorInvalidValue;
    }
    const auto write = [where, value] {
      std::atomic_ref(*where).store(value, std::memory_order_release);
    };
    return machine.Enqueue(stream, {.name = "cuStreamWriteValue32", .run = write});
  });
  return static_cast<CUresult>(error);
}

}  // namespace
}  // namespace stagecoach::testing::cuda

namespace cuda = stagecoach::testing::cuda;

cudaError_t cudaGetDeviceCount(int* count) {
  return SystemCall(
      "cudaGetDeviceCount",
      [&](Machine& machine, Machine::Lock&) {
        *count = static_cast<int>(machine.gpus.size());
        return cudaSuccess;
      },
      cudaErrorNoDevice);
}

#if CUDART_VERSION >= 12050
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function,
                                             unsigned int version, unsigned long long /*flags*/,
                                             cudaDriverEntryPointQueryResult* result) {
#else
cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** function,
                                    unsigned long long /*flags*/,
                                    cudaDriverEntryPointQueryResult* result) {
  constexpr unsigned int version = CUDART_VERSION;
#endif
  return SystemCall("cudaGetDriverEntryPoint", [&](Machine&, Machine::Lock&) {
    const bool known = std::strcmp(symbol, "cuStreamWriteValue32") == 0 && version >= 11070;
    *function = known ? reinterpret_cast<void*>(cuda::StreamWriteValue32) : nullptr;
    *result = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int gpu) {
  return SystemCall("cudaGetDeviceProperties", [&](Machine& machine, Machine::Lock&) {
    if (!cuda::IsGpu(machine, gpu)) return cudaErrorInvalidDevice;
    *properties = {};
    std::snprintf(properties->name, sizeof(properties->name), "CUDA stand-in");
    properties->totalGlobalMem = static_cast<size_t>(machine.options().memory_bytes);
    properties->sharedMemPerBlock = size_t{48} << 10;
    properties->sharedMemPerBlockOptin = static_cast<size_t>(machine.options().shared_bytes);
    properties->warpSize = 32;
    properties->maxThreadsPerBlock = 1024;
    properties->major = 9;
    properties->minor = 0;
    properties->multiProcessorCount = 4;
    properties->pciBusID = gpu + 1;
    properties->unifiedAddressing = 1;
    properties->canMapHostMemory = 1;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int gpu) {
  return SystemCall("cudaDeviceGetAttribute", [&](Machine& machine, Machine::Lock&) {
    if (!cuda::IsGpu(machine, gpu)) return cudaErrorInvalidDevice;
    if (attribute != cudaDevAttrMaxSharedMemoryPerBlockOptin) return cudaErrorNotSupported;
    *value = machine.options().shared_bytes;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetPCIBusId(char* bus_id, int length, int gpu) {
  return SystemCall("cudaDeviceGetPCIBusId", [&](Machine& machine, Machine::Lock&) {
    if (!cuda::IsGpu(machine, gpu)) return cudaErrorInvalidDevice;
    const int needed =
        std::snprintf(bus_id, static_cast<size_t>(length), "0000:%02x:00.0", gpu + 1);
    return needed < length ? cudaSuccess : cudaErrorInvalidValue;
  });
}

// These two also answer without a driver.
cudaError_t cudaDriverGetVersion(int* version) {
  *version = 0;
  if (!Machine::Get().options().driver) return cudaSuccess;
  return SystemCall("cudaDriverGetVersion", [&](Machine&, Machine::Lock&) {
    *version = cuda::kVersion;
    return cudaSuccess;
  });
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = cuda::kVersion;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int gpu) {
  return SystemCall("cudaSetDevice", [&](Machine& machine, Machine::Lock&) {
    if (!cuda::IsGpu(machine, gpu)) return cudaErrorInvalidDevice;
    CurrentThread().gpu = gpu;
    return cudaSuccess;
  });
}

cudaError_t cudaGetDevice(int* gpu) {
  return SystemCall("cudaGetDevice", [&](Machine&, Machine::Lock&) {
    *gpu = CurrentThread().gpu;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return Call("cudaDeviceGetStreamPriorityRange", [&](Machine&, Machine::Lock&) {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int gpu, int peer) {
  return SystemCall("cudaDeviceCanAccessPeer", [&](Machine& machine, Machine::Lock&) {
    if (!cuda::IsGpu(machine, gpu) || !cuda::IsGpu(machine, peer)) return cudaErrorInvalidDevice;
    *can = gpu != peer ? 1 : 0;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  return Call("cudaDeviceEnablePeerAccess", [&](Machine& machine, Machine::Lock&) {
    const int gpu = CurrentThread().gpu;
    if (!cuda::IsGpu(machine, peer) || peer == gpu) return cudaErrorInvalidDevice;
    if (flags != 0) return cudaErrorInvalidValue;
    return machine.gpus[static_cast<size_t>(gpu)]->peers.insert(peer).second
               ? cudaSuccess
               : cudaErrorPeerAccessAlreadyEnabled;
  });
}

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  return Call("cudaFuncSetAttribute", [&](Machine& machine, Machine::Lock&) {
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaErrorNotSupported;
    if (value < 0 || value > machine.options().shared_bytes) return cudaErrorInvalidValue;
    machine.shared_bytes[kernel] = static_cast<size_t>(value);
    return cudaSuccess;
  });
}

// ---- Errors. Those of a GPU stay, all others are forgotten once they have been reported.

cudaError_t cudaPeekAtLastError() {
  Machine& machine = Machine::Get();
  if (machine.options().driver) {
    const Machine::Lock lock = machine.Locked();
    Remember(CurrentFailure(machine));
  }
  return CurrentThread().last_error;
}

cudaError_t cudaGetLastError() {
  const cudaError_t error = cudaPeekAtLastError();
  CurrentThread().last_error = cudaSuccess;
  return error;
}

const char* cudaGetErrorName(cudaError_t error) {
  const cuda::ErrorText* const known = cuda::FindName(error);
  return known == nullptr ? "unrecognized error code" : known->name;
}

const char* cudaGetErrorString(cudaError_t error) {
  const cuda::ErrorText* const known = cuda::FindName(error);
  return known == nullptr ? "unrecognized error code" : known->text;
}
