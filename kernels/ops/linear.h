#ifndef STAGECOACH_KERNELS_OPS_LINEAR_H_
#define STAGECOACH_KERNELS_OPS_LINEAR_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/activation.h"
#include "kernels/device.h"
#include "kernels/ops/layer_norm.h"
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
  // For Forward of few rows: a row's bits depend on that row alone, not on R. Backward passes are
  // not to be called. On a CPU device each number of z is summed in the order of I; a CUDA device
  // has this for quantized weights alone.
  bool independent_rows = false;
  // w is stored so: uint8, and has the values that DequantizeOp computes. A product expands it into
  // the workspace, which includes it, or takes it as it is: on CPU devices if rows are independent,
  // on CUDA devices few rows forward. Which one depends on the shape alone.
  std::optional<QuantizedMatrix> quantized = std::nullopt;
  // Backward passes are not to be called, so the workspace need not have room for them.
  bool forward_only = false;
  // No operation that is issued along with Forward writes w, or gamma and beta of an input's norm,
  // which may thus be read before those ahead of it have ended.
  bool weight_is_constant = false;

  bool is_only_forward() const { return forward_only || independent_rows; }
};

// The operations before and after a product that it does in the same pass, with the bits of the
// operations apart.
struct LinearNeighbors {
  std::optional<InputNorm> norm;  // x is the norm's input
  Tensor addend;                  // (R, O): y += addend, which may be in y's memory; empty: none
  bool has_relu = false;          // y = max(y, 0), after the sum
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
  // Returns whether Forward writes the values of a quantized weight to memory, and reads them
  // there.
  virtual bool expands_weight() const { return false; }

  // `z` is written if KeepsZ(activation); it may be empty otherwise.
  virtual absl::Status Forward(Stream& stream, const Tensor& x, const Tensor& w, const Tensor& b,
                               const Tensor& z, const Tensor& y, std::byte* workspace) = 0;

  // Returns whether the product takes its neighbors. That may depend on the GPU, so no plan of
  // memory may depend on it.
  virtual bool takes_neighbors() const { return false; }
  // Does what Forward does and what LinearNeighbors says. With a norm, y must not overlap x.
  // Pre-condition: takes_neighbors().
  virtual absl::Status ForwardWithNeighbors(Stream& /*stream*/,
                                            const LinearNeighbors& /*neighbors*/,
                                            const Tensor& /*x*/, const Tensor& /*w*/,
                                            const Tensor& /*b*/, const Tensor& /*z*/,
                                            const Tensor& /*y*/, std::byte* /*workspace*/) {
    return absl::UnimplementedError("linear: the product does not take its neighbors");
  }

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

// Returns InvalidArgument if an extent is below 1 or above `max_extent`, or if a quantized weight
// is of another shape.
absl::Status CheckLinear(const LinearShape& shape, int64_t max_extent);

// Returns the operation of a shape with a quantized weight, made of the device's DequantizeOp and
// of its LinearOp for the values, which lie at the beginning of the workspace.
absl::StatusOr<std::unique_ptr<LinearOp>> CreateExpandedLinear(const LinearShape& shape,
                                                               Device& device);

absl::StatusOr<std::unique_ptr<LinearOp>> CreateOnCpu(const LinearShape& shape, Device& device);
absl::StatusOr<std::unique_ptr<LinearOp>> CreateOnCuda(const LinearShape& shape, Device& device);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_OPS_LINEAR_H_
