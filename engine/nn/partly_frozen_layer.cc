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

absl::Status PartlyFrozenLayer::WithScratch(Pass pass, const LayerArgs& args) {
  std::vector<Tensor> gradients(args.gradients.begin(), args.gradients.end());
  for (const Scratch& scratch : scratch_) {
    gradients[scratch.parameter] = {args.workspace + scratch.offset, kernels::DType::kFloat32,
                                    scratch.shape};
  }
  LayerArgs own = args;
  own.gradients = gradients;
  own.aside = nullptr;
  return ((*layer_).*pass)(own);
}

}  // namespace stagecoach::engine
