#ifndef STAGECOACH_KERNELS_CUDA_OPS_LINEAR_NF4_LEVELS_CUH_
#define STAGECOACH_KERNELS_CUDA_OPS_LINEAR_NF4_LEVELS_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/ops/linear/dequantize_kernels.h"
#include "kernels/quantization_levels.h"

// What kernels read of NF4 matrices besides their bytes.
namespace stagecoach::kernels {

inline constexpr int kNf4CodeLevels = 16;
inline constexpr int kNf4ScaleLevels = 256;
inline constexpr int kNf4BlockValues = 64;    // that have a scale
inline constexpr int kNf4NestedScales = 256;  // scales that have a scale

static __device__ const LevelTable<kNf4CodeLevels> kDeviceLevels = kNf4LevelTable;
static __device__ const LevelTable<kNf4ScaleLevels> kDeviceScaleLevels = kNf4ScaleLevelTable;

// Returns which of the parts has this output.
__device__ inline int PartOf(const Nf4Parts& parts, int64_t output) {
  int p = 0;
  while (p + 1 < parts.count && output >= parts.parts[p + 1].first_output) ++p;
  return p;
}

// Returns the scale of a block: the level of its byte times the nested scale, plus the offset, each
// rounded.
__device__ inline float Nf4NestedScale(float level, float nested, float offset) {
  return __fadd_rn(__fmul_rn(level, nested), offset);
}

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_OPS_LINEAR_NF4_LEVELS_CUH_
