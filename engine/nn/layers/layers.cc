#include "engine/nn/layers/layers.h"

#include "engine/nn/parsing/parsed_layer.h"

namespace stagecoach::engine {

const LayerType kSequenceType = {
    .name = "sequence",
    .parse = [](LayerEntry& entry,
                ParsedLayer& layer) { return entry.parse_inside("layers", layer); },
};

}  // namespace stagecoach::engine
