#ifndef STAGECOACH_ENGINE_NN_LAYERS_EMBEDDING_H_
#define STAGECOACH_ENGINE_NN_LAYERS_EMBEDDING_H_

#include <cstdint>

#include "engine/nn/layer.h"
#include "engine/nn/parsing/layer_type.h"

namespace stagecoach::engine {

struct EmbeddingOptions {
  int64_t vocabulary = 0;  // ids are in [0, vocabulary)
  int64_t features = 0;
  bool positions = false;  // each position has a vector as well, learned like the others
  // Number of positions that have vectors, with `positions`; 0: that of a sample.
  int64_t table_positions = 0;
  // Number of vectors in files of others before that of the first position.
  int64_t position_offset = 0;
  float scale = 1.0F;  // of the tokens' vectors, rounded as the device stores numbers
  // Standard deviations of the initial parameters, around 0. The defaults are GPT-2's, as in
  // nanoGPT.
  float token_deviation = 0.02F;
  float position_deviation = 0.02F;
  // Of the vocabulary, which divides it: with several, devices may share the layer, as they do
  // TensorBlocks (composite/tensor_blocks.h). A power of two.
  int blocks = 1;
};

// The first layer of a model of ids: maps a sample [T] of ids to [T, features], the vector of each
// id, scaled (plus that of its position), kernels/ops/embedding.h. Parameters "tokens" [vocabulary,
// features] and, with positions, "positions" [T, features]. Both decay. The rest of the table of
// positions is "later_positions" and "earlier_positions", which never change.
LayerFactory Embedding(const EmbeddingOptions& options);

extern const LayerType kEmbeddingType;

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_NN_LAYERS_EMBEDDING_H_
