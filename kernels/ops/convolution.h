#ifndef STAGECOACH_KERNELS_OPS_CONVOLUTION_H_
#define STAGECOACH_KERNELS_OPS_CONVOLUTION_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "kernels/ops/operation.h"
#include "kernels/tensor.h"

namespace stagecoach::kernels {

// Returns how many positions a window of `kernel` elements has, each `stride` after the one before,
// along an axis of `extent` elements with `padding` more at both ends. Below 1 means none.
constexpr int64_t WindowsAlong(int64_t extent, int64_t kernel, int64_t stride, int64_t padding) {
  const int64_t room = extent + 2 * padding - kernel;
  return room < 0 ? 0 : room / stride + 1;
}

class ConvolutionOp;

struct ConvolutionShape {
  using Op = ConvolutionOp;

  int64_t samples = 1;  // N
  int64_t inputs = 1;   // I, channels
  int64_t height = 1;   // H
  int64_t width = 1;    // W
  int64_t outputs = 1;  // O, channels
  int64_t kernel = 1;   // K, along both axes, as are the next two
  int64_t stride = 1;
  int64_t padding = 0;  // zeros around each image
  int64_t groups = 1;   // G; divides I and O
  bool has_bias = true;

  int64_t output_height() const { return WindowsAlong(height, kernel, stride, padding); }  // P
  int64_t output_width() const { return WindowsAlong(width, kernel, stride, padding); }    // Q
};

// The cross-correlation that networks call convolution. The channels are in G equal groups, and an
// output reads the inputs of its own:
//   y[n,o,p,q] = b[o] + sum over i, k, l of w[o,i,k,l] x[n, g I/G + i, p stride + k - padding,
//                                                          q stride + l - padding]
// with g = o / (O/G), where x is 0 outside the image.
//   x, dx (N, I, H, W)   w, dw (O, I/G, K, K)   b, db (O)   y, dy (N, O, P, Q)
// All are of the device's activation type, except for dw and db, which are float32. x, y, dx and dy
// are in Device::image_order(); weights have their channels first on every device. Without a bias,
// b and db are ignored. Any number of threads computes the same bits.
//
// InvalidArgument: an extent below 1 or too large, a negative padding, a G that does not divide
// both I and O, a kernel larger than the padded image.
class ConvolutionOp : public Operation {
 public:
  // Returns the size of the scratch for any of the calls below, whose contents need not be kept
  // between calls.
  virtual int64_t workspace_bytes() const = 0;

  virtual absl::Status Forward(Stream& stream, const Tensor& x, const Tensor& w, const Tensor& b,
                               const Tensor& y, std::byte* workspace) = 0;

  // Returns whether BackwardInput can add to dx what it would take a pass over memory to add.
  virtual bool adds_to_dx() const { return false; }

  // Computes dx, plus `dx_addend`, which is as dx is but not dx itself: empty unless adds_to_dx().
  // The sum is rounded once.
  virtual absl::Status BackwardInput(Stream& stream, const Tensor& dy, const Tensor& w,
                                     const Tensor& dx_addend, const Tensor& dx,
                                     std::byte* workspace) = 0;

  // Computes dw and db, which are added to the present contents if `accumulate`.
  virtual absl::Status BackwardWeight(Stream& stream, const Tensor& x, const Tensor& dy,
                                      const Tensor& dw, const Tensor& db, bool accumulate,
                                      std::byte* workspace) = 0;
};

// Returns InvalidArgument as described above; no extent may be above `max_extent`.
absl::Status CheckConvolution(const ConvolutionShape& shape, int64_t max_extent);

absl::StatusOr<std::unique_ptr<ConvolutionOp>> CreateOnCpu(const ConvolutionShape& shape,
                                                           Device& device);
absl::StatusOr<std::unique_ptr<ConvolutionOp>> CreateOnCuda(const ConvolutionShape& shape,
                                                            Device& device);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_OPS_CONVOLUTION_H_
