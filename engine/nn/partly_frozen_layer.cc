#include "engine/nn/partly_frozen_layer.h"

namespace stagecoach::engine {

using partition::AlignTensor;

PartlyFrozenLayer::PartlyFrozenLayer(std::unique_ptr<Layer> layer,
                                     const std::vector<size_t>& frozen, LayerSpec& spec)
    : layer_(std::move(layer)) {
  int64_t& workspace = spec.memory.workspace_bytes;
  workspace = AlignTensor(workspace);
  for (const size_t parameter : frozen) {
    const Shape& shape = spec.parameters[parameter].shape;
    scratch_.push_back({parameter, workspace, shape});
    workspace += AlignTensor(kernels::Float32(nullptr, shape).bytes());
  }
  // What runs aside would still write its scratch while another layer uses the workspace.
  spec.aside_bytes = 0;
}

absl::StatusOr<LayerSpec> PartlyFrozenLayer::Prepare(const LayerContext& /*context*/) {
  return absl::InternalError("the layer is prepared already");
}

std::vector<Tensor> PartlyFrozenLayer::WithScratch(const LayerArgs& args) const {
  std::vector<Tensor> gradients(args.gradients.begin(), args.gradients.end());
  for (const Scratch& scratch : scratch_) {
    gradients[scratch.parameter] = {args.workspace + scratch.offset, kernels::DType::kFloat32,
                                    scratch.shape};
  }
  return gradients;
}

absl::Status PartlyFrozenLayer::BackwardWeight(const LayerArgs& args) {
  const std::vector<Tensor> gradients = WithScratch(args);
  LayerArgs own = args;
  own.gradients = gradients;
  own.aside = nullptr;
  return layer_->BackwardWeight(own);
}

absl::Status PartlyFrozenLayer::Backward(const LayerArgs& args) {
  const std::vector<Tensor> gradients = WithScratch(args);
  LayerArgs own = args;
  own.gradients = gradients;
  own.aside = nullptr;
  return layer_->Backward(own);
}

}  // namespace stagecoach::engine
