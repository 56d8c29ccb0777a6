#include "engine/nn/layers/composite/tensor_blocks.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "engine/nn/layers/composite/branch.h"
#include "engine/nn/layers/composite/branches.h"
#include "engine/nn/parsing/parsed_layer.h"
#include "engine/nn/parsing/tensor_cut.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/ops.h"
#include "partition/cost/layer_cost.h"

namespace stagecoach::engine {
namespace {

class TensorBlocksLayer final : public Layer {
 public:
  TensorBlocksLayer(std::vector<std::vector<LayerFactory>> blocks, std::vector<int64_t> shares)
      : factories_(std::move(blocks)), shares_(std::move(shares)) {}

  absl::StatusOr<LayerSpec> Prepare(const LayerContext& context) override {
    part_ = context.part;
    sums_ = context.part_sums;
    const auto blocks = static_cast<int>(factories_.size());
    RETURN_IF_ERROR(base::Annotate(CheckTensorBlocks(blocks, part_), "tensor blocks"));
    const size_t own = factories_.size() / static_cast<size_t>(part_.parts);
    // The first part's blocks tell what all others declare, which lack the bias at most.
    std::unique_ptr<Layer> first = BlocksFrom(0, own)();
    ASSIGN_OR_RETURN(LayerSpec spec, first->Prepare(Inside(context)));
    std::vector<ParameterSpec> inner = spec.parameters;
    if (part_.index == 0) {
      layer_ = std::move(first);
    } else {
      layer_ = BlocksFrom(static_cast<size_t>(part_.index) * own, own)();
      ASSIGN_OR_RETURN(LayerSpec other, layer_->Prepare(Inside(context)));
      inner = std::move(other.parameters);
      for (int64_t partition::LayerMemory::*const area :
           {&partition::LayerMemory::stash_bytes, &partition::LayerMemory::weight_stash_bytes,
            &partition::LayerMemory::gradient_stash_bytes, &partition::LayerMemory::workspace_bytes,
            &partition::LayerMemory::cache_bytes}) {
        spec.memory.*area = std::max(spec.memory.*area, other.memory.*area);
      }
    }
    spec.stands_for = static_cast<int>(factories_.front().size());
    spec.description =
        absl::StrCat("tensor blocks ", blocks, " x (", DescriptionOfBlock(spec), ")");
    RETURN_IF_ERROR(MergeParameters(blocks, inner, spec));
    if (!context.device.memory_is_host()) RETURN_IF_ERROR(CheckAligned(context.device, spec));
    elementwise_ = &context.device.ops().elementwise();
    if (part_.parts > 1) {
      const kernels::DType type = context.device.activation_type();
      const Tensor x{nullptr, type, context.input.Batched(context.rows)};
      const Tensor y{nullptr, type, spec.output.Batched(context.rows)};
      spec.memory.workspace_bytes = std::max(
          {spec.memory.workspace_bytes, PartSums::ScratchBytes(x), PartSums::ScratchBytes(y)});
      spec.forward_exchange = PartSums::OfSum(y, part_);
      spec.input_gradient_exchange = PartSums::OfSum(x, part_);
    }
    // Frozen parameters have no gradients.
    if (shared_elements_ > 0 && !context.is_frozen) LayOutShared(static_cast<int>(own), spec);
    return spec;
  }

  absl::Status Forward(const LayerArgs& args) override {
    RETURN_IF_ERROR(layer_->Forward(Inner(args)));
    return AddUp(args, args.y);
  }

  absl::Status BackwardInput(const LayerArgs& args) override {
    RETURN_IF_ERROR(layer_->BackwardInput(Inner(args)));
    return AddUp(args, args.dx);
  }

  absl::Status BackwardWeight(const LayerArgs& args) override {
    RETURN_IF_ERROR(ClearShared(args));
    RETURN_IF_ERROR(layer_->BackwardWeight(Inner(args)));
    return SumShared(args);
  }

  absl::Status Backward(const LayerArgs& args) override {
    RETURN_IF_ERROR(ClearShared(args));
    RETURN_IF_ERROR(layer_->Backward(Inner(args)));
    RETURN_IF_ERROR(SumShared(args));
    return AddUp(args, args.dx);
  }

