#ifndef STAGECOACH_KERNELS_OPS_HEAD_H_
#define STAGECOACH_KERNELS_OPS_HEAD_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "kernels/ops/head_choice.h"
#include "kernels/ops/loss_terms.h"
#include "kernels/ops/operation.h"
#include "kernels/tensor.h"

namespace stagecoach::kernels {

class HeadOp;

// Of HeadShape::tile_rows.
inline constexpr int64_t kHeadTileGranule = 128;

struct HeadShape {
  using Op = HeadOp;

  int64_t rows = 1;      // R
  int64_t features = 1;  // F
  int64_t classes = 1;   // C
  // P: rows of a sample, whose loss is their mean. R is a multiple of it.
  int64_t positions = 1;
  // Rows whose logits are in memory at once, at most: a multiple of kHeadTileGranule. 0: as many as
  // are fast. Sums over rows are formed tile by tile.
  int64_t tile_rows = 0;
};

// The logits z = x w^T and their softmax cross-entropy (kernels/ops/loss.h) as one operation. The
// logits exist for a tile of rows at a time: what is in memory does not grow with R x C.
//   x, dx (R, F)   w (C, F)   labels (R) int32   result (2) float64, as LossOp has it
// With dz the derivative of result[0] times the scale:   dx = dz w   dw = dz^T x
// All of the device's activation type, but for dw, which is float32. `terms` are in the device's
// memory. Rows of samples that are not valid are padding: they count for nothing, and their dz is
// 0.
//
// The gradients come from BackwardInput and BackwardWeight, or from Backward, which computes the
// logits once where the two compute them twice. The bits are the same, for any number of threads.
class HeadOp : public Operation {
 public:
  // Scratch for any of the calls below. Its contents need not be kept between calls.
  virtual int64_t workspace_bytes() const = 0;
  // What BackwardInput leaves for BackwardWeight: a few numbers of each row.
  virtual int64_t statistics_bytes() const = 0;

  // `logits` (n, C), those of the first n rows, is in host memory and complete when the stream has
  // come to what follows; empty: they are not wanted. Neither is the loss if `result` is empty;
  // then labels and terms are not read.
  virtual absl::Status Forward(Stream& stream, const Tensor& x, const Tensor& w,
                               const Tensor& labels, const LossTerms* terms, const Tensor& logits,
                               const Tensor& result, std::byte* workspace) = 0;

  // The class whose logit of the first row is the largest, and of equal ones the first. kNoClass if
  // a logit of the classes to choose among is not finite.
  virtual absl::Status Choose(Stream& stream, const Tensor& x, const Tensor& w,
                              const HeadChoice& choice, std::byte* workspace) = 0;

  // An empty `dx` is not computed, here and in Backward.
  virtual absl::Status BackwardInput(Stream& stream, const Tensor& x, const Tensor& w,
                                     const Tensor& labels, const LossTerms* terms,
                                     const Tensor& result, const Tensor& dx, std::byte* statistics,
                                     std::byte* workspace) = 0;

  // dw is added to what it holds if `accumulate`, here and in Backward.
  virtual absl::Status BackwardWeight(Stream& stream, const Tensor& x, const Tensor& w,
                                      const std::byte* statistics, const Tensor& dw,
                                      bool accumulate, std::byte* workspace) = 0;

  virtual absl::Status Backward(Stream& stream, const Tensor& x, const Tensor& w,
                                const Tensor& labels, const LossTerms* terms, const Tensor& result,
                                const Tensor& dx, const Tensor& dw, bool accumulate,
                                std::byte* workspace) = 0;
};

// InvalidArgument: what no backend takes whose extents are at most `max_extent`.
absl::Status CheckHead(const HeadShape& shape, int64_t max_extent);

absl::StatusOr<std::unique_ptr<HeadOp>> CreateOnCpu(const HeadShape& shape, Device& device);
absl::StatusOr<std::unique_ptr<HeadOp>> CreateOnCuda(const HeadShape& shape, Device& device);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_OPS_HEAD_H_
