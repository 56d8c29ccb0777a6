#include "engine/model/layer.h"

namespace stagecoach::engine {

absl::Status Layer::BackwardWeight(const LayerArgs&) { return absl::OkStatus(); }

}  // namespace stagecoach::engine
