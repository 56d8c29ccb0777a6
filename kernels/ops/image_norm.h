#ifndef STAGECOACH_KERNELS_OPS_IMAGE_NORM_H_
#define STAGECOACH_KERNELS_OPS_IMAGE_NORM_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "kernels/ops/operation.h"
#include "kernels/tensor.h"

namespace stagecoach::kernels {

class ImageNormOp;

struct ImageNormShape {
  using Op = ImageNormOp;

  int64_t samples = 1;   // N
  int64_t channels = 1;  // C
  int64_t area = 1;      // A, elements of a channel of a sample
  // Groups of channels, each of which is normalized by itself in each sample; divides C. 0: each
  // channel is normalized over all samples.
  int64_t groups = 0;
  float epsilon = 1e-5F;

  // Returns S, the number of sets of elements that are normalized together.
  int64_t sets() const { return groups == 0 ? channels : samples * groups; }
  // Returns the number of elements of a set.
  int64_t set_size() const { return samples * channels * area / sets(); }
};

// The tensor that is normalized, and everything else that the calls below have in common.
struct ImageNormTensors {
  Tensor x;
  Tensor gamma, beta;
  Tensor mean, variance;
  Tensor y;
};

// Another norm of the same shape, apart from x and y.
struct OtherImageNorm {
  Tensor gamma, beta;
  Tensor mean, variance;
  float epsilon = 0.0F;
};

// Operations that follow the norm in the same pass over memory; the bits are those of separate
// operations:
//   y = relu(round(norm) + addend), rounded
struct ImageNormTail {
  Tensor addend;          // (N, C, A); empty: none
  bool has_relu = false;  // otherwise relu(z) is z
  // Unless its mean is empty, the addend is the x of this norm, and its rounded result is added.
  // Empty unless ImageNormOp::norms_addend().
  OtherImageNorm addend_norm;
};

// How the gradient comes back through an ImageNormTail.
struct ImageNormTailGradient {
  // True if dy is the gradient of a ReLU's result: where that is not above 0, dy counts as 0.
  bool has_relu = false;
  // Added to dy before all else, and the sum rounded, by Backward and BackwardAndCollect alone; if
  // not empty, neither are dz and dx, and ImageNormOp::adds_to_dy() is true. May be dz.
  Tensor dy_addend;
  // The result of the ReLU. Empty: there was no addend, and it is recomputed from x.
  Tensor y;
  // The part of dy that passes the ReLU: the gradient of the addend. Written, if there is a ReLU,
  // unless empty; may be dy.
  Tensor dz;
};

// What Collect adds to, (S) each.
struct ImageNormAverages {
  Tensor mean, variance;
};

// Batch normalization (Ioffe & Szegedy 2015) and group normalization (Wu & He 2018):
//   y = xhat gamma + beta,  xhat = (x - mean) rstd,  rstd = 1 / sqrt(variance + epsilon)
// with the mean of a set and its variance, the mean of squares of the differences; gamma and beta
// are those of the channel. Set c is channel c of all samples, or, with groups, set n G + g is
// group g of sample n.
//   x, y, dx, dy (N, C, A)   gamma, beta, dgamma, dbeta (C)   mean, variance (S)
// x, y, dx, dy, gamma and beta are of the device's activation type, the others float32. x, y, dx
// and dy are in Device::image_order(). Any number of threads computes the same bits.
//
// InvalidArgument: an extent below 1 or too large, groups that do not divide C, an epsilon that is
// not positive.
class ImageNormOp : public Operation {
 public:
  // Returns the size of the scratch for any of the calls that take a workspace; its contents need
  // not be kept between calls.
  virtual int64_t workspace_bytes() const = 0;

  // Computes `mean` and `variance` of x, and y from them. y may be x or the addend.
  virtual absl::Status Forward(Stream& stream, const ImageNormTensors& tensors,
                               const ImageNormTail& tail, std::byte* workspace) = 0;
  // Computes y from a given mean and variance. y may be x or the addend.
  virtual absl::Status Apply(Stream& stream, const ImageNormTensors& tensors,
                             const ImageNormTail& tail) = 0;

