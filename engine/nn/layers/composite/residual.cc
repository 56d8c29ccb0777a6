#include "engine/nn/layers/composite/residual.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "engine/nn/fusion/sum_fusion.h"
#include "engine/nn/layers/composite/branch.h"
#include "engine/nn/parsing/parsed_layer.h"
#include "engine/nn/sequential.h"
#include "kernels/ops/activation.h"
#include "kernels/ops/ops.h"

namespace stagecoach::engine {
namespace {

using partition::AlignTensor;

class ResidualLayer final : public Layer, public SumFusion {
 public:
  ResidualLayer(std::vector<LayerFactory> layers, std::vector<LayerFactory> shortcut, bool relu)
      : layers_(std::move(layers)), shortcut_layers_(std::move(shortcut)), relu_(relu) {}

  absl::StatusOr<LayerSpec> Prepare(const LayerContext& context) override {
    if (layers_.empty()) return absl::InvalidArgumentError("residual: needs at least one layer");
    LayerSpec spec;
    spec.description = "residual(";
    // Both sides of the sum have their images in the same order.
    LayerContext inside = context;
    inside.feeds_cross_entropy = false;
    inside.output_order = std::nullopt;
    if (shortcut_layers_.empty()) inside.output_order = context.input.image_order();
    ASSIGN_OR_RETURN(inner_, PrepareBranch(layers_, inside, 0, "", spec));
    spec.output = inner_->chain.output();
    Shape other = context.input;
    if (!shortcut_layers_.empty()) {
      absl::StrAppend(&spec.description, " | ");
      inside.output_order = spec.output.image_order();
      absl::StatusOr<Branch> shortcut =
          PrepareBranch(shortcut_layers_, inside, inner_->listed, "shortcut.", spec);
      if (!shortcut.ok()) return base::Annotate(shortcut.status(), "shortcut");
      shortcut_ = *std::move(shortcut);
      other = shortcut_->chain.output();
    }
    absl::StrAppend(&spec.description, relu_ ? "; relu)" : ")");
    aside_bytes_ =
        std::max(inner_->aside_bytes, shortcut_.has_value() ? shortcut_->aside_bytes : 0);
    if (spec.output != other) {
      return absl::InvalidArgumentError(absl::StrCat(
          "residual: the inner layers turn ", context.input.ToString(), " into ",
          spec.output.ToString(),
          shortcut_ ? absl::StrCat(", those of the shortcut into ", other.ToString()) : "",
          "; the shapes must be equal"));
    }
    add_ = &context.device.ops().elementwise();
    x_ = {nullptr, context.device.activation_type(), context.input.Batched(context.rows)};
    y_ = {nullptr, x_.dtype, spec.output.Batched(context.rows)};
    if (relu_) {
      ASSIGN_OR_RETURN(relu_op_,
                       context.device.ops().Create(kernels::ActivationShape{
                           context.rows, spec.output.elements(), kernels::Activation::kRelu}));
    }
    const auto elements = static_cast<double>(y_.elements());
    // A layer's cost is its own wherever the model is cut: the sum counts here, whichever layer
    // adds it.
    AddWork({elements, 12.0 * elements}, spec.forward);
    AddWork({elements, (AddsInside() ? 4.0 : 12.0) * elements}, spec.backward_input);
    if (relu_) AddWork({elements, 12.0 * elements}, spec.backward_input);
    LayOutBlock(spec.memory);
    return spec;
  }

  TakesImages takes_images() const override { return TakesImages::kInAnyOrder; }

  // Sums before the block go to its first inner layer; the block's own is left to the next layer,
  // unless its last inner layer can add it as it writes. Those of gradients go to the norm that
  // ends a branch, whose first pass reads dy; they are left to the layer before where dz outlives
  // B.
  Abilities abilities() const override {
    const bool is_plain = !shortcut_.has_value();
    return {.adds_to_x = is_plain && inner_->chain.adds_to_x(),
            .defers_sum = is_plain && !relu_ && !inner_->kept_output.has_value() &&
                          !inner_->chain.takes_tail(),
            .defers_dx_sum = stashes_dz_ && !AddsInside() && (is_plain || shortcut_may_replace_dz_),
            .adds_to_dy = stashes_dz_ && FirstOfBackward().tail_adds_to_dy()};
  }

  absl::Status Forward(const LayerArgs& args) override { return ForwardFused(args, {}, false); }

