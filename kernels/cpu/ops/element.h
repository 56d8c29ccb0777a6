#ifndef STAGECOACH_KERNELS_CPU_OPS_ELEMENT_H_
#define STAGECOACH_KERNELS_CPU_OPS_ELEMENT_H_

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/bfloat16.h"
#include "kernels/device.h"
#include "kernels/tensor.h"

// Operations are written once for both types of activations: T is float or Bfloat16. Between
// loading and storing, all arithmetic is float's.
namespace stagecoach::kernels {

// Returns the elements of a tensor of that type.
template <typename T>
T* Elements(const Tensor& tensor) {
  return static_cast<T*>(tensor.data);
}

template <typename T>
inline constexpr bool kIsFloat = std::is_same_v<T, float>;

template <typename T>
inline constexpr DType kTypeOf = kIsFloat<T> ? DType::kFloat32 : DType::kBfloat16;

// Returns create(T()) for the device's type of activations.
template <typename Create>
auto ForActivationType(const Device& device, Create create) {
  return device.activation_type() == DType::kBfloat16 ? create(Bfloat16()) : create(float());
}

// Converts to = from, rounded if necessary.
template <typename From, typename To>
void Convert(const From* from, int64_t n, To* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = from[i];
}

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CPU_OPS_ELEMENT_H_
