#ifndef STAGECOACH_KERNELS_OPS_ELEMENTWISE_H_
#define STAGECOACH_KERNELS_OPS_ELEMENTWISE_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/device.h"
#include "kernels/tensor.h"

namespace stagecoach::kernels {

// Operations that read and write each element once. All tensors of a call have the same number of
// elements and the same type: float32, or the device's activation type.
class ElementwiseOps {
 public:
  virtual ~ElementwiseOps() = default;

  // Computes y = a + b. `y` may be `a` or `b`.
  virtual absl::Status Add(Stream& stream, const Tensor& a, const Tensor& b, const Tensor& y) = 0;
  // Computes y, the sum of the addends, in a binary tree over their order whose left half has the
  // largest power of two of them. Those without memory are left out, but keep their places; not all
  // are. All are float32. `y` may be one of the addends, which may change.
  virtual absl::Status SumTree(Stream& stream, absl::Span<const Tensor> addends,
                               const Tensor& y) = 0;
  // Copies x to y. Their memory must not overlap.
  virtual absl::Status Copy(Stream& stream, const Tensor& x, const Tensor& y) = 0;
  // Sets y to zeros.
  virtual absl::Status Clear(Stream& stream, const Tensor& y) = 0;
};

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_OPS_ELEMENTWISE_H_
