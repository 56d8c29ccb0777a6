#ifndef STAGECOACH_KERNELS_OPS_SWIGLU_H_
#define STAGECOACH_KERNELS_OPS_SWIGLU_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "kernels/glu_gate.h"
#include "kernels/ops/operation.h"
#include "kernels/tensor.h"

namespace stagecoach::kernels {

class SwiGluOp;

struct SwiGluShape {
  using Op = SwiGluOp;

  int64_t rows = 1;      // R
  int64_t features = 1;  // C, of the result
  GluGate gate = GluGate::kSilu;
};

// Computes y = a s b, where a is the first half of each row of x and b the second, and s the gate
// of a (Shazeer 2020).        x, dx (R, 2 C)   y, dy (R, C)
//   kSilu: s = 1 / (1 + e^-a)
//   kGelu: s = (1 + tanh(u)) / 2 with u = sqrt(2/pi) (a + 0.044715 a^3)
// All are of the device's activation type.
class SwiGluOp : public Operation {
 public:
  virtual absl::Status Forward(Stream& stream, const Tensor& x, const Tensor& y) = 0;

  // Computes da = dy b (s + a ds/da) and db = dy a s, side by side in dx. ds/da is s (1 - s), for
  // kGelu times 2 du/da.
  virtual absl::Status BackwardInput(Stream& stream, const Tensor& dy, const Tensor& x,
                                     const Tensor& dx) = 0;
};

absl::StatusOr<std::unique_ptr<SwiGluOp>> CreateOnCpu(const SwiGluShape& shape, Device& device);
absl::StatusOr<std::unique_ptr<SwiGluOp>> CreateOnCuda(const SwiGluShape& shape, Device& device);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_OPS_SWIGLU_H_
