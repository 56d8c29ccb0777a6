#ifndef STAGECOACH_KERNELS_OPS_LINEAR_H_
#define STAGECOACH_KERNELS_OPS_LINEAR_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/activation.h"
#include "kernels/device.h"
#include "kernels/ops/operation.h"
#include "kernels/quantized_matrix.h"
#include "kernels/tensor.h"

namespace stagecoach::kernels {

class LinearOp;

struct LinearShape {
  using Op = LinearOp;

  int64_t rows = 1;     // R: samples of a micro-batch
  int64_t inputs = 1;   // I
  int64_t outputs = 1;  // O
  Activation activation = Activation::kNone;
  bool has_bias = true;
  // For Forward of few rows on a CPU device alone: each number of z is summed in the order of I, so
  // that a row's bits depend on that row alone, not on R. Backward passes are not to be called.
  bool independent_rows = false;
  // With independent rows, w is stored so: uint8. Results have the bits that they have with its
  // values as w.
  std::optional<QuantizedMatrix> quantized = std::nullopt;
};

// Computes y = activation(z), z = x w + b.        x (R, I)   w (I, O)   b (O)   z, y (R, O)
// All are of the device's activation type, except for dw and db, which are float32. Without a bias,
// b and db are ignored. Any number of threads computes the same bits: the tiling depends on the
// shape alone.
class LinearOp : public Operation {
 public:
  // Returns the size of the scratch for any of the calls below, whose contents need not be kept
  // between calls.
  virtual int64_t workspace_bytes() const = 0;
  // Returns the size of the scratch for work that Backward can run aside; 0 if it runs nothing
  // aside.
  virtual int64_t aside_bytes() const { return 0; }

  // `z` is written if KeepsZ(activation); it may be empty otherwise.
  virtual absl::Status Forward(Stream& stream, const Tensor& x, const Tensor& w, const Tensor& b,
                               const Tensor& z, const Tensor& y, std::byte* workspace) = 0;

  // Computes dz = dy * activation'(z) and dx = dz w^T.       dy, dz (R, O)   dx (R, I)
  // Reads z if KeepsZ(activation), otherwise y. With kNone dz is dy itself, and `dz` is ignored, as
  // is y. `dz` may be the same memory as z. An empty `dx` is not computed.
  virtual absl::Status BackwardInput(Stream& stream, const Tensor& dy, const Tensor& y,
                                     const Tensor& z, const Tensor& w, const Tensor& dz,
                                     const Tensor& dx, std::byte* workspace) = 0;

  // Computes dw = x^T dz and db = column sums of dz; added to the present contents of dw and db if
  // `accumulate`.    dw (I, O)   db (O)
  virtual absl::Status BackwardWeight(Stream& stream, const Tensor& x, const Tensor& dz,
                                      const Tensor& dw, const Tensor& db, bool accumulate,
                                      std::byte* workspace) = 0;

  // Does both, faster on devices that can sum dz while writing it; the bits are the same. With
  // kNone `dz` is `dy`. `aside`, if it is not null, is scratch of aside_bytes() for a part of the
  // work, dw, that may then run aside: x, dz and dw must stay untouched until Stream::JoinAside.
  virtual absl::Status Backward(Stream& stream, const Tensor& dy, const Tensor& x, const Tensor& y,
                                const Tensor& z, const Tensor& w, const Tensor& dz,
                                const Tensor& dx, const Tensor& dw, const Tensor& db,
                                bool accumulate, std::byte* workspace, std::byte* /*aside*/) {
    const absl::Status status = BackwardInput(stream, dy, y, z, w, dz, dx, workspace);
    if (!status.ok()) return status;
    return BackwardWeight(stream, x, dz, dw, db, accumulate, workspace);
  }
};

// Returns InvalidArgument if an extent is below 1 or above `max_extent`, or if a weight is
// quantized that is of another shape, or whose rows are not independent.
absl::Status CheckLinear(const LinearShape& shape, int64_t max_extent);

absl::StatusOr<std::unique_ptr<LinearOp>> CreateOnCpu(const LinearShape& shape, Device& device);
absl::StatusOr<std::unique_ptr<LinearOp>> CreateOnCuda(const LinearShape& shape, Device& device);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_OPS_LINEAR_H_
