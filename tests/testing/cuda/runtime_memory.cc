#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>

#include "tests/testing/cuda/emulator/call.h"
#include "tests/testing/cuda/gpu_memory.h"
#include "tests/testing/cuda/sanitizers.h"

// Calls of the runtime that allocate, free and copy memory.

using stagecoach::testing::cuda::Call;
using stagecoach::testing::cuda::CurrentThread;
using stagecoach::testing::cuda::GiveBackCall;
using stagecoach::testing::cuda::Gpu;
using stagecoach::testing::cuda::Machine;
using stagecoach::testing::cuda::Refuse;

namespace stagecoach::testing::cuda {
namespace {

constexpr size_t kHostAlignment = 4096;

// Except in relaxed mode, the capturing thread may not make calls that may synchronize.
bool Capturing() { return CurrentThread().captures > 0; }

// Host memory lies between red zones, too.
void* AllocateHost(size_t bytes) {
  const size_t rounded = (bytes + kHostAlignment - 1) / kHostAlignment * kHostAlignment;
  const size_t range_bytes = rounded + 2 * kHostAlignment;
  auto* const range = static_cast<std::byte*>(std::aligned_alloc(kHostAlignment, range_bytes));
  if (range == nullptr) return nullptr;
  std::byte* const data = range + kHostAlignment;
  FillRedZone(range, data);
  std::memset(data, kPoisonByte, bytes);
  FillRedZone(data + bytes, range + range_bytes);
  Poison(range, range_bytes);
  Unpoison(data, bytes);
  return data;
}

void FreeHost(void* address, size_t bytes) {
  const size_t rounded = (bytes + kHostAlignment - 1) / kHostAlignment * kHostAlignment;
  auto* const data = static_cast<std::byte*>(address);
  Unpoison(data - kHostAlignment, rounded + 2 * kHostAlignment);
  CheckRedZone(data - kHostAlignment, data, "before an allocation of host memory");
  CheckRedZone(data + bytes, data + rounded + kHostAlignment, "after an allocation of host memory");
  std::free(data - kHostAlignment);
}

// Returns why a copy between these places is refused; null if it is not. The places are
// distinguished as in CUDA, except that host memory which is not pinned is refused: copies of it
// are not asynchronous.
const char* RefusalOfCopy(const Machine& machine, const void* to, int64_t to_bytes,
                          const void* from, int64_t from_bytes, cudaMemcpyKind kind) {
  const bool to_device = machine.GpuOfMemory(to, to_bytes) >= 0;
  const bool from_device = machine.GpuOfMemory(from, from_bytes) >= 0;
  if (!to_device && !machine.InHostMemory(to, to_bytes)) {
    return "writes outside one allocation of device memory or pinned host memory";
  }
  if (!from_device && !machine.InHostMemory(from, from_bytes)) {
    return "reads outside one allocation of device memory or pinned host memory";
  }
  const auto* const a = static_cast<const std::byte*>(to);
  const auto* const b = static_cast<const std::byte*>(from);
  if (a < b + from_bytes && b < a + to_bytes) return "what it reads and what it writes overlap";
  if (kind == cudaMemcpyDefault) return nullptr;
  const bool device_expected = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool source_expected = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  return to_device == device_expected && from_device == source_expected
             ? nullptr
             : "the kind is not that of the addresses";
}

// Returns the size from the first byte of the rows to the end of the last.
int64_t ExtentOf(size_t pitch, size_t row_bytes, size_t rows) {
  return static_cast<int64_t>((rows - 1) * pitch + row_bytes);
}

cudaError_t EnqueueCopy(Machine& machine, const char* call, void* to, const void* from,
                        size_t bytes, cudaStream_t stream) {
  return machine.Enqueue(
      stream, {.name = call, .run = [to, from, bytes] { std::memcpy(to, from, bytes); }});
}

}  // namespace
}  // namespace stagecoach::testing::cuda

namespace cuda = stagecoach::testing::cuda;

cudaError_t cudaMalloc(void** address, size_t bytes) {
  return Call(
      "cudaMalloc",
      [&](Machine& machine, Machine::Lock&) {
        if (cuda::Capturing()) return cudaErrorStreamCaptureUnsupported;
        *address = nullptr;
        if (bytes == 0) return cudaSuccess;
        Gpu& gpu = *machine.gpus[static_cast<size_t>(CurrentThread().gpu)];
        gpu.memory.Open();
        *address = gpu.memory.Allocate(static_cast<int64_t>(bytes));
        gpu.memory.Close();
        return *address == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
      },
      cudaErrorMemoryAllocation);
}

cudaError_t cudaFree(void* address) {
  return GiveBackCall([&](Machine& machine, Machine::Lock& lock) {
    if (address == nullptr) return cudaSuccess;
    if (cuda::Capturing()) return cudaErrorStreamCaptureUnsupported;
    const int gpu = machine.GpuOfMemory(address, 0);
    if (gpu < 0) return Refuse("cudaFree", "not an allocation of device memory");
    machine.RunUntil(lock, [&] { return machine.Idle(gpu); });
    cuda::GpuMemory& memory = machine.gpus[static_cast<size_t>(gpu)]->memory;
    memory.Open();
    const bool freed = memory.Free(address);
    memory.Close();
    return freed ? cudaSuccess : Refuse("cudaFree", "not the begin of a live allocation");
  });
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  return Call("cudaMemGetInfo", [&](Machine& machine, Machine::Lock&) {
    const cuda::GpuMemory& memory = machine.gpus[static_cast<size_t>(CurrentThread().gpu)]->memory;
    *free_bytes = static_cast<size_t>(memory.free_bytes());
    *total_bytes = static_cast<size_t>(machine.options().memory_bytes);
    return cudaSuccess;
  });
}

