#include "engine/nn/layers/head.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "engine/nn/fusion/norm_fusion.h"
#include "engine/nn/last_axis.h"
#include "engine/nn/layers/row_blocks.h"
#include "engine/nn/parsing/parsed_layer.h"
#include "kernels/ops/head.h"
#include "kernels/ops/ops.h"

namespace stagecoach::engine {
namespace {

absl::StatusOr<LastAxis> AxisOfHead(const LayerContext& context) {
  if (!context.feeds_cross_entropy) {
    return absl::InvalidArgumentError(
        "head: computes the loss itself, so it must be the last layer of a model whose loss is "
        "softmax cross-entropy, without smoothed labels or weighted classes; elsewhere use a "
        "linear layer without bias");
  }
  return AlongLastAxis("head", context);
}

// Returns everything but memory; `held`: the classes that are computed here.
LayerSpec SpecOfHead(const HeadOptions& options, const LastAxis& axis, int64_t held,
                     const LayerContext& context) {
  const int64_t features = axis.features, classes = options.classes;
  LayerSpec spec;
  spec.description = absl::StrCat("head ", features, " -> ", classes);
  if (options.logit_cap != 0.0F) absl::StrAppend(&spec.description, ", cap ", options.logit_cap);
  spec.output = axis.WithFeatures(classes);
  spec.computes_loss = true;
  spec.parameters = {
      {"weight", Shape{classes, features}, Init::Normal(0.0F, options.deviation), true}};
  const auto elements = static_cast<double>(held * features);
  const double bytes =
      context.value_bytes() * (elements + static_cast<double>(axis.rows * features));
  const partition::Work product = {2.0 * static_cast<double>(axis.rows) * elements, bytes};
  // Both begin with the logits.
  spec.backward_shared = product;
  spec.backward_input = {2.0 * product.flops, 2.0 * product.bytes};
  spec.backward_weight = {2.0 * product.flops, 3.0 * product.bytes};
  return spec;
}

class HeadLayer final : public Layer, public NormFusion {
 public:
  explicit HeadLayer(const HeadOptions& options) : options_(options) {}

  absl::StatusOr<LayerSpec> Prepare(const LayerContext& context) override {
    ASSIGN_OR_RETURN(const LastAxis axis, AxisOfHead(context));
    ASSIGN_OR_RETURN(op_, context.device.ops().Create(
                              kernels::HeadShape{.rows = axis.rows,
                                                 .features = axis.features,
                                                 .classes = options_.classes,
                                                 .positions = axis.rows / context.rows,
                                                 .independent_rows = context.rows_are_sequences,
                                                 .logit_cap = options_.logit_cap}));
    generates_ = context.cached_positions > 0;
    LayerSpec spec = SpecOfHead(options_, axis, options_.classes, context);
    spec.memory.workspace_bytes = op_->workspace_bytes();
    spec.memory.gradient_stash_bytes = op_->statistics_bytes();
    return spec;
  }

  // There is nothing to do for positions whose logits nobody wants.
  bool takes_norm() const override { return generates_ && op_->chooses_of_norm(); }
  bool takes_norm_in(const LayerArgs& args) const override {
    return args.loss == nullptr || args.loss->choice != nullptr;
  }

  absl::Status ForwardWithNorm(const LayerArgs& args, const kernels::InputNorm& norm,
                               const Tail& /*tail*/) override {
    if (args.loss == nullptr) return absl::OkStatus();
    return op_->ChooseOfNorm(args.stream, norm, args.x, args.parameters[0], *args.loss->choice,
                             args.workspace);
  }

  absl::Status Forward(const LayerArgs& args) override {
    if (args.loss == nullptr) return absl::OkStatus();  // B computes it
    const LayerLoss& loss = *args.loss;
    if (loss.choice != nullptr) {
      return op_->Choose(args.stream, args.x, args.parameters[0], *loss.choice, args.workspace);
    }
    return op_->Forward(args.stream, args.x, args.parameters[0], loss.targets, loss.terms,
                        loss.outputs, loss.result, args.workspace);
  }

