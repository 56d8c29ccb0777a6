#ifndef STAGECOACH_ENGINE_MODEL_LAYERS_EMBEDDING_H_
#define STAGECOACH_ENGINE_MODEL_LAYERS_EMBEDDING_H_

#include <cstdint>

#include "engine/model/layer.h"

namespace stagecoach::engine {

struct EmbeddingOptions {
  int64_t vocabulary = 0;  // ids are from 0 to below this
  int64_t features = 0;
  bool positions = false;  // whether each position has a vector as well, learned like the others
  // For how many positions there are vectors, with `positions`; 0: for those of a sample.
  int64_t table_positions = 0;
  // Standard deviations that parameters start with, around 0. The defaults are GPT-2's as nanoGPT
  // has them.
  float token_deviation = 0.02F;
  float position_deviation = 0.02F;
};

// The first layer of a model of ids: a sample [T] of them becomes [T, features], the vector of each
// id (plus that of its position), kernels/ops/embedding.h. Parameters "tokens" [vocabulary,
// features] and, with positions, "positions" [T, features]. Both decay. What else the table of
// positions has is "later_positions", which stays as it is.
LayerFactory Embedding(const EmbeddingOptions& options);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_MODEL_LAYERS_EMBEDDING_H_
