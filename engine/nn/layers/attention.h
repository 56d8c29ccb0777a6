#ifndef STAGECOACH_ENGINE_NN_LAYERS_ATTENTION_H_
#define STAGECOACH_ENGINE_NN_LAYERS_ATTENTION_H_

#include <cstdint>

#include "engine/nn/layer.h"
#include "engine/nn/layers/rotary.h"
#include "engine/nn/parsing/layer_type.h"

namespace stagecoach::engine {

struct AttentionOptions {
  int64_t heads = 1;         // H, query heads
  int64_t kv_heads = 0;      // G, key and value heads; divides H; 0: as many as H
  float rotary_base = 0.0F;  // such as 10000; 0: no rotary embedding
  RotaryScaling rotary_scaling = {};
  int64_t rotary_size = 0;  // numbers of a head that are rotated, in two halves of it; 0: all
  int64_t window = 0;       // positions that one sees, itself included; 0: all before it
  float scale = 0.0F;       // of scores; 0: 1 / sqrt(D)
  float score_cap = 0.0F;   // scores s become score_cap tanh(s / score_cap); 0: they do not
};

// Causal attention (kernels/ops/attention.h) between the positions of a sample. Takes samples [T,
// (H + 2 G) D], as a Linear layer outputs them: at each position the queries of all heads, then the
// keys of the kv heads, then their values; D follows from the width. The output is [T, H D]. No
// parameters. Between F and B it keeps one number per sample, head and position.
LayerFactory Attention(const AttentionOptions& options);

extern const LayerType kAttentionType;

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_NN_LAYERS_ATTENTION_H_