  absl::Status BackwardInput(const LayerArgs& args) override {
    const LayerLoss& loss = *args.loss;
    return op_->BackwardInput(args.stream, args.x, args.parameters[0], loss.targets, loss.terms,
                              loss.result, args.dx, args.gradient_stash, args.workspace);
  }

  absl::Status BackwardWeight(const LayerArgs& args) override {
    return op_->BackwardWeight(args.stream, args.x, args.parameters[0], args.gradient_stash,
                               args.gradients[0], args.accumulate, args.workspace);
  }

  absl::Status Backward(const LayerArgs& args) override {
    const LayerLoss& loss = *args.loss;
    return op_->Backward(args.stream, args.x, args.parameters[0], loss.targets, loss.terms,
                         loss.result, args.dx, args.gradients[0], args.accumulate, args.workspace);
  }

 private:
  const HeadOptions options_;
  bool generates_ = false;
  std::unique_ptr<kernels::HeadOp> op_;
};

// A head whose classes are in blocks.
class BlockedHeadLayer final : public Layer, public NormFusion {
 public:
  explicit BlockedHeadLayer(const HeadOptions& options) : options_(options) {}

  absl::StatusOr<LayerSpec> Prepare(const LayerContext& context) override {
    ASSIGN_OR_RETURN(const LastAxis axis, AxisOfHead(context));
    const int64_t classes = options_.classes;
    RETURN_IF_ERROR(base::Annotate(CheckBlocks(options_.blocks, classes, context), "head"));
    if (classes > kernels::kMostBlockClasses) {
      return absl::InvalidArgumentError(absl::StrCat("head: ", classes,
                                                     " classes are too many for blocks: at most ",
                                                     kernels::kMostBlockClasses));
    }
    part_ = context.part;
    sums_ = context.part_sums;
    elementwise_ = &context.device.ops().elementwise();
    own_blocks_ = options_.blocks / part_.parts;
    block_classes_ = classes / options_.blocks;
    LayerSpec spec = SpecOfHead(options_, axis, block_classes_ * own_blocks_, context);
    spec.parameters.front().blocks = RowBlocks(options_.blocks, classes);
    if (part_.parts == 1) {
      whole_ = std::make_unique<HeadLayer>(options_);
      ASSIGN_OR_RETURN(const LayerSpec whole, whole_->Prepare(context));
      spec.memory.workspace_bytes = whole.memory.workspace_bytes;
      if (context.cached_positions > 0) return spec;  // nobody wants the loss
    }
    ASSIGN_OR_RETURN(op_, context.device.ops().Create(
                              kernels::HeadShape{.rows = axis.rows,
                                                 .features = axis.features,
                                                 .classes = block_classes_,
                                                 .positions = axis.rows / context.rows,
                                                 .independent_rows = context.rows_are_sequences,
                                                 .logit_cap = options_.logit_cap}));
    block_ = {nullptr, context.device.activation_type(), Shape{block_classes_, axis.features}};
    if (block_.bytes() % kAlignment != 0 && !context.device.memory_is_host()) {
      return absl::InvalidArgumentError(
          absl::StrCat("head: a block has ", block_.shape.elements(),
                       " numbers, and on GPUs needs a multiple of 16 bytes"));
    }
    dx_ = {nullptr, block_.dtype, Shape{axis.rows, axis.features}};
    LayOut(axis.rows, spec.memory.workspace_bytes);
    spec.memory.workspace_bytes = end_;
    spec.memory.gradient_stash_bytes = op_->statistics_bytes();
    if (part_.parts > 1) {
      spec.backward_exchange = PartSums::OfGather(numbers_, part_);
      spec.input_gradient_exchange = PartSums::OfSum(dx_, part_);
    }
    return spec;
  }

