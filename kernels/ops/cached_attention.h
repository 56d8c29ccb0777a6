#ifndef STAGECOACH_KERNELS_OPS_CACHED_ATTENTION_H_
#define STAGECOACH_KERNELS_OPS_CACHED_ATTENTION_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cached_row.h"
#include "kernels/device.h"
#include "kernels/ops/operation.h"
#include "kernels/rotary_scaling.h"
#include "kernels/tensor.h"

namespace stagecoach::kernels {

class CachedAttentionOp;

struct CachedAttentionShape {
  using Op = CachedAttentionOp;

  int64_t rows = 1;       // R: consecutive positions of one sequence
  int64_t positions = 1;  // T: what the cache of a sequence has room for
  // As in AttentionShape.
  int64_t heads = 1;
  int64_t kv_heads = 1;
  int64_t head_size = 1;
  float rotary_base = 0.0F;
  RotaryScaling rotary_scaling = {};
  // Of each the cache has its own. More than one, and rows of them, are for CPU devices.
  int64_t sequences = 1;
  bool rows_are_sequences = false;  // each row is a position of another sequence, instead
  // As in AttentionShape.
  int64_t rotary_size = 0;
  int64_t window = 0;
  float scale = 0.0F;
  float score_cap = 0.0F;
};

// Computes what AttentionOp::Forward (attention.h) does for one sequence whose positions come in
// several calls, R in each: the keys and values of a position are computed once, and stay in a
// cache.
//   qkv (R, (H + 2 G) D)   y (R, H D)   both of the device's activation type
// The same bits for any number of threads. Those of another R, and of AttentionOp, may differ in
// the last places; where rows are sequences, they do not depend on R, nor on the other rows. On a
// CUDA device a call takes at most two kernels and nothing of the host, so that it can be recorded;
// qkv is aligned as the engine's tensors are.
class CachedAttentionOp : public Operation {
 public:
  // Keys, turned, and values: 2 G T D float32 for each sequence, on a CUDA device of its activation
  // type. The same in all calls.
  virtual int64_t cache_bytes() const = 0;
  // Returns the size of the scratch, whose contents need not be kept between calls.
  virtual int64_t workspace_bytes() const = 0;

  // `rows`: of each row if they are sequences, or else of row 0; in the device's memory. Positions
  // before these were there in earlier calls. A row at position T or beyond is not looked at, and
  // its y is 0. A position that comes again replaces what it was, and those after it are to come
  // again too.
  virtual absl::Status Forward(Stream& stream, const CachedRow* rows, const Tensor& qkv,
                               std::byte* cache, const Tensor& y, std::byte* workspace) = 0;
};

// Returns InvalidArgument for what CheckAttention refuses with R positions, or with T.
absl::Status CheckCachedAttention(const CachedAttentionShape& shape, int64_t max_extent);

// InvalidArgument: as for AttentionShape. Unimplemented, on a CUDA device: heads above 128 numbers
// that are not made of words of 16 bytes, or above 256; several sequences.
absl::StatusOr<std::unique_ptr<CachedAttentionOp>> CreateOnCpu(const CachedAttentionShape& shape,
                                                               Device& device);
absl::StatusOr<std::unique_ptr<CachedAttentionOp>> CreateOnCuda(const CachedAttentionShape& shape,
                                                                Device& device);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_OPS_CACHED_ATTENTION_H_
