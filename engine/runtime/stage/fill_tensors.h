#ifndef STAGECOACH_ENGINE_RUNTIME_STAGE_FILL_TENSORS_H_
#define STAGECOACH_ENGINE_RUNTIME_STAGE_FILL_TENSORS_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/nn/parameter_table.h"
#include "kernels/device.h"
#include "kernels/tensor.h"

namespace stagecoach::engine {

// Fills tensors of a device with the values that `values_of` writes for each, by its index, to a
// tensor of the same type and shape in host memory. Several threads call it concurrently. If the
// device has memory of its own, it copies what others have written meanwhile, and each thread takes
// host memory for one tensor. A job of the device's stream. Returns the error of the first tensor
// that has one.
absl::Status FillTensors(
    kernels::Device& device, absl::Span<const kernels::Tensor> tensors,
    absl::FunctionRef<absl::Status(int, const kernels::Tensor& values)> values_of);

// Returns the place in a parameter, as it is stored, from which on a part holds it.
int64_t FirstHeld(const ModelParameter& parameter, TensorPart part, const kernels::Tensor& held);

// Fills the tensor of what a part holds of a parameter, which is in host memory, with the values
// that `fill` writes: all of the parameter's, in the order of its shape. Unless these are what is
// stored, host memory for all of them is taken meanwhile.
void FillFromFloats(const ModelParameter& parameter, TensorPart part, const kernels::Tensor& tensor,
                    absl::FunctionRef<void(absl::Span<float> values)> fill);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_RUNTIME_STAGE_FILL_TENSORS_H_
