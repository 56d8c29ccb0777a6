#ifndef STAGECOACH_KERNELS_CUDA_DEVICE_SCRATCH_H_
#define STAGECOACH_KERNELS_CUDA_DEVICE_SCRATCH_H_

#include <cstddef>
#include <cstdint>

// Parts of a workspace.
namespace stagecoach::kernels {

// The alignment of each part.
inline constexpr int64_t kScratchAlignment = 256;

inline int64_t AlignScratch(int64_t bytes) {
  return (bytes + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
}

inline std::byte* AlignScratch(std::byte* address) {
  const auto value = reinterpret_cast<intptr_t>(address);
  return address + (AlignScratch(value) - value);
}

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_DEVICE_SCRATCH_H_
