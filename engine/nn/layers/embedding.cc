#include "engine/nn/layers/embedding.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/nn/layers/row_blocks.h"
#include "engine/nn/parsing/parsed_layer.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/ops.h"

namespace stagecoach::engine {
namespace {

class EmbeddingLayer final : public Layer {
 public:
  explicit EmbeddingLayer(const EmbeddingOptions& options) : options_(options) {}

  absl::StatusOr<LayerSpec> Prepare(const LayerContext& context) override {
    const int64_t vocabulary = options_.vocabulary, features = options_.features;
    if (context.input.rank() != 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("embedding: takes samples of one axis, its ids, rather than of shape ",
                       context.input.ToString()));
    }
    const int64_t positions = context.input.dim(0);
    if (context.cached_positions > 0 && positions != 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "embedding: one position after another, a sample is one id, not ", positions));
    }
    if (context.has_documents && options_.positions) {
      return absl::InvalidArgumentError(
          "embedding: learned positions count from the beginning of a sample, not of each document "
          "in it: packed examples need a model with rotary positions");
    }
    const bool has_blocks = options_.blocks > 1;
    RETURN_IF_ERROR(base::Annotate(CheckBlocks(options_.blocks, vocabulary, context), "embedding"));
    const TensorPart part = has_blocks ? context.part : TensorPart{};
    const int64_t held = vocabulary / part.parts;
    const kernels::EmbeddingShape shape = {
        .rows = context.rows,
        .positions = positions,
        .vocabulary = held,
        .features = features,
        .has_positions = options_.positions,
        .sequence = options_.positions ? context.cached_positions : 0,
        .scale = options_.scale,
        .all_ids = has_blocks ? vocabulary : 0,
        .first = part.index * held};
    ASSIGN_OR_RETURN(op_, context.device.ops().Create(shape));
    is_sequence_ = shape.sequence > 0;
    if (context.vocabulary > vocabulary) {
      return absl::InvalidArgumentError(absl::StrCat("embedding: has vectors for ", vocabulary,
                                                     " tokens, but the data's vocabulary is of ",
                                                     context.vocabulary));
    }
    LayerSpec spec;
    spec.description = absl::StrCat("embedding ", vocabulary, " -> ", features);
    const int64_t rows = shape.table_positions();
    if (options_.positions) absl::StrAppend(&spec.description, ", ", rows, " positions");
    if (options_.scale != 1.0F) absl::StrAppend(&spec.description, ", scaled by ", options_.scale);
    spec.output = Shape{positions, features};
    spec.takes_ids = true;
    spec.parameters = {{"tokens", Shape{vocabulary, features},
                        Init::Normal(0.0F, options_.token_deviation), true}};
    if (has_blocks) spec.parameters.front().blocks = RowBlocks(options_.blocks, vocabulary);
    if (options_.positions) {
      spec.parameters.push_back({"positions", Shape{rows, features},
                                 Init::Normal(0.0F, options_.position_deviation), true});
    }
    if (options_.table_positions > 0) {
      if (options_.table_positions < rows) {
        return absl::InvalidArgumentError(absl::StrCat("embedding: has vectors for ",
                                                       options_.table_positions,
                                                       " positions, but a sample has ", rows));
      }
      AddUnread("later_positions", options_.table_positions - rows, spec);
    }
    AddUnread("earlier_positions", options_.position_offset, spec);
    elementwise_ = &context.device.ops().elementwise();
    spec.memory.workspace_bytes = op_->workspace_bytes();
    if (part.parts > 1) {
      sums_ = context.part_sums;
      const Tensor y{nullptr, context.device.activation_type(), spec.output.Batched(context.rows)};
      spec.memory.workspace_bytes =
          std::max(spec.memory.workspace_bytes, PartSums::ScratchBytes(y));
      spec.forward_exchange = PartSums::OfSum(y, part);
    }
    spec.memory.output_gradient_last_use = LastUse::kBackwardWeight;
    const auto elements = static_cast<double>(context.rows * positions * features);
    const double adds = options_.positions ? elements : 0.0;
    const double w = context.value_bytes();
    spec.forward = {adds, w * (2.0 * elements + adds)};
    // All of dtokens is written once per step, whatever the ids are. Gradients are read and written
    // in 4 bytes.
    spec.backward_weight = {elements + adds, (w + 8.0) * (elements + adds) +
                                                 4.0 * static_cast<double>(held * features)};
    return spec;
  }

  absl::Status Forward(const LayerArgs& args) override {
    RETURN_IF_ERROR(op_->Forward(args.stream, args.x, args.parameters[0],
                                 PositionsOf(args.parameters),
                                 is_sequence_ ? args.call.rows : nullptr, args.y));
    if (sums_ == nullptr) return absl::OkStatus();
    return sums_->AddUp(args.stream, args.y, args.workspace);
  }

  // Ids have no gradient.
  absl::Status BackwardInput(const LayerArgs&) override { return absl::OkStatus(); }

  absl::Status BackwardWeight(const LayerArgs& args) override {
    for (size_t i = kFirstUnread; i < args.gradients.size(); ++i) {
      // Any finite statistic will do.
      RETURN_IF_ERROR(elementwise_->Copy(args.stream, args.parameters[i], args.gradients[i]));
    }
    return op_->BackwardWeight(args.stream, args.x, args.dy, args.gradients[0],
                               PositionsOf(args.gradients), args.accumulate, args.workspace);
  }

 private:
  static constexpr size_t kFirstUnread = 2;

  // Adds vectors of positions that no sample has.
  void AddUnread(const char* name, int64_t positions, LayerSpec& spec) const {
    if (positions == 0) return;
    // A moving average of which each step keeps everything.
    spec.parameters.push_back({name, Shape{positions, options_.features},
                               Init::Normal(0.0F, options_.position_deviation), false,
                               UpdateRule::MovingAverage(0.0F)});
  }
  Tensor PositionsOf(absl::Span<const Tensor> tensors) const {
    return options_.positions ? tensors[1] : Tensor{};
  }

  const EmbeddingOptions options_;
  std::unique_ptr<kernels::EmbeddingOp> op_;
  // True with LayerContext::cached_positions and vectors of positions.
  bool is_sequence_ = false;
  kernels::ElementwiseOps* elementwise_ = nullptr;
  PartSums* sums_ = nullptr;
};

}  // namespace

