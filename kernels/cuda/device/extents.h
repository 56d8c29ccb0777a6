#ifndef STAGECOACH_KERNELS_CUDA_DEVICE_EXTENTS_H_
#define STAGECOACH_KERNELS_CUDA_DEVICE_EXTENTS_H_

#include <cstdint>

#include "base/check.h"
#include "kernels/cuda/device/element_type.h"
#include "kernels/tensor.h"

namespace stagecoach::kernels {

// The largest extent of a CUDA operation: the bytes of several matrices together then fit in 64
// bits, and any number of rows in a grid.
inline constexpr int64_t kMaxCudaExtent = int64_t{1} << 29;
inline bool IsCudaExtent(int64_t value) { return value >= 1 && value <= kMaxCudaExtent; }

// Pre-condition: `type` is one that activations may have.
inline ElementType ElementTypeOf(DType type) {
  STAGECOACH_CHECK(type == DType::kFloat32 || type == DType::kBfloat16, "no type of activations");
  return type == DType::kFloat32 ? ElementType::kFloat32 : ElementType::kBfloat16;
}

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_DEVICE_EXTENTS_H_
