#ifndef STAGECOACH_KERNELS_CUDA_OPS_LINEAR_QUANTIZED_ROWS_H_
#define STAGECOACH_KERNELS_CUDA_OPS_LINEAR_QUANTIZED_ROWS_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "kernels/ops/linear.h"

namespace stagecoach::kernels {

// The most rows that are multiplied by what is stored, rather than by a weight that is expanded:
// those of tokens that are generated, and of short pieces of a prompt.
inline constexpr int64_t kMostQuantizedRows = 16;

// Returns whether CreateQuantizedRows takes the shape, which has a quantized weight.
bool TakesQuantizedRows(const LinearShape& shape);

// Returns the operation for a shape that is taken. Forward needs little workspace, or none.
absl::StatusOr<std::unique_ptr<LinearOp>> CreateQuantizedRows(const LinearShape& shape,
                                                              Device& device);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_OPS_LINEAR_QUANTIZED_ROWS_H_
