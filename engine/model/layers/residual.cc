#include "engine/model/layers/residual.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "engine/model/chain.h"
#include "engine/model/sum_fusion.h"
#include "kernels/ops/ops.h"

namespace stagecoach::engine {
namespace {

using partition::AlignTensor;

class ResidualLayer final : public Layer, public SumFusion {
 public:
  explicit ResidualLayer(std::vector<LayerFactory> layers) : layers_(std::move(layers)) {}

  absl::StatusOr<LayerSpec> Prepare(const LayerContext& context) override {
    if (layers_.empty()) return absl::InvalidArgumentError("residual: needs at least one layer");
    ASSIGN_OR_RETURN(Chain chain, Chain::Prepare(layers_, context, 0));
    // From outside, this layer's two backward operations are always apart.
    chain.LayOut({.splits_backward = true}, {});
    if (chain.output() != context.input) {
      return absl::InvalidArgumentError(
          absl::StrCat("residual: the inner layers turn ", context.input.ToString(), " into ",
                       chain.output().ToString(), "; the shapes must be equal"));
    }
    chain_.emplace(std::move(chain));
    add_ = &context.device.ops().elementwise();
    type_ = context.device.activation_type();
    shape_ = context.input.Batched(context.rows);

    const int last = chain_->size() - 1;
    LayerSpec spec;
    spec.output = context.input;
    spec.description = "residual(";
    for (int i = 0; i <= last; ++i) {
      const LayerSpec& inner = chain_->spec(i);
      absl::StrAppend(&spec.description, i == 0 ? "" : "; ", inner.description);
      for (ParameterSpec parameter : inner.parameters) {
        parameter.name = absl::StrCat(i, ".", parameter.name);
        spec.parameters.push_back(std::move(parameter));
      }
      AddWork(inner.forward, spec.forward);
      AddWork(inner.backward_input, spec.backward_input);
      AddWork(inner.backward_weight, spec.backward_weight);
    }
    absl::StrAppend(&spec.description, ")");
    const auto elements = static_cast<double>(shape_.elements());
    // A layer's cost is its own wherever the model is cut: the sum counts here, whichever layer
    // adds it.
    AddWork({elements, 12.0 * elements}, spec.forward);
    AddWork({elements, (chain_->adds_to_dx() ? 4.0 : 12.0) * elements}, spec.backward_input);

    partition::LayerMemory& memory = spec.memory;
    memory.stash_bytes = chain_->memory().stash_bytes;
    memory.weight_stash_bytes = chain_->memory().weight_stash_bytes;
    memory.gradient_stash_bytes = chain_->memory().gradient_stash_bytes;
    memory.workspace_bytes = chain_->memory().workspace_bytes;
    memory.input_last_use = chain_->memory().input_last_use;
    memory.output_gradient_last_use =
        std::max(LastUse::kBackwardInput, chain_->memory().output_gradient_last_use);
    // y holds the sum, so an inner layer that reads its own output again needs it elsewhere; then y
    // has nothing that the next layer could add x to.
    keeps_inner_output_ = chain_->memory().output_last_use > LastUse::kForward;
    if (keeps_inner_output_) {
      inner_output_offset_ = memory.weight_stash_bytes;
      memory.weight_stash_bytes += AlignTensor(Tensor{nullptr, type_, shape_}.bytes());
    }
    return spec;
  }

  // Sums before the block go to its first inner layer; the block's own is left to the next layer.
  Abilities abilities() const override {
    return {.adds_to_x = chain_->adds_to_x(), .defers_sum = !keeps_inner_output_};
  }

  absl::Status Forward(const LayerArgs& args) override { return ForwardFused(args, {}, false); }

  absl::Status ForwardFused(const LayerArgs& args, const Tensor& x_addend,
                            bool defers_sum) override {
    const LayerArgs inner = Inner(args);
    RETURN_IF_ERROR(chain_->Forward(inner, x_addend));
    if (defers_sum) return absl::OkStatus();
    return add_->Add(args.stream, inner.y, args.x, args.y);
  }

  absl::Status BackwardInput(const LayerArgs& args) override {
    const LayerArgs inner = Inner(args);
    if (args.dx.empty()) return chain_->BackwardInput(inner);
    if (chain_->adds_to_dx()) return chain_->BackwardInput(inner, args.dy);
    RETURN_IF_ERROR(chain_->BackwardInput(inner));
    return add_->Add(args.stream, args.dx, args.dy, args.dx);
  }

  // There is nothing to add: see abilities().
  absl::Status BackwardInputFused(const LayerArgs& args, const Tensor& dx_addend) override {
    STAGECOACH_CHECK(dx_addend.empty(), "a residual layer does not add to dx");
    return BackwardInput(args);
  }

  absl::Status BackwardWeight(const LayerArgs& args) override {
    return chain_->BackwardWeight(Inner(args), [](int) { return absl::OkStatus(); });
  }

 private:
  static void AddWork(const partition::Work& part, partition::Work& sum) {
    sum.flops += part.flops;
    sum.bytes += part.bytes;
  }

  LayerArgs Inner(const LayerArgs& args) const {
    LayerArgs inner = args;
    if (keeps_inner_output_) {
      inner.y = {args.weight_stash + inner_output_offset_, type_, shape_};
    }
    return inner;
  }

  const std::vector<LayerFactory> layers_;
  std::optional<Chain> chain_;
  kernels::ElementwiseOps* add_ = nullptr;
  kernels::DType type_ = kernels::DType::kFloat32;
  Shape shape_;  // with rows
  bool keeps_inner_output_ = false;
  int64_t inner_output_offset_ = 0;
};

}  // namespace

LayerFactory Residual(std::vector<LayerFactory> layers) {
  return LayerOf<ResidualLayer>(std::move(layers));
}

}  // namespace stagecoach::engine
