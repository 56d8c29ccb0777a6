#ifndef STAGECOACH_ENGINE_NN_PARTLY_FROZEN_LAYER_H_
#define STAGECOACH_ENGINE_NN_PARTLY_FROZEN_LAYER_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "engine/nn/layer.h"

namespace stagecoach::engine {

// A layer that computes the gradients of all its parameters, though some of them are frozen: their
// gradients go to scratch, and nobody reads them. The bits are those of the layer alone.
class PartlyFrozenLayer final : public Layer {
 public:
  // `layer` is prepared. `frozen`: the positions among its parameters of those whose gradients are
  // not wanted. Adds the scratch to its spec.
  PartlyFrozenLayer(std::unique_ptr<Layer> layer, const std::vector<size_t>& frozen,
                    LayerSpec& spec);

  absl::StatusOr<LayerSpec> Prepare(const LayerContext& context) override;
  absl::Status Forward(const LayerArgs& args) override { return layer_->Forward(args); }
  absl::Status BackwardInput(const LayerArgs& args) override { return layer_->BackwardInput(args); }
  absl::Status BackwardWeight(const LayerArgs& args) override {
    return WithScratch(&Layer::BackwardWeight, args);
  }
  absl::Status Backward(const LayerArgs& args) override {
    return WithScratch(&Layer::Backward, args);
  }

 private:
  struct Scratch {
    size_t parameter = 0;
    int64_t offset = 0;  // in the workspace
    Shape shape;
  };

  using Pass = absl::Status (Layer::*)(const LayerArgs&);

  // Performs a pass of the layer, with places for the gradients that are not wanted.
  absl::Status WithScratch(Pass pass, const LayerArgs& args);

  const std::unique_ptr<Layer> layer_;
  std::vector<Scratch> scratch_;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_NN_PARTLY_FROZEN_LAYER_H_
