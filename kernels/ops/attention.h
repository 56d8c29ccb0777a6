#ifndef STAGECOACH_KERNELS_OPS_ATTENTION_H_
#define STAGECOACH_KERNELS_OPS_ATTENTION_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "kernels/ops/operation.h"
#include "kernels/rotary_scaling.h"
#include "kernels/tensor.h"

namespace stagecoach::kernels {

class AttentionOp;

struct AttentionShape {
  using Op = AttentionOp;

  int64_t samples = 1;       // B
  int64_t positions = 1;     // T
  int64_t heads = 1;         // H, of queries
  int64_t kv_heads = 1;      // G, of keys and values; divides H
  int64_t head_size = 1;     // D
  float rotary_base = 0.0F;  // 0: queries and keys are not rotated
  RotaryScaling rotary_scaling = {};
  int64_t rotary_size = 0;  // R, of the numbers of a head; 0: all
  int64_t window = 0;       // W: the most positions that one sees, itself included; 0: any number
  float scale = 0.0F;       // a, of scores; 0: 1 / sqrt(D)
  float score_cap = 0.0F;   // c: scores stay between -c and c; 0: they are not capped
  bool has_documents = false;  // a sample consists of documents that do not see each other
};

// Causal attention of several heads (Vaswani et al. 2017), which may share keys and values in
// groups (grouped queries, Ainslie et al. 2023): head h reads those of kv head h / (H / G). For
// each sample, head and position t, with sums over the positions u that t sees:
//   y_t = sum of p_tu v_u,  p_tu = exp(s_tu - l_t),  s_tu = a q_t k_u,
//   l_t = log of the sum of exp(s_tu).
// Position t sees itself and earlier positions u <= t; with a window those above t - W alone
// (Beltagy et al. 2020, Mistral), with documents those from the first one of its document on. With
// a cap, s_tu = c tanh(a q_t k_u / c) (Gemma 2).
//   documents (B, T) int32, on the device: the first position of the document that position t is
//   in, from 0 to t, and no less than that of t - 1; read with has_documents alone
//   qkv, dqkv (B, T, (H + 2 G) D): at each position the queries of all heads, then the keys of the
//   G kv heads, then their values
//   y, dy (B, T, H D)   statistics (B, H, T): l
// With a rotary base, q and k are rotated where they are read (Su et al. 2021): for i < R/2 the
// pair (i, i + D/2) of position t by the angle t base^(-2i/R), as in Llama, whose R is D, with
// frequencies that may be scaled (rotary_scaling.h). y and the gradients are of the device's
// activation type, statistics float32.
//
// Scores exist only in tiles, which backward recomputes (FlashAttention, Dao et al. 2022); no
// matrix grows with the square of T beyond a fixed size. Any number of threads computes the same
// bits.
//
// InvalidArgument: an extent below 1 or too large, a G that does not divide H, a rotary base, scale
// or cap that is negative, infinite or NaN, a negative window, a rotary base with an odd D, an R
// that is odd, negative or above D, a scaling that is none (IsRotaryScaling). On CUDA devices some
// head sizes need addresses that are multiples of 16; calls then return InvalidArgument for others.
class AttentionOp : public Operation {
 public:
  // Returns the size of the scratch for any of the calls below; its contents need not be kept
  // between calls. On CPU devices it holds a few tiles per thread; on CUDA devices dy_t y_t, with a
  // rotary base rotated queries and keys, and up to 560 MiB for a library. The size depends on the
  // shape and the type alone.
  virtual int64_t workspace_bytes() const = 0;

  virtual absl::Status Forward(Stream& stream, const Tensor& qkv, const Tensor& documents,
                               const Tensor& statistics, const Tensor& y, std::byte* workspace) = 0;

  // Computes, with g_tu = p_tu (dy_t v_u - dy_t y_t), times 1 - (s_tu / c)^2 with a cap:
  //   dq_t = a times the sum over u of g_tu k_u   dk_u = a times the sum over t of g_tu q_t
  //   dv_u = the sum over t of p_tu dy_t          (dk and dv also over the heads of a group)
  // `dqkv` may not overlap the others.
  virtual absl::Status BackwardInput(Stream& stream, const Tensor& dy, const Tensor& qkv,
                                     const Tensor& documents, const Tensor& y,
                                     const Tensor& statistics, const Tensor& dqkv,
                                     std::byte* workspace) = 0;
};

// Returns InvalidArgument for shapes that no backend takes if its extents, and their products that
// count work and bytes, are at most `max_extent`, which is below 2^31.
absl::Status CheckAttention(const AttentionShape& shape, int64_t max_extent);

absl::StatusOr<std::unique_ptr<AttentionOp>> CreateOnCpu(const AttentionShape& shape,
                                                         Device& device);
absl::StatusOr<std::unique_ptr<AttentionOp>> CreateOnCuda(const AttentionShape& shape,
                                                          Device& device);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_OPS_ATTENTION_H_