 private:
  // Where a parameter of one of the blocks that are computed here lies.
  struct View {
    size_t whole = 0;   // the layer's parameter
    int64_t first = 0;  // of its elements that are held here
    Shape shape;
    // Of a parameter that all blocks share: where the block's gradient begins among those of all
    // blocks here, in elements.
    std::optional<int64_t> gradient = std::nullopt;
  };
  // A parameter that all blocks share, such as that of a norm of heads, and where its gradient
  // begins among those of a block, in elements.
  struct Shared {
    size_t whole = 0;
    int64_t first = 0;
    Shape shape;
  };

  LayerFactory BlocksFrom(size_t first, size_t count) const {
    return Branches({factories_.begin() + static_cast<std::ptrdiff_t>(first),
                     factories_.begin() + static_cast<std::ptrdiff_t>(first + count)});
  }

  // Rules are for the parameters of the whole.
  static LayerContext Inside(LayerContext context) {
    context.rules = nullptr;
    context.feeds_cross_entropy = false;
    context.part = {};
    context.part_sums = nullptr;
    return context;
  }

  static std::string DescriptionOfBlock(const LayerSpec& branches) {
    absl::string_view text = branches.description;
    absl::ConsumePrefix(&text, "branches(");
    absl::ConsumeSuffix(&text, ")");
    return std::string(text.substr(0, text.find(" | ")));
  }

  // Replaces what the first part's blocks declare by the parameters of the whole, and finds the
  // places in those of what the blocks here declare, `inner`.
  absl::Status MergeParameters(int blocks, const std::vector<ParameterSpec>& inner,
                               LayerSpec& spec) {
    const std::string last = absl::StrCat(factories_.front().size() - 1, ".");
    std::vector<ParameterSpec> whole;
    for (const ParameterSpec& of_block : spec.parameters) {
      absl::string_view name = of_block.name;
      if (!absl::ConsumePrefix(&name, "0.")) continue;  // of another block
      ASSIGN_OR_RETURN(whole.emplace_back(), WholeOf(blocks, of_block, name, last));
    }
    for (size_t i = 0; i < whole.size(); ++i) {
      if (whole[i].blocks.has_value()) continue;
      shared_.push_back({.whole = i, .first = shared_elements_, .shape = whole[i].shape});
      const Tensor gradient = kernels::Float32(nullptr, whole[i].shape);
      shared_elements_ += partition::AlignTensor(gradient.bytes()) / SizeOf(gradient.dtype);
    }
    for (const ParameterSpec& of_block : inner) {
      const size_t dot = of_block.name.find('.');
      const absl::string_view name = absl::string_view(of_block.name).substr(dot + 1);
      const auto found = std::find_if(whole.begin(), whole.end(),
                                      [&](const ParameterSpec& one) { return one.name == name; });
      const auto shape_of = [&] {
        return found->blocks.has_value() ? found->blocks->BlockOf(found->shape) : found->shape;
      };
      if (found == whole.end() || shape_of() != of_block.shape) {
        return absl::InvalidArgumentError(absl::StrCat("tensor blocks: the first block has no \"",
                                                       name, "\" of ", of_block.shape.ToString()));
      }
      const int64_t block = std::stoll(of_block.name.substr(0, dot));
      View& view = views_.emplace_back();
      view.whole = static_cast<size_t>(found - whole.begin());
      view.shape = of_block.shape;
      if (found->blocks.has_value()) {
        view.first = block * of_block.shape.elements();
        continue;
      }
      const auto shared = std::find_if(shared_.begin(), shared_.end(),
                                       [&](const Shared& one) { return one.whole == view.whole; });
      view.gradient = block * shared_elements_ + shared->first;
    }
    values_.resize(views_.size());
    gradients_.resize(views_.size());
    spec.parameters = std::move(whole);
    return absl::OkStatus();
  }

  // Places the gradients that the blocks here have of what they share, behind all other scratch,
  // and counts what their sums take.
  void LayOutShared(int own_blocks, LayerSpec& spec) {
    const Tensor of_block = kernels::Float32(nullptr, Shape{shared_elements_});
    if (part_.parts > 1) {
      spec.memory.workspace_bytes =
          std::max(spec.memory.workspace_bytes, PartSums::ScratchBytes(of_block));
      spec.weight_exchange = PartSums::OfSum(of_block, part_);
    }
    own_blocks_ = own_blocks;
    shared_at_ = partition::AlignTensor(spec.memory.workspace_bytes);
    spec.memory.workspace_bytes = shared_at_ + own_blocks * of_block.bytes();
    const auto adds = static_cast<double>(own_blocks);  // the last to the gradients before
    AddWork({adds * static_cast<double>(of_block.elements()),
             3.0 * adds * static_cast<double>(of_block.bytes())},
            spec.backward_weight);
  }

