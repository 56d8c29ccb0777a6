#ifndef STAGECOACH_ENGINE_MODELS_MODEL_H_
#define STAGECOACH_ENGINE_MODELS_MODEL_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/nn/layer.h"
#include "engine/nn/loss.h"
#include "engine/nn/parameter_rules.h"
#include "engine/nn/parameter_table.h"
#include "engine/nn/skips.h"

namespace stagecoach::engine {

// A network: an ordered list of layers, each mapping one activation to the next, and a loss. It is
// only a description: nothing is allocated before a Trainer is made.
struct Model {
  Shape input;  // of one sample
  // Vocabulary size of the ids that it is fed, each in [0, vocabulary); 0: it is fed numbers.
  int64_t vocabulary = 0;
  std::vector<LayerFactory> layers;
  // Parameters that layers share, wherever the model is cut between them. Each layer keeps a copy
  // of its own; all copies have the same bits at all times, and count once in norms and
  // checkpoints.
  std::vector<ParameterTie> ties = {};
  // Layers that also read an earlier layer's output, past those in between, wherever the model is
  // cut. Gradients of a layer's output are summed in one order: the next layer's, then those of its
  // skips by the layer that reads them.
  std::vector<Skip> skips = {};
  LossFactory loss = SoftmaxCrossEntropy();
  // All parameters keep their values, except for those of adapters (LayerContext::is_frozen).
  bool is_frozen = false;
  // What sets some parameters apart in training; the last rule whose pattern matches is a
  // parameter's.
  std::vector<ParameterRule> parameter_rules = {};
  // The documents in a sample of its data do not see each other (LayerContext::has_documents).
  // Without it, data with documents is refused.
  bool has_documents = false;
  // LayerContext::cached_positions. 0: a sample has all the positions that see each other.
  int64_t cached_positions = 0;
  int64_t cached_sequences = 1;  // LayerContext::cached_sequences

  bool takes_ids() const { return vocabulary > 0; }
  int num_layers() const { return static_cast<int>(layers.size()); }
};

// Returns the default network: a linear layer with GELU from `features` to `width`, layers - 2
// residual blocks x + gelu(linear(layer_norm(x))) of that width, and a linear layer to `classes`.
// With 784 features, 20 layers, width 2304 and 10 classes: 97.5 million parameters.
// InvalidArgument: fewer than 2 layers, or a width, feature or class count below 1.
absl::StatusOr<Model> DefaultNetwork(int64_t features, int64_t classes, int layers, int64_t width);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_MODELS_MODEL_H_
