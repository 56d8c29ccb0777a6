#ifndef STAGECOACH_KERNELS_CUDA_OPS_ATTENTION_ATTENTION_SHAPE_H_
#define STAGECOACH_KERNELS_CUDA_OPS_ATTENTION_ATTENTION_SHAPE_H_

#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/ops/attention/attention_kernels.h"
#include "kernels/ops/attention.h"

// What kernels, and the keys of what was measured, need to know of a shape.
namespace stagecoach::kernels {

// Returns the window; 0 if there is none, or if all earlier positions are within it.
inline int WindowOf(const AttentionShape& shape) {
  return shape.window < shape.positions ? static_cast<int>(shape.window) : 0;
}

// Returns whether positions see fewer than all earlier ones, or scores are capped. cuDNN's graphs
// have no such masks, and no tanh.
inline bool IsRestricted(const AttentionShape& shape) {
  return WindowOf(shape) > 0 || shape.has_documents || shape.score_cap > 0.0F;
}

inline ScoreFactors FactorsOf(const AttentionShape& shape) {
  return FactorsOf(shape.scale > 0.0F ? shape.scale : DefaultScale(shape.head_size),
                   shape.score_cap);
}

// Returns a text that differs for shapes whose kernels may take different times. Scales do not
// matter.
inline std::string TextOf(const AttentionShape& shape) {
  const int window = WindowOf(shape);
  return absl::StrCat(
      shape.samples, "x", shape.positions, ", ", shape.heads, " of ", shape.kv_heads, " heads x ",
      shape.head_size, shape.rotary_base > 0.0F ? ", rotary" : "",
      window > 0 ? absl::StrCat(", window ", window) : "", shape.has_documents ? ", documents" : "",
      shape.score_cap > 0.0F ? ", capped" : "");
}

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_OPS_ATTENTION_ATTENTION_SHAPE_H_