  // Returns float32 elements from that one on of those gradients.
  Tensor SharedAt(const LayerArgs& args, int64_t first, const Shape& shape) const {
    std::byte* const all = args.workspace + shared_at_;
    return kernels::Float32(all + first * SizeOf(kernels::DType::kFloat32), shape);
  }

  // Where the layer adds to gradients, so do blocks, also to their own of what they share.
  absl::Status ClearShared(const LayerArgs& args) const {
    if (shared_.empty()) return absl::OkStatus();
    return elementwise_->Clear(args.stream,
                               SharedAt(args, 0, Shape{own_blocks_ * shared_elements_}));
  }

  // Adds up the gradients of what the blocks share, over all blocks of all parts.
  absl::Status SumShared(const LayerArgs& args) const {
    if (shared_.empty()) return absl::OkStatus();
    std::vector<Tensor> of_blocks;
    for (int64_t block = 0; block < own_blocks_; ++block) {
      of_blocks.push_back(SharedAt(args, block * shared_elements_, Shape{shared_elements_}));
    }
    const Tensor& sum = of_blocks.front();
    if (own_blocks_ > 1) RETURN_IF_ERROR(elementwise_->SumTree(args.stream, of_blocks, sum));
    RETURN_IF_ERROR(AddUp(args, sum));
    for (const Shared& shared : shared_) {
      const Tensor& gradient = args.gradients[shared.whole];
      const Tensor own = SharedAt(args, shared.first, shared.shape);
      RETURN_IF_ERROR(args.accumulate ? elementwise_->Add(args.stream, gradient, own, gradient)
                                      : elementwise_->Copy(args.stream, own, gradient));
    }
    return absl::OkStatus();
  }

  // Kernels read words of 16 bytes.
  absl::Status CheckAligned(const kernels::Device& device, const LayerSpec& spec) const {
    const int64_t values = 16 / SizeOf(device.activation_type());
    for (const View& view : views_) {
      if (view.first % values == 0) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor blocks: a block of \"", spec.parameters[view.whole].name, "\" has ",
          view.shape.elements(), " numbers, and on GPUs needs a multiple of ", values));
    }
    return absl::OkStatus();
  }

