#ifndef STAGECOACH_KERNELS_OPS_EMBEDDING_H_
#define STAGECOACH_KERNELS_OPS_EMBEDDING_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
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
  // S, if it is not 0: the rows are consecutive positions of one sequence, so T is 1, and the table
  // of positions has S. For Forward alone.
  int64_t sequence = 0;

  int64_t table_positions() const { return sequence > 0 ? sequence : positions; }
};

// y[r, t] = tokens[ids[r, t]], plus positions[t] if has_positions; with a sequence, that is
// positions[first + r], and nothing for rows at S or beyond.
//   ids (R, T), int32   tokens, dtokens (V, C)   positions, dpositions (T, C)   y, dy (R, T, C)
// tokens, positions, y and dy are of the device's activation type, gradients float32. Without
// positions the tensors of that name are ignored. An id outside [0, V) gives not-a-number, and
// nothing to dtokens.
class EmbeddingOp : public Operation {
 public:
  // Scratch for BackwardWeight. Its contents need not be kept between calls.
  virtual int64_t workspace_bytes() const = 0;

  // `first_position`: of row 0, in the device's memory; null without a sequence.
  virtual absl::Status Forward(Stream& stream, const Tensor& ids, const Tensor& tokens,
                               const Tensor& positions, const int64_t* first_position,
                               const Tensor& y) = 0;

  // dtokens[v] = the sum of dy[r, t] where ids[r, t] = v; 0 if there are none. dpositions[t] = the
  // sum of dy[r, t] over r. Added to what they hold if `accumulate`. The order of a sum depends on
  // the shape and the ids alone. On a CPU device it is that of (r, t); on a CUDA device the rows of
  // dy, in the order of (id, r, t), are divided into groups of 64, which are summed in order, and
  // then a token's groups are. So a sum of n rows has at most n roundings on each path, in both.
  virtual absl::Status BackwardWeight(Stream& stream, const Tensor& ids, const Tensor& dy,
                                      const Tensor& dtokens, const Tensor& dpositions,
                                      bool accumulate, std::byte* workspace) = 0;
};

// InvalidArgument: also a sequence of more ids to a row than one, or without positions.
absl::StatusOr<std::unique_ptr<EmbeddingOp>> CreateOnCpu(const EmbeddingShape& shape,
                                                         Device& device);
absl::StatusOr<std::unique_ptr<EmbeddingOp>> CreateOnCuda(const EmbeddingShape& shape,
                                                          Device& device);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_OPS_EMBEDDING_H_
