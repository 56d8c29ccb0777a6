#ifndef STAGECOACH_KERNELS_OPS_HEAD_H_
#define STAGECOACH_KERNELS_OPS_HEAD_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "kernels/head_choice.h"
#include "kernels/loss_terms.h"
#include "kernels/ops/layer_norm.h"
#include "kernels/ops/operation.h"
#include "kernels/tensor.h"

namespace stagecoach::kernels {

class HeadOp;

// HeadShape::tile_rows is a multiple of this.
inline constexpr int64_t kHeadTileGranule = 128;

// What a block of the classes contributes to the softmax of a row.
enum class BlockNumber : int64_t {
  kMaximum,  // of the block's logits
  kSum,      // of e^(logit - maximum), rounded
  kSumRest,  // what the rounding left, if the device knows it
  kAtLabel,  // the label's logit; 0 if the label is of another block
  kLargest,  // the first class, of all blocks, that has the maximum
  kBlockNumbers,
};
inline constexpr auto kBlockNumbers = static_cast<int64_t>(BlockNumber::kBlockNumbers);
// float32 represents the number of each exactly.
inline constexpr int64_t kMostBlockClasses = int64_t{1} << 24;

struct HeadShape {
  using Op = HeadOp;

  int64_t rows = 1;      // R
  int64_t features = 1;  // F
  int64_t classes = 1;   // C
  // P: rows of a sample, whose loss is their mean. R is a multiple of P.
  int64_t positions = 1;
  // The largest number of rows whose logits are in memory at once: a multiple of kHeadTileGranule.
  // 0: chosen for speed. Sums over rows are formed tile by tile.
  int64_t tile_rows = 0;
  // As in LinearShape, for the logits of at most kHeadTileGranule rows: Forward, without a loss,
  // and Choose.
  bool independent_rows = false;
  float logit_cap = 0.0F;  // c: logits stay between -c and c; 0: they are not capped
};

// The logits z = x w^T and their softmax cross-entropy (kernels/ops/loss.h) as one operation. The
// logits exist for only one tile of rows at a time, so memory does not grow with R x C.
// With a cap, the logits are c tanh(x w^T / c) instead (Gemma 2), but NaN for products that are NaN
// or infinite, and dz is the derivative by the products.
//   x, dx (R, F)   w (C, F)   labels (R) int32   result (2) float64, as in LossOp
// With dz, the derivative of result[0] times the scale:   dx = dz w   dw = dz^T x
// All are of the device's activation type, except for dw, which is float32. `terms` are in the
// device's memory. Rows of samples that are not valid are padding: they do not count, and their dz
// is 0.
//
// The gradients come from BackwardInput and BackwardWeight, or from Backward, which computes the
// logits once where the other two compute them twice. The bits are the same either way, and for any
// number of threads.
class HeadOp : public Operation {
 public:
  // Returns the size of the scratch for any of the calls below, whose contents need not be kept
  // between calls.
  virtual int64_t workspace_bytes() const = 0;
  // Returns the size of what BackwardInput leaves for BackwardWeight: a few numbers per row.
  virtual int64_t statistics_bytes() const = 0;

  // `logits` (n, C) are those of the first n rows, in host memory, and are complete when the stream
  // has reached the work that follows; empty if not wanted. `result` is empty if the loss is not
  // wanted; then labels and terms are not read.
  virtual absl::Status Forward(Stream& stream, const Tensor& x, const Tensor& w,
                               const Tensor& labels, const LossTerms* terms, const Tensor& logits,
                               const Tensor& result, std::byte* workspace) = 0;

  // Chooses the class with the largest logit of the first row, or the first of several. kNoClass if
  // a logit of the classes to choose from is NaN or infinite.
  virtual absl::Status Choose(Stream& stream, const Tensor& x, const Tensor& w,
                              const HeadChoice& choice, std::byte* workspace) = 0;

  // Returns whether ChooseOfNorm may be called. No plan of memory may depend on it.
  virtual bool chooses_of_norm() const { return false; }
  // Chooses as Choose does for the norm of x. No operation that is issued along with either writes
  // w, gamma or beta.
  virtual absl::Status ChooseOfNorm(Stream& /*stream*/, const InputNorm& /*norm*/,
                                    const Tensor& /*x*/, const Tensor& /*w*/,
                                    const HeadChoice& /*choice*/, std::byte* /*workspace*/) {
    return absl::UnimplementedError("head: does not compute the norm of its input");
  }

  // An empty `dx` is not computed, here and in Backward.
  virtual absl::Status BackwardInput(Stream& stream, const Tensor& x, const Tensor& w,
                                     const Tensor& labels, const LossTerms* terms,
                                     const Tensor& result, const Tensor& dx, std::byte* statistics,
                                     std::byte* workspace) = 0;

  // dw is added to its present contents if `accumulate`, here and in Backward.
  virtual absl::Status BackwardWeight(Stream& stream, const Tensor& x, const Tensor& w,
                                      const std::byte* statistics, const Tensor& dw,
                                      bool accumulate, std::byte* workspace) = 0;

  virtual absl::Status Backward(Stream& stream, const Tensor& x, const Tensor& w,
                                const Tensor& labels, const LossTerms* terms, const Tensor& result,
                                const Tensor& dx, const Tensor& dw, bool accumulate,
                                std::byte* workspace) = 0;

  // ---- The same for a head whose classes are divided into blocks, for example among devices. C
  // are then those of one block, from `first` of all on, and w has its rows.

  // Computes what the block contributes: numbers (kBlockNumbers, R) float32. Labels are of all
  // classes.
  virtual absl::Status NumbersOfBlock(Stream& stream, const Tensor& x, const Tensor& w,
                                      const Tensor& labels, int64_t first, const Tensor& numbers,
                                      std::byte* workspace);
  // Joins what all blocks contribute, numbers (blocks, kBlockNumbers, R), one by one in the order
  // of their classes: computes the result, and leaves statistics for GradientsOfBlock. `classes`:
  // of all blocks, at most kMostBlockClasses.
  virtual absl::Status JoinBlocks(Stream& stream, const Tensor& numbers, int64_t classes,
                                  const Tensor& labels, const LossTerms* terms,
                                  const Tensor& result, std::byte* statistics,
                                  std::byte* workspace);
  // Computes dx, the block's summand alone, and dw. Either may be empty: it is not computed.
  virtual absl::Status GradientsOfBlock(Stream& stream, const Tensor& x, const Tensor& w,
                                        int64_t first, const std::byte* statistics,
                                        const Tensor& dx, const Tensor& dw, bool accumulate,
                                        std::byte* workspace);
};

// Returns InvalidArgument for shapes that no backend takes if its extents are at most `max_extent`.
absl::Status CheckHead(const HeadShape& shape, int64_t max_extent);

absl::StatusOr<std::unique_ptr<HeadOp>> CreateOnCpu(const HeadShape& shape, Device& device);
absl::StatusOr<std::unique_ptr<HeadOp>> CreateOnCuda(const HeadShape& shape, Device& device);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_OPS_HEAD_H_
