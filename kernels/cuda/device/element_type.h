#ifndef STAGECOACH_KERNELS_CUDA_DEVICE_ELEMENT_TYPE_H_
#define STAGECOACH_KERNELS_CUDA_DEVICE_ELEMENT_TYPE_H_

#include <cstdint>

namespace stagecoach::kernels {

// The types of activations, in a form that the device compiler reads too.
enum class ElementType : uint8_t { kFloat32, kBfloat16 };

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_DEVICE_ELEMENT_TYPE_H_
