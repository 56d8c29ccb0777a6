#ifndef STAGECOACH_KERNELS_OPS_POOLING_H_
#define STAGECOACH_KERNELS_OPS_POOLING_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "kernels/ops/convolution.h"
#include "kernels/ops/operation.h"
#include "kernels/tensor.h"

namespace stagecoach::kernels {

enum class Pooling : uint8_t { kMax, kAverage };

class PoolingOp;

struct PoolingShape {
  using Op = PoolingOp;

  Pooling kind = Pooling::kMax;
  int64_t samples = 1;   // N
  int64_t channels = 1;  // C
  int64_t height = 1;    // H
  int64_t width = 1;     // W
  int64_t kernel_height = 1;
  int64_t kernel_width = 1;
  int64_t stride = 1;
  int64_t padding = 0;  // around each image; at most half of the kernel

  int64_t output_height() const {  // P
    return WindowsAlong(height, kernel_height, stride, padding);
  }
  int64_t output_width() const {  // Q
    return WindowsAlong(width, kernel_width, stride, padding);
  }
};

// Computes the largest element of each window, or NaN if it contains one; or the average of the
// elements, in which padding counts as 0.
//   x, dx (N, C, H, W)   y, dy (N, C, P, Q)
// All are of the device's activation type, and in Device::image_order().
//
// InvalidArgument: an extent below 1 or too large, a negative padding or one above half of the
// kernel, a kernel larger than the padded image.
class PoolingOp : public Operation {
 public:
  // Returns the size of the scratch for BackwardInput.
  virtual int64_t workspace_bytes() const = 0;

  virtual absl::Status Forward(Stream& stream, const Tensor& x, const Tensor& y) = 0;

  // A maximum receives the gradient of its window (the first of equal ones in row order); for
  // averages each element receives an equal share. `x` is read for maxima; otherwise it may be
  // empty.
  virtual absl::Status BackwardInput(Stream& stream, const Tensor& dy, const Tensor& x,
                                     const Tensor& dx, std::byte* workspace) = 0;
};

// Returns the InvalidArgument above, for a backend that takes extents of up to `max_extent`.
absl::Status PoolingRefusal(const PoolingShape& shape, int64_t max_extent);

absl::StatusOr<std::unique_ptr<PoolingOp>> CreateOnCpu(const PoolingShape& shape, Device& device);
absl::StatusOr<std::unique_ptr<PoolingOp>> CreateOnCuda(const PoolingShape& shape, Device& device);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_OPS_POOLING_H_
