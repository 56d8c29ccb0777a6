#include "engine/model/layers/embedding.h"

#include <algorithm>
#include <cstddef>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
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
    if (context.cached_positions > 0) RETURN_IF_ERROR(PrepareCached(context));
    const bool adds_inside = options_.positions && table_rows_ == 0;
    ASSIGN_OR_RETURN(op_, context.device.ops().Create(kernels::EmbeddingShape{
                              context.rows, positions, vocabulary, features, adds_inside}));
    if (context.vocabulary > vocabulary) {
      return absl::InvalidArgumentError(absl::StrCat("embedding: has vectors for ", vocabulary,
                                                     " tokens, but the data's vocabulary is of ",
                                                     context.vocabulary));
    }
    LayerSpec spec;
    spec.description = absl::StrCat("embedding ", vocabulary, " -> ", features);
    const int64_t rows = table_rows_ > 0 ? table_rows_ : positions;
    if (options_.positions) absl::StrAppend(&spec.description, ", ", rows, " positions");
    spec.output = Shape{positions, features};
    spec.takes_ids = true;
    spec.parameters = {{"tokens", Shape{vocabulary, features},
                        Init::Normal(0.0F, options_.token_deviation), true}};
    if (options_.positions) {
      spec.parameters.push_back({"positions", Shape{rows, features},
                                 Init::Normal(0.0F, options_.position_deviation), true});
    }
    spec.memory.workspace_bytes = op_->workspace_bytes();
    spec.memory.output_gradient_last_use = LastUse::kBackwardWeight;
    const auto elements = static_cast<double>(context.rows * positions * features);
    const double adds = options_.positions ? elements : 0.0;
    spec.forward = {adds, 8.0 * elements + 4.0 * adds};
    // All of dtokens is written once in a step, whatever the ids are.
    spec.backward_weight = {elements + adds, 12.0 * (elements + adds) +
                                                 4.0 * static_cast<double>(vocabulary * features)};
    return spec;
  }

  absl::Status Forward(const LayerArgs& args) override {
    RETURN_IF_ERROR(op_->Forward(args.stream, args.x, args.parameters[0],
                                 PositionsOf(args.parameters), args.y));
    return table_rows_ > 0 ? AddPositions(args) : absl::OkStatus();
  }

  // Ids have no gradient.
  absl::Status BackwardInput(const LayerArgs&) override { return absl::OkStatus(); }

  absl::Status BackwardWeight(const LayerArgs& args) override {
    return op_->BackwardWeight(args.stream, args.x, args.dy, args.gradients[0],
                               PositionsOf(args.gradients), args.accumulate, args.workspace);
  }

 private:
  // For positions one after the other, of which each adds its own row of the table.
  absl::Status PrepareCached(const LayerContext& context) {
    if (context.input.dim(0) != 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "embedding: one position after another, a sample is one id, not ", context.input.dim(0)));
    }
    if (!options_.positions) return absl::OkStatus();
    // The row to add must be known when the call is made.
    if (!context.device.memory_is_host()) {
      return absl::UnimplementedError(
          "embedding: positions one after the other, with a vector each, are for CPU devices");
    }
    table_rows_ = context.cached_positions;
    add_ = &context.device.ops().elementwise();
    return absl::OkStatus();
  }

  // Rows beyond the table are padding.
  absl::Status AddPositions(const LayerArgs& args) const {
    const int64_t first = args.call.numbers->first_sample;
    const int64_t rows = std::clamp<int64_t>(table_rows_ - first, 0, args.y.shape.dim(0));
    if (rows == 0) return absl::OkStatus();
    const Shape shape{rows, options_.features};
    const Tensor& table = args.parameters[1];
    const Tensor y{args.y.data, args.y.dtype, shape};
    const Tensor positions{
        static_cast<std::byte*>(table.data) + first * options_.features * SizeOf(table.dtype),
        table.dtype, shape};
    return add_->Add(args.stream, y, positions, y);
  }

  Tensor PositionsOf(absl::Span<const Tensor> tensors) const {
    return options_.positions ? tensors[1] : Tensor{};
  }

  const EmbeddingOptions options_;
  std::unique_ptr<kernels::EmbeddingOp> op_;
  // With LayerContext::cached_positions and vectors of positions: their number.
  int64_t table_rows_ = 0;
  kernels::ElementwiseOps* add_ = nullptr;
};

}  // namespace

LayerFactory Embedding(const EmbeddingOptions& options) { return LayerOf<EmbeddingLayer>(options); }

}  // namespace stagecoach::engine