cudaError_t cudaHostAlloc(void** address, size_t bytes, unsigned flags) {
  return Call(
      "cudaHostAlloc",
      [&](Machine& machine, Machine::Lock&) {
        constexpr unsigned kKnown =
            cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined;
        if ((flags & ~kKnown) != 0) return cudaErrorInvalidValue;
        if (cuda::Capturing()) return cudaErrorStreamCaptureUnsupported;
        *address = nullptr;
        if (bytes == 0) return cudaSuccess;
        *address = cuda::AllocateHost(bytes);
        if (*address == nullptr) return cudaErrorMemoryAllocation;
        machine.host[reinterpret_cast<uintptr_t>(*address)] = {.bytes = static_cast<int64_t>(bytes),
                                                               .gpu = CurrentThread().gpu};
        return cudaSuccess;
      },
      cudaErrorMemoryAllocation);
}

cudaError_t cudaFreeHost(void* address) {
  return GiveBackCall([&](Machine& machine, Machine::Lock& lock) {
    if (address == nullptr) return cudaSuccess;
    if (cuda::Capturing()) return cudaErrorStreamCaptureUnsupported;
    const auto found = machine.host.find(reinterpret_cast<uintptr_t>(address));
    if (found == machine.host.end()) {
      return Refuse("cudaFreeHost", "not an allocation of pinned host memory");
    }
    const cuda::HostAllocation allocation = found->second;
    machine.RunUntil(lock, [&] { return machine.Idle(allocation.gpu); });
    machine.host.erase(reinterpret_cast<uintptr_t>(address));
    cuda::FreeHost(address, static_cast<size_t>(allocation.bytes));
    return cudaSuccess;
  });
}

cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned flags) {
  return Call("cudaHostGetDevicePointer", [&](Machine& machine, Machine::Lock&) {
    if (flags != 0 || !machine.InHostMemory(host, 1)) return cudaErrorInvalidValue;
    *device = host;
    return cudaSuccess;
  });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return Call("cudaMemcpyAsync", [&](Machine& machine, Machine::Lock&) {
    if (bytes == 0) return cudaSuccess;
    const auto count = static_cast<int64_t>(bytes);
    if (const char* const refusal = cuda::RefusalOfCopy(machine, to, count, from, count, kind)) {
      return Refuse("cudaMemcpyAsync", refusal);
    }
    return cuda::EnqueueCopy(machine, "cudaMemcpyAsync", to, from, bytes, stream);
  });
}

cudaError_t cudaMemcpyPeerAsync(void* to, int to_gpu, const void* from, int from_gpu, size_t bytes,
                                cudaStream_t stream) {
  return Call("cudaMemcpyPeerAsync", [&](Machine& machine, Machine::Lock&) {
    if (bytes == 0) return cudaSuccess;
    const int64_t count = static_cast<int64_t>(bytes);
    if (machine.GpuOfMemory(to, count) != to_gpu || machine.GpuOfMemory(from, count) != from_gpu ||
        to_gpu < 0 || from_gpu < 0) {
      return Refuse("cudaMemcpyPeerAsync", "an address is not in the memory of its GPU");
    }
    return cuda::EnqueueCopy(machine, "cudaMemcpyPeerAsync", to, from, bytes, stream);
  });
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return Call("cudaMemsetAsync", [&](Machine& machine, Machine::Lock&) {
    if (bytes == 0) return cudaSuccess;
    if (machine.GpuOfMemory(to, static_cast<int64_t>(bytes)) < 0) {
      return Refuse("cudaMemsetAsync", "writes outside one allocation of device memory");
    }
    return machine.Enqueue(stream, {.name = "cudaMemsetAsync",
                                    .run = [to, value, bytes] { std::memset(to, value, bytes); }});
  });
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                              size_t row_bytes, size_t rows, cudaMemcpyKind kind,
                              cudaStream_t stream) {
  return Call("cudaMemcpy2DAsync", [&](Machine& machine, Machine::Lock&) {
    if (row_bytes > to_pitch || row_bytes > from_pitch) return cudaErrorInvalidPitchValue;
    if (row_bytes == 0 || rows == 0) return cudaSuccess;
    if (const char* const refusal =
            cuda::RefusalOfCopy(machine, to, cuda::ExtentOf(to_pitch, row_bytes, rows), from,
                                cuda::ExtentOf(from_pitch, row_bytes, rows), kind)) {
      return Refuse("cudaMemcpy2DAsync", refusal);
    }
    return machine.Enqueue(
        stream, {.name = "cudaMemcpy2DAsync", .run = [=] {
                   for (size_t row = 0; row < rows; ++row) {
                     std::memcpy(static_cast<std::byte*>(to) + row * to_pitch,
                                 static_cast<const std::byte*>(from) + row * from_pitch, row_bytes);
                   }
                 }});
  });
}

cudaError_t cudaMemset2DAsync(void* to, size_t pitch, int value, size_t row_bytes, size_t rows,
                              cudaStream_t stream) {
  return Call("cudaMemset2DAsync", [&](Machine& machine, Machine::Lock&) {
    if (row_bytes > pitch) return cudaErrorInvalidPitchValue;
    if (row_bytes == 0 || rows == 0) return cudaSuccess;
    if (machine.GpuOfMemory(to, cuda::ExtentOf(pitch, row_bytes, rows)) < 0) {
      return Refuse("cudaMemset2DAsync", "writes outside one allocation of device memory");
    }
    return machine.Enqueue(stream, {.name = "cudaMemset2DAsync", .run = [=] {
                                      for (size_t row = 0; row < rows; ++row) {
                                        std::memset(static_cast<std::byte*>(to) + row * pitch,
                                                    value, row_bytes);
                                      }
                                    }});
  });
}