  // Returns whether Forward and Apply take the norm of an addend, and Statistics may be called.
  virtual bool norms_addend() const { return false; }
  // Computes `mean` and `variance` as Forward does, and nothing else.
  virtual absl::Status Statistics(Stream& /*stream*/, const ImageNormTensors& /*tensors*/,
                                  std::byte* /*workspace*/) {
    return absl::UnimplementedError("image norm: statistics alone");
  }

  // Computes dx = rstd (g - mean(g) - xhat mean(g xhat)), g = dy gamma, with the means of each set.
  // `dx` may be `dy`, here and below, if that is not tail.dz. `tensors` are those of Forward; y is
  // not read, and beta only if the ReLU is recomputed.
  virtual absl::Status BackwardInput(Stream& stream, const Tensor& dy,
                                     const ImageNormTensors& tensors,
                                     const ImageNormTailGradient& tail, const Tensor& dx,
                                     std::byte* workspace) = 0;

  // Computes dgamma and dbeta, the sums of dy xhat and of dy over a channel; added to their present
  // contents if `accumulate`. tail.dz is not written; dy may be what BackwardInput wrote there.
  virtual absl::Status BackwardWeight(Stream& stream, const Tensor& dy,
                                      const ImageNormTensors& tensors,
                                      const ImageNormTailGradient& tail, const Tensor& dgamma,
                                      const Tensor& dbeta, bool accumulate,
                                      std::byte* workspace) = 0;

  // Returns whether Backward can add to the gradient of a ReLU's result what it would take a pass
  // over memory to add.
  virtual bool adds_to_dy() const { return false; }
  // Returns whether Backward is faster than the two calls above one after the other.
  virtual bool shares_backward() const { return false; }
  // Does both, faster on devices that can compute both sums at once; the bits are the same.
  virtual absl::Status Backward(Stream& stream, const Tensor& dy, const ImageNormTensors& tensors,
                                const ImageNormTailGradient& tail, const Tensor& dx,
                                const Tensor& dgamma, const Tensor& dbeta, bool accumulate,
                                std::byte* workspace) {
    // The weights come first because dx may be dy.
    const absl::Status status =
        BackwardWeight(stream, dy, tensors, tail, dgamma, dbeta, accumulate, workspace);
    return status.ok() ? BackwardInput(stream, dy, tensors, tail, dx, workspace) : status;
  }

  // Does the same as Backward, or BackwardWeight if dx is empty, and then as Collect, in fewer
  // passes on devices where a small one takes long to start.
  virtual absl::Status BackwardAndCollect(Stream& stream, const Tensor& dy,
                                          const ImageNormTensors& tensors,
                                          const ImageNormTailGradient& tail, const Tensor& dx,
                                          const Tensor& dgamma, const Tensor& dbeta,
                                          const ImageNormAverages& to, bool accumulate,
                                          std::byte* workspace) {
    const absl::Status status =
        dx.empty() ? BackwardWeight(stream, dy, tensors, tail, dgamma, dbeta, accumulate, workspace)
                   : Backward(stream, dy, tensors, tail, dx, dgamma, dbeta, accumulate, workspace);
    if (!status.ok()) return status;
    return Collect(stream, tensors.mean, tensors.variance, to.mean, to.variance, accumulate);
  }

  // Computes to_mean = mean and to_variance = variance M / (M - 1), the unbiased estimate from the
  // M elements of a set, M > 1. Added to their present contents if `accumulate`, for averages over
  // micro-batches.
  virtual absl::Status Collect(Stream& stream, const Tensor& mean, const Tensor& variance,
                               const Tensor& to_mean, const Tensor& to_variance,
                               bool accumulate) = 0;
};

// Returns the InvalidArgument above, for a backend that takes extents of up to `max_extent`.
absl::Status ImageNormRefusal(const ImageNormShape& shape, int64_t max_extent);

absl::StatusOr<std::unique_ptr<ImageNormOp>> CreateOnCpu(const ImageNormShape& shape,
                                                         Device& device);
absl::StatusOr<std::unique_ptr<ImageNormOp>> CreateOnCuda(const ImageNormShape& shape,
                                                          Device& device);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_OPS_IMAGE_NORM_H_
