#ifndef STAGECOACH_KERNELS_CPU_CPU_DEVICE_H_
#define STAGECOACH_KERNELS_CPU_CPU_DEVICE_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"

namespace stagecoach::kernels {

struct CpuDeviceOptions {
  int index = 0;                   // in the name "cpu:<index>"
  int threads = 1;                 // 1 ... kMaxThreads
  int64_t memory_limit_bytes = 0;  // budget; 0: none
  // fp32, or bf16 if CheckBfloat16OnCpu() is OK.
  Precision precision = Precision::kFloat32;
  static constexpr int kMaxThreads = 256;
};

// Returns the processors that operations of CPU devices are compiled for, by the compiler's name:
// what the build was told (native), or the one of a portable build's x86-64-v2, -v3 and -v4 that it
// chose for this processor.
const char* CpuOperationsArch();

// Returns OK if CPU devices compute with bfloat16: the processor has instructions for its products
// (AVX-512 BF16 or AMX), and oneDNN uses them (ONEDNN_MAX_CPU_ISA). Otherwise Unavailable, which
// says what is missing.
absl::Status CheckBfloat16OnCpu();

// A CPU device: a worker thread that runs the stream's jobs, threads - 1 helpers that share the
// tiles of its operations, and a byte budget. No library starts threads of its own. Denormal
// numbers are flushed to zero in its threads. InvalidArgument: threads out of range, a negative
// budget or a precision that CPU devices do not have. Unavailable: as in CheckBfloat16OnCpu.
absl::StatusOr<std::unique_ptr<Device>> CreateCpuDevice(const CpuDeviceOptions& options);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CPU_CPU_DEVICE_H_