  absl::Status ForwardFused(const LayerArgs& args, const Tensor& x_addend,
                            bool defers_sum) override {
    LayerArgs inner = inner_->Args(args);
    inner.y = inner_->Output(args, args.y);
    const bool is_tail = inner_->chain.takes_tail() && !defers_sum;
    if (!is_tail) RETURN_IF_ERROR(inner_->chain.Forward(inner, x_addend));
    if (defers_sum) return absl::OkStatus();
    Tail tail = {.addend = args.x};
    if (shortcut_.has_value()) {
      LayerArgs around = shortcut_->Args(args);
      around.y = shortcut_->Output(args, {At(args.workspace, sum_), y_.dtype, y_.shape});
      const bool defers_y =
          is_tail && shortcut_->chain.defers_y() && inner_->chain.takes_deferred_y();
      RETURN_IF_ERROR(shortcut_->chain.Forward(around, {}, {.defers_y = defers_y}));
      tail = defers_y ? shortcut_->chain.DeferredOutput(around) : Tail{.addend = around.y};
    }
    tail.has_relu = relu_;
    if (is_tail) return inner_->chain.Forward(inner, x_addend, tail);
    if (relu_) return relu_op_->Forward(args.stream, inner.y, tail.addend, args.y);
    return add_->Add(args.stream, inner.y, tail.addend, args.y);
  }

  absl::Status BackwardInput(const LayerArgs& args) override {
    return BackwardThrough(
        args,
        [](const Sequential& chain, const LayerArgs& own, const Tensor& addend,
           const std::optional<TailGradient>&) { return chain.BackwardInput(own, addend); },
        /*is_whole=*/false, {});
  }

  // There is nothing to add: see abilities().
  absl::Status BackwardInputFused(const LayerArgs& args, const Tensor& dx_addend) override {
    STAGECOACH_CHECK(dx_addend.empty(), "a residual layer does not add to dx");
    return BackwardInput(args);
  }

  absl::Status BackwardWeight(const LayerArgs& args) override {
    const Tensor dz = Dz(args);
    RETURN_IF_ERROR(inner_->chain.BackwardWeight(Inner(args, dz), AfterNoLayer));
    if (!shortcut_.has_value()) return absl::OkStatus();
    return shortcut_->chain.BackwardWeight(Around(args, dz), AfterNoLayer);
  }

  // Allows inner layers to run both together, and gradients of parameters aside: their inputs are
  // kept until all of B is done (PrepareBranch).
  absl::Status Backward(const LayerArgs& args) override { return BackwardFused(args, {}); }

  absl::Status BackwardFused(const LayerArgs& args, const BackwardSums& sums) override {
    STAGECOACH_CHECK(sums.dx_addend.empty(), "a residual layer does not add to dx");
    LayerArgs allowing = args;
    allowing.aside = aside_bytes_ > 0 ? At(args.workspace, aside_) : nullptr;
    const absl::Status done = BackwardThrough(
        allowing,
        [](const Sequential& chain, const LayerArgs& own, const Tensor& addend,
           const std::optional<TailGradient>& tail) {
          return chain.Backward(own, AfterNoLayer, addend, tail);
        },
        /*is_whole=*/true, sums);
    const absl::Status joined = args.stream.JoinAside();
    return done.ok() ? joined : done;
  }

  Tensor DeferredAddend(const LayerArgs& args) const override {
    return shortcut_.has_value() ? DxInPlaceOfDz(args) : Dz(args);
  }

 private:
  // Runs B, or with `is_whole` B and W: `backward(chain, args, dx_addend, tail)` of each branch,
  // and the sum of their dx.
  template <typename ChainBackward>
  absl::Status BackwardThrough(const LayerArgs& args, ChainBackward backward, bool is_whole,
                               const BackwardSums& sums) const {
    const Tensor dz = Dz(args);
    LayerArgs inner = Inner(args, dz);
    std::optional<LayerArgs> around;
    if (shortcut_.has_value()) {
      around.emplace(Around(args, dz));
      if (!args.dx.empty()) {
        around->dx = sums.defers_dx_sum ? DxInPlaceOfDz(args)
                                        : Tensor{At(args.workspace, sum_), x_.dtype, x_.shape};
      }
    }
    const bool starts_around = StartsAround();
    std::optional<TailGradient> tail;  // of the branch that runs first, and computes dz
    LayerArgs& of_first = starts_around ? *around : inner;
    const bool is_tail = relu_ && is_whole && FirstOfBackward().takes_tail_gradient(of_first);
    if (!sums.dy_addend.empty() && !is_tail) {
      RETURN_IF_ERROR(add_->Add(args.stream, args.dy, sums.dy_addend, args.dy));
    }
    if (is_tail) {
      tail = {args.y, dz, sums.dy_addend};
      of_first.dy = args.dy;
    } else if (relu_) {
      RETURN_IF_ERROR(relu_op_->BackwardInput(args.stream, args.dy, args.y, dz));
    }
    if (starts_around) {
      RETURN_IF_ERROR(backward(shortcut_->chain, *around, {}, tail));
      return backward(inner_->chain, inner, around->dx, std::nullopt);
    }
    const bool is_inside = AddsInside() && !args.dx.empty();
    RETURN_IF_ERROR(backward(inner_->chain, inner, is_inside ? dz : Tensor{}, tail));
    if (around.has_value()) {
      RETURN_IF_ERROR(backward(shortcut_->chain, *around, {}, std::nullopt));
    }
    if (args.dx.empty() || is_inside || sums.defers_dx_sum) return absl::OkStatus();
    return add_->Add(args.stream, args.dx, around.has_value() ? around->dx : dz, args.dx);
  }