  absl::Status Forward(const LayerArgs& args) override {
    if (args.loss == nullptr) return absl::OkStatus();  // B computes it
    const LayerLoss& loss = *args.loss;
    const bool wants_outputs = loss.choice != nullptr || !loss.outputs.empty();
    if (wants_outputs && whole_ == nullptr) {
      return absl::UnimplementedError(
          "head: outputs are not gathered from the devices that share it; use --tensor 1");
    }
    if (wants_outputs) {
      LayerLoss without_result = loss;
      without_result.result = {};
      LayerArgs of_whole = args;
      of_whole.loss = &without_result;
      RETURN_IF_ERROR(whole_->Forward(of_whole));
      if (loss.choice != nullptr) return absl::OkStatus();
    }
    if (loss.result.empty()) return absl::OkStatus();
    return Join(args, args.workspace + statistics_at_);
  }

  // In generation, which has one device for each stage.
  bool takes_norm() const override { return whole_ != nullptr && whole_->takes_norm(); }
  bool takes_norm_in(const LayerArgs& args) const override { return whole_->takes_norm_in(args); }
  absl::Status ForwardWithNorm(const LayerArgs& args, const kernels::InputNorm& norm,
                               const Tail& tail) override {
    return whole_->ForwardWithNorm(args, norm, tail);
  }

  absl::Status BackwardInput(const LayerArgs& args) override {
    RETURN_IF_ERROR(Join(args, args.gradient_stash));
    if (args.dx.empty()) return absl::OkStatus();
    RETURN_IF_ERROR(
        SumGradients(args, {args.gradient_stash, /*wants_dw=*/false}, 0, own_blocks_, 0, args.dx));
    return AddUp(args);
  }

  absl::Status BackwardWeight(const LayerArgs& args) override {
    return SumGradients(args, {args.gradient_stash, /*wants_dw=*/true}, 0, own_blocks_, 0, {});
  }

  absl::Status Backward(const LayerArgs& args) override {
    std::byte* const statistics = args.workspace + statistics_at_;
    RETURN_IF_ERROR(Join(args, statistics));
    RETURN_IF_ERROR(
        SumGradients(args, {statistics, /*wants_dw=*/true}, 0, own_blocks_, 0, args.dx));
    return AddUp(args);
  }

 private:
  static constexpr int64_t kAlignment = 16;

  // What the blocks' gradients are computed from, and whether those of w are.
  struct Gradients {
    const std::byte* statistics;
    bool wants_dw;
  };

  // Scratch: that of operations or of sums over the parts, numbers of all blocks, statistics within
  // one call, and a dx for each level of the tree below the first.
  void LayOut(int64_t rows, int64_t of_whole) {
    const auto take = [this](int64_t bytes) {
      return std::exchange(end_, end_ + partition::AlignTensor(bytes));
    };
    take(std::max(
        {op_->workspace_bytes(), of_whole, part_.parts > 1 ? PartSums::ScratchBytes(dx_) : 0}));
    numbers_ = {nullptr, kernels::DType::kFloat32,
                Shape{options_.blocks, kernels::kBlockNumbers, rows}};
    numbers_at_ = take(numbers_.bytes());
    statistics_at_ = take(op_->statistics_bytes());
    for (int64_t blocks = own_blocks_; blocks > 1; blocks /= 2) {
      halves_at_.push_back(take(dx_.bytes()));
    }
  }

  int64_t first_block() const { return part_.index * own_blocks_; }
  // Returns that of a block among those that are held here.
  Tensor WeightOf(int64_t block, const Tensor& of_all) const {
    Tensor weight = of_all;
    weight.shape = block_.shape;
    weight.data = static_cast<std::byte*>(of_all.data) +
                  block * block_.shape.elements() * SizeOf(of_all.dtype);
    return weight;
  }

