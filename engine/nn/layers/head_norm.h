#ifndef STAGECOACH_ENGINE_NN_LAYERS_HEAD_NORM_H_
#define STAGECOACH_ENGINE_NN_LAYERS_HEAD_NORM_H_

#include <cstdint>

#include "engine/nn/layer.h"
#include "engine/nn/parsing/layer_type.h"

namespace stagecoach::engine {

struct HeadNormOptions {
  int64_t heads = 1;     // H, query heads
  int64_t kv_heads = 0;  // G, key and value heads; divides H; 0: as many as H
  float epsilon = 1e-5F;
};

// RMSNorm of each head of the queries and of the keys, before attention, as in Qwen 3. Takes and
// returns samples [T, (H + 2 G) D] as Attention takes them (attention.h); the values are copied.
// Parameters: the gains "q_gamma" and "k_gamma", of D numbers each, which all heads share.
LayerFactory HeadNorm(const HeadNormOptions& options);

extern const LayerType kHeadNormType;

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_NN_LAYERS_HEAD_NORM_H_
