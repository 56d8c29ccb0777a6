#ifndef STAGECOACH_ENGINE_STAGE_FILL_TENSORS_H_
#define STAGECOACH_ENGINE_STAGE_FILL_TENSORS_H_

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/device.h"
#include "kernels/tensor.h"

namespace stagecoach::engine {

// Gives float32 tensors of a device the values that `values_of` writes for each, by its index.
// Where the device has memory of its own, several threads call it at once and the device copies
// what others have written meanwhile; each takes host memory for one tensor. A job of the device's
// stream. The error of the first tensor that has one.
absl::Status FillTensors(kernels::Device& device, absl::Span<const kernels::Tensor> tensors,
                         absl::FunctionRef<absl::Status(int, absl::Span<float>)> values_of);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_STAGE_FILL_TENSORS_H_