LayerFactory Embedding(const EmbeddingOptions& options) { return LayerOf<EmbeddingLayer>(options); }

const LayerType kEmbeddingType = {
    .name = "embedding",
    .parse = [](LayerEntry& entry, ParsedLayer& layer) -> absl::Status {
      EmbeddingOptions options;
      ASSIGN_OR_RETURN(options.vocabulary, ParseFileCount("vocabulary", entry));
      ASSIGN_OR_RETURN(options.features, entry.reader.RequiredInt64("features", kFileCounts));
      if (entry.reader.Has("positions") && entry.json["positions"].is_number()) {
        ASSIGN_OR_RETURN(options.table_positions,
                         entry.reader.RequiredInt64("positions", kFileCounts));
        options.positions = true;
      } else {
        ASSIGN_OR_RETURN(options.positions,
                         entry.reader.OptionalBool("positions", options.positions));
      }
      if (options.positions) {
        ASSIGN_OR_RETURN(options.position_offset,
                         entry.reader.OptionalInt64("position_offset", 0, kFileCounts));
      }
      ASSIGN_OR_RETURN(const double scale, entry.reader.OptionalDouble("scale", options.scale,
                                                                       {.min = 1e-6, .max = 1e6}));
      options.scale = static_cast<float>(scale);
      RETURN_IF_ERROR(ParseDeviation("token_deviation", entry.reader, options.token_deviation));
      RETURN_IF_ERROR(
          ParseDeviation("position_deviation", entry.reader, options.position_deviation));
      ASSIGN_OR_RETURN(options.blocks, ParseBlocks(options.vocabulary, entry.reader));
      layer.factories = {Embedding(options)};
      layer.output_of = [outputs = options.features](const Shape& input) {
        return input.rank() == 1 ? Shape{input.dim(0), outputs} : input;
      };
      return absl::OkStatus();
    },
};

}  // namespace stagecoach::engine