  // Computes the softmax over all classes, and the loss.
  absl::Status Join(const LayerArgs& args, std::byte* statistics) {
    Tensor numbers = numbers_;
    numbers.data = args.workspace + numbers_at_;
    const int64_t of_block = numbers.elements() / options_.blocks;
    for (int64_t block = 0; block < own_blocks_; ++block) {
      const int64_t index = first_block() + block;
      const Tensor own = kernels::Float32(numbers.f32() + index * of_block, Shape{of_block});
      RETURN_IF_ERROR(op_->NumbersOfBlock(args.stream, args.x, WeightOf(block, args.parameters[0]),
                                          args.loss->targets, index * block_classes_, own,
                                          args.workspace));
    }
    if (sums_ != nullptr) RETURN_IF_ERROR(sums_->Gather(args.stream, numbers));
    return op_->JoinBlocks(args.stream, numbers, options_.classes, args.loss->targets,
                           args.loss->terms, args.loss->result, statistics, args.workspace);
  }

  // Computes the gradients of `count` of the blocks that are held here, and the sum of their dx
  // unless that is empty. `level`: of the tree.
  absl::Status SumGradients(const LayerArgs& args, const Gradients& gradients, int64_t first,
                            int64_t count, size_t level, const Tensor& dx) {
    if (count == 1) {
      return op_->GradientsOfBlock(
          args.stream, args.x, WeightOf(first, args.parameters[0]),
          (first_block() + first) * block_classes_, gradients.statistics, dx,
          gradients.wants_dw ? WeightOf(first, args.gradients[0]) : Tensor{}, args.accumulate,
          args.workspace);
    }
    Tensor half = dx;
    if (!dx.empty()) half.data = args.workspace + halves_at_[level];
    RETURN_IF_ERROR(SumGradients(args, gradients, first, count / 2, level + 1, dx));
    RETURN_IF_ERROR(SumGradients(args, gradients, first + count / 2, count / 2, level + 1, half));
    return dx.empty() ? absl::OkStatus() : elementwise_->Add(args.stream, dx, half, dx);
  }

  absl::Status AddUp(const LayerArgs& args) const {
    if (sums_ == nullptr || args.dx.empty()) return absl::OkStatus();
    return sums_->AddUp(args.stream, args.dx, args.workspace);
  }

  const HeadOptions options_;
  TensorPart part_;
  PartSums* sums_ = nullptr;
  kernels::ElementwiseOps* elementwise_ = nullptr;
  int64_t own_blocks_ = 1, block_classes_ = 1;
  Tensor block_, dx_, numbers_;                 // shapes and types
  int64_t numbers_at_ = 0, statistics_at_ = 0;  // in the workspace
  std::vector<int64_t> halves_at_;              // likewise, by level
  int64_t end_ = 0;                             // of the workspace
  std::unique_ptr<kernels::HeadOp> op_;         // of a block
  std::unique_ptr<HeadLayer> whole_;            // on a device that has all blocks: for outputs
};

}  // namespace

LayerFactory Head(const HeadOptions& options) {
  return options.blocks == 1 ? LayerOf<HeadLayer>(options) : LayerOf<BlockedHeadLayer>(options);
}

const LayerType kHeadType = {
    .name = "head",
    .parse = [](LayerEntry& entry, ParsedLayer& layer) -> absl::Status {
      HeadOptions options = {.classes = entry.classes};
      RETURN_IF_ERROR(ParseDeviation("deviation", entry.reader, options.deviation));
      if (entry.reader.Has("logit_cap")) {
        ASSIGN_OR_RETURN(const double cap,
                         entry.reader.RequiredDouble("logit_cap", {.min = 1e-6, .max = 1e6}));
        options.logit_cap = static_cast<float>(cap);
      }
      ASSIGN_OR_RETURN(layer.is_tied, entry.reader.OptionalBool("tied", false));
      ASSIGN_OR_RETURN(options.blocks, ParseBlocks(options.classes, entry.reader));
      layer.factories = {Head(options)};
      layer.output_of = [outputs = options.classes](const Shape& input) {
        return WithLastAxis(input, outputs);
      };
      return absl::OkStatus();
    },
};

}  // namespace stagecoach::engine