  // Lays out the areas of both branches one after the other, except for scratch, which they share;
  // then what the block itself keeps.
  void LayOutBlock(partition::LayerMemory& memory) {
    memory.input_last_use = LastUse::kForward;
    memory.output_gradient_last_use = LastUse::kBackwardInput;
    // With a ReLU, the gradient that goes into the branches is not dy. In the gradient stash it is
    // the first, so that a block before this one can add it to its dy where it writes its own.
    const auto stashes = [](const Branch& branch) {
      return branch.chain.memory().output_gradient_last_use == LastUse::kBackwardWeight;
    };
    stashes_dz_ = relu_ && (stashes(*inner_) || (shortcut_.has_value() && stashes(*shortcut_)));
    if (stashes_dz_) dz_ = std::exchange(memory.gradient_stash_bytes, AlignTensor(y_.bytes()));
    inner_->PlaceIn(memory, y_.bytes());
    // The shortcut's first layer computes its dx when B and W of all inner layers and of its own
    // last layer, which read dz, are done: unless they run aside.
    shortcut_may_replace_dz_ = stashes_dz_ && shortcut_.has_value() &&
                               shortcut_->chain.size() > 1 && aside_bytes_ == 0 &&
                               x_.bytes() <= memory.gradient_stash_bytes;
    if (shortcut_.has_value()) shortcut_->PlaceIn(memory, y_.bytes());
    aside_ = memory.workspace_bytes;
    memory.workspace_bytes += AlignTensor(aside_bytes_);
    if (shortcut_.has_value()) {
      sum_ = memory.workspace_bytes;
      memory.workspace_bytes += AlignTensor(std::max(x_.bytes(), y_.bytes()));
    }
    if (!relu_) return;
    memory.output_last_use = memory.output_gradient_last_use = LastUse::kBackwardInput;
    if (stashes_dz_) return;
    dz_ = std::exchange(memory.workspace_bytes, memory.workspace_bytes + AlignTensor(y_.bytes()));
  }

  // Returns whether the first inner layer adds the gradient that goes around the block: then that
  // of a shortcut is computed first.
  bool AddsInside() const { return inner_->chain.adds_to_dx(); }
  bool StartsAround() const { return shortcut_.has_value() && AddsInside(); }
  const Sequential& FirstOfBackward() const {
    return StartsAround() ? shortcut_->chain : inner_->chain;
  }

  Tensor Dz(const LayerArgs& args) const {
    if (!relu_) return args.dy;
    return {At(stashes_dz_ ? args.gradient_stash : args.workspace, dz_), y_.dtype, y_.shape};
  }
  // Returns the shortcut's dx where dz begins, see shortcut_may_replace_dz_.
  Tensor DxInPlaceOfDz(const LayerArgs& args) const {
    return {At(args.gradient_stash, dz_), x_.dtype, x_.shape};
  }
  LayerArgs Inner(const LayerArgs& args, const Tensor& dz) const {
    LayerArgs own = inner_->Args(args);
    own.y = inner_->Output(args, y_);
    own.dy = dz;
    return own;
  }
  LayerArgs Around(const LayerArgs& args, const Tensor& dz) const {
    LayerArgs own = shortcut_->Args(args);
    own.y = shortcut_->Output(args, y_);
    own.dy = dz;
    return own;
  }

  const std::vector<LayerFactory> layers_, shortcut_layers_;
  const bool relu_;
  std::optional<Branch> inner_, shortcut_;
  kernels::ElementwiseOps* add_ = nullptr;
  std::unique_ptr<kernels::ActivationOp> relu_op_;
  Tensor x_, y_;                         // without data
  int64_t aside_bytes_ = 0, aside_ = 0;  // in the workspace: scratch for what runs aside
  int64_t sum_ = 0;                      // in the workspace: the shortcut's output, and its dx
  bool stashes_dz_ = false;              // otherwise it is in the workspace
  int64_t dz_ = 0;
  // True if in a whole backward pass the shortcut's dx has room where dz and the inner layers' own
  // gradients were.
  bool shortcut_may_replace_dz_ = false;
};

}  // namespace

LayerFactory Residual(std::vector<LayerFactory> layers, std::vector<LayerFactory> shortcut,
                      bool relu) {
  return LayerOf<ResidualLayer>(std::move(layers), std::move(shortcut), relu);
}

const LayerType kResidualType = {
    .name = "residual",
    .parse = [](LayerEntry& entry, ParsedLayer& layer) -> absl::Status {
      RETURN_IF_ERROR(entry.parse_inside("layers", layer));
      ParsedLayer shortcut{.layers = 0};
      if (entry.reader.Has("shortcut")) RETURN_IF_ERROR(entry.parse_inside("shortcut", shortcut));
      ASSIGN_OR_RETURN(const bool relu, entry.reader.OptionalBool("relu", false));
      layer.factories = {Residual(std::move(layer.factories), std::move(shortcut.factories), relu)};
      layer.layers += 1 + shortcut.layers;
      return absl::OkStatus();
    },
};

}  // namespace stagecoach::engine
