#ifndef STAGECOACH_KERNELS_OPS_SWIGLU_H_
#define STAGECOACH_KERNELS_OPS_SWIGLU_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "kernels/ops/operation.h"
#include "kernels/tensor.h"

namespace stagecoach::kernels {

class SwiGluOp;

struct SwiGluShape {
  using Op = SwiGluOp;

  int64_t rows = 1;      // R
  int64_t features = 1;  // C, of the result
};

// Computes y = silu(a) b, where a is the first half of each row of x and b the second, and silu(a)
// = a s with s = 1 / (1 + e^-a) (Shazeer 2020).        x, dx (R, 2 C)   y, dy (R, C)
// All are of the device's activation type.
class SwiGluOp : public Operation {
 public:
  virtual absl::Status Forward(Stream& stream, const Tensor& x, const Tensor& y) = 0;

  // Computes da = dy b (s + a s (1 - s)) and db = dy a s, side by side in dx.
  virtual absl::Status BackwardInput(Stream& stream, const Tensor& dy, const Tensor& x,
                                     const Tensor& dx) = 0;
};

absl::StatusOr<std::unique_ptr<SwiGluOp>> CreateOnCpu(const SwiGluShape& shape, Device& device);
absl::StatusOr<std::unique_ptr<SwiGluOp>> CreateOnCuda(const SwiGluShape& shape, Device& device);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_OPS_SWIGLU_H_
