#ifndef STAGECOACH_ENGINE_NN_PARSING_LAYER_TYPE_H_
#define STAGECOACH_ENGINE_NN_PARSING_LAYER_TYPE_H_

#include "absl/status/status.h"

namespace stagecoach::engine {

struct LayerEntry;
struct ParsedLayer;

// A type of layers in model files: a row of kLayerTypes (engine/nn/layers/layers.h), which is
// defined beside the layer.
struct LayerType {
  const char* name = nullptr;  // "linear"
  // Parses the layer's own keys (engine/nn/parsing/parsed_layer.h).
  absl::Status (*parse)(LayerEntry& entry, ParsedLayer& layer) = nullptr;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_NN_PARSING_LAYER_TYPE_H_
