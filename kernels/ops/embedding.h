#ifndef STAGECOACH_KERNELS_OPS_EMBEDDING_H_
#define STAGECOACH_KERNELS_OPS_EMBEDDING_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cached_row.h"
#include "kernels/device.h"
#include "kernels/ops/operation.h"
#include "kernels/tensor.h"

namespace stagecoach::kernels {

class EmbeddingOp;

struct EmbeddingShape {
  using Op = EmbeddingOp;

  int64_t rows = 1;        // R: samples of a micro-batch
  int64_t positions = 1;   // T: ids of a sample
  int64_t vocabulary = 1;  // V
  int64_t features = 1;    // C
  bool has_positions = false;
  // S, if it is not 0: the rows are positions of sequences (CachedRow), so T is 1, and the table of
  // positions has S. For Forward alone.
  int64_t sequence = 0;
  float scale = 1.0F;  // a, which the activation type rounds
  // If it is not 0: the table is a block of one with W ids, of those from `first` on.
  int64_t all_ids = 0;  // W
  int64_t first = 0;

  int64_t table_positions() const { return sequence > 0 ? sequence : positions; }
  // Returns whether the ids are all that there are, or a block of them.
  bool has_block() const {
    return all_ids == 0 ? first == 0
                        : first >= 0 && first < all_ids && vocabulary <= all_ids - first;
  }
  bool has_scale() const { return scale > 0.0F && scale <= std::numeric_limits<float>::max(); }
};

// y[r, t] = a tokens[ids[r, t]], plus positions[t] if has_positions; with a sequence, that is the
// one at the row's position, and nothing for rows at S or beyond.
//   ids (R, T), int32   tokens, dtokens (V, C)   positions, dpositions (T, C)   y, dy (R, T, C)
// tokens, positions, y and dy are of the device's activation type, gradients float32. Without
// positions the tensors of that name are ignored. An id outside [0, V) makes y NaN, and adds
// nothing to dtokens.
//
// Of a block, y is a summand: the sum over the blocks that make up the table has the bits of a
// block that has it all, in any order. y[r, t] is 0 for ids of other blocks, a tokens[ids[r, t]] is
// rounded, the block with first = 0 alone adds the positions and is NaN for ids outside [0, W),
// and zeros are positive. dpositions is the same for all blocks, and the order of a sum in dtokens
// depends on all ids.
class EmbeddingOp : public Operation {
 public:
  // Returns the size of the scratch for BackwardWeight, whose contents need not be kept between
  // calls.
  virtual int64_t workspace_bytes() const = 0;

  // `rows`: of each row, in the device's memory; null without a sequence. On a CUDA device
  // positions are consecutive, and the first one is read.
  virtual absl::Status Forward(Stream& stream, const Tensor& ids, const Tensor& tokens,
                               const Tensor& positions, const CachedRow* rows, const Tensor& y) = 0;

  // Computes dtokens[v], the sum of a dy[r, t] over all r, t with ids[r, t] = v (0 if there are
  // none), and dpositions[t], the sum of dy[r, t] over r. They are added to the present contents if
  // `accumulate`. The order of a sum depends on the shape and the ids alone. On a CPU device it is
  // the order of (r, t); on a CUDA device the rows of dy, in the order of (id, r, t), are divided
  // into groups of 64, which are summed in order, and then a token's groups are summed. So on both
  // devices a sum of n rows has at most n roundings on each path.
  virtual absl::Status BackwardWeight(Stream& stream, const Tensor& ids, const Tensor& dy,
                                      const Tensor& dtokens, const Tensor& dpositions,
                                      bool accumulate, std::byte* workspace) = 0;
};

// InvalidArgument: also a sequence with more than one id per row, or without positions; a scale
// that is not above 0, or infinite; a block of ids that are not among all.
absl::StatusOr<std::unique_ptr<EmbeddingOp>> CreateOnCpu(const EmbeddingShape& shape,
                                                         Device& device);
absl::StatusOr<std::unique_ptr<EmbeddingOp>> CreateOnCuda(const EmbeddingShape& shape,
                                                          Device& device);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_OPS_EMBEDDING_H_