  // Returns the parameter of the whole that a block has a share of; `last`: how names begin in the
  // last layer.
  absl::StatusOr<ParameterSpec> WholeOf(int blocks, const ParameterSpec& of_block,
                                        absl::string_view name, absl::string_view last) const {
    ParameterSpec whole = of_block;
    whole.name = std::string(name);
    const bool is_first = absl::ConsumePrefix(&name, "0.");
    const bool is_last = !is_first && absl::ConsumePrefix(&name, last);
    const bool is_shared = !is_first && !is_last;
    const bool is_plain = !of_block.quantized.has_value() && !of_block.is_adapter &&
                          !of_block.update.is_average();  // of all samples, not a sum over blocks
    if (!is_plain || (!is_shared && name != "weight" && name != "bias")) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor blocks: \"", whole.name, "\" cannot be cut: expected weights and biases of the ",
          "first and of the last layer, and what an optimizer trains of those between, without ",
          "adapters, and not quantized"));
    }
    if (is_shared) return whole;
    whole.blocks = BlockOrder{.blocks = blocks};
    if (is_last && name == "bias") {
      whole.blocks->axis = BlockOrder::kOnlyFirst;
      return whole;
    }
    // A weight is [inputs, outputs].
    const int axis = name == "weight" && is_first ? 1 : 0;
    std::vector<int64_t> extents;
    for (int i = 0; i < whole.shape.rank(); ++i) extents.push_back(whole.shape.dim(i));
    int64_t& cut = extents[static_cast<size_t>(axis)];
    const int64_t share = std::accumulate(shares_.begin(), shares_.end(), int64_t{0});
    if (is_first && (share < 1 || cut % share != 0)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor blocks: a block's ", cut, " outputs do not consist of ", share, " shares"));
    }
    for (const int64_t one : is_first ? shares_ : std::vector<int64_t>{1}) {
      whole.blocks->extents.push_back(is_first ? cut / share * one * blocks : cut * blocks);
    }
    cut *= blocks;
    whole.blocks->axis = axis;
    whole.shape = Shape(extents);
    // Uniform values are bounded by the root of the number of inputs, which a block has fewer of.
    if (is_last && whole.init.kind == Init::Kind::kUniform) {
      const auto factor = static_cast<float>(std::sqrt(1.0 / blocks));
      whole.init.a *= factor;
      whole.init.b *= factor;
    }
    return whole;
  }

  // Returns the arguments of the blocks: valid until the next call.
  LayerArgs Inner(const LayerArgs& args) {
    const auto view = [&](absl::Span<const Tensor> wholes, std::vector<Tensor>& own) {
      for (size_t i = 0; i < views_.size(); ++i) {
        own[i] = wholes[views_[i].whole];
        if (own[i].empty()) continue;
        own[i].data = static_cast<std::byte*>(own[i].data) + views_[i].first * SizeOf(own[i].dtype);
        own[i].shape = views_[i].shape;
      }
      return absl::MakeConstSpan(own);
    };
    LayerArgs inner = args;
    inner.parameters = view(args.parameters, values_);
    if (!args.gradients.empty()) {
      inner.gradients = view(args.gradients, gradients_);
      for (size_t i = 0; i < views_.size(); ++i) {
        if (!views_[i].gradient.has_value()) continue;
        gradients_[i] = SharedAt(args, *views_[i].gradient, views_[i].shape);
      }
    }
    return inner;
  }

  // The scratch of the blocks is free by then.
  absl::Status AddUp(const LayerArgs& args, const Tensor& tensor) const {
    if (sums_ == nullptr || tensor.empty()) return absl::OkStatus();
    return sums_->AddUp(args.stream, tensor, args.workspace);
  }

  const std::vector<std::vector<LayerFactory>> factories_;
  const std::vector<int64_t> shares_;
  TensorPart part_;
  PartSums* sums_ = nullptr;
  std::unique_ptr<Layer> layer_;  // the blocks that are computed here
  kernels::ElementwiseOps* elementwise_ = nullptr;
  std::vector<View> views_;  // of its parameters
  std::vector<Shared> shared_;
  int64_t shared_elements_ = 0;  // of a block, with what lies between them
  int64_t shared_at_ = 0;        // in the workspace, those of each block here
  int64_t own_blocks_ = 1;
  std::vector<Tensor> values_, gradients_;
};

}  // namespace

LayerFactory TensorBlocks(std::vector<std::vector<LayerFactory>> blocks,
                          std::vector<int64_t> shares) {
  return LayerOf<TensorBlocksLayer>(std::move(blocks), std::move(shares));
}

const LayerType kTensorBlocksType = {
    .name = "tensor_blocks",
    .parse = [](LayerEntry& entry, ParsedLayer& layer) -> absl::Status {
      ASSIGN_OR_RETURN(const int64_t blocks,
                       entry.reader.RequiredInt64("blocks", {.min = 1, .max = kMostTensorBlocks}));
      RETURN_IF_ERROR(entry.parse_inside("layers", layer));
      if (entry.lora != nullptr || entry.quantization.has_value()) {
        return entry.reader.Error(
            "layers",
            "a model whose layers are cut into blocks has neither adapters nor "
            "quantized weights");
      }
      const absl::StatusOr<TensorCut> cut = CutOf(entry.json["layers"], blocks);
      if (!cut.ok()) return entry.reader.Error("layers", cut.status().message());
      std::vector<std::vector<LayerFactory>> factories;
      for (int64_t block = 0; block < blocks; ++block) {
        ParsedLayer own;
        RETURN_IF_ERROR(entry.parse_list(block == 0 ? cut->first_block : cut->other_block, own));
        factories.push_back(std::move(own.factories));
      }
      layer.factories = {TensorBlocks(std::move(factories), cut->shares)};
      return absl::OkStatus();
    },
};

}  // namespace stagecoach::engine
