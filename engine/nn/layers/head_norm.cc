#include "engine/nn/layers/head_norm.h"

#include <algorithm>
#include <cstddef>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text/json.h"
#include "engine/nn/layers/heads.h"
#include "engine/nn/parsing/parsed_layer.h"
#include "kernels/ops/concat.h"
#include "kernels/ops/layer_norm.h"
#include "kernels/ops/ops.h"

namespace stagecoach::engine {
namespace {

class HeadNormLayer final : public Layer {
 public:
  explicit HeadNormLayer(const HeadNormOptions& options)
      : heads_(options.heads),
        kv_heads_(options.kv_heads == 0 ? options.heads : options.kv_heads),
        epsilon_(options.epsilon) {}

  absl::StatusOr<LayerSpec> Prepare(const LayerContext& context) override {
    ASSIGN_OR_RETURN(head_size_, HeadSizeOf("head norm", heads_, kv_heads_, context.input));
    rows_ = context.rows * context.input.dim(0);
    type_ = context.device.activation_type();
    kernels::Ops& ops = context.device.ops();
    const int64_t of_queries = heads_ * head_size_, of_kv = kv_heads_ * head_size_;
    ASSIGN_OR_RETURN(queries_and_rest_,
                     ops.Create(kernels::ConcatShape{rows_, of_queries, 2 * of_kv}));
    ASSIGN_OR_RETURN(keys_and_values_, ops.Create(kernels::ConcatShape{rows_, of_kv, of_kv}));
    ASSIGN_OR_RETURN(queries_norm_, CreateNorm(ops, heads_));
    ASSIGN_OR_RETURN(keys_norm_, CreateNorm(ops, kv_heads_));
    LayerSpec spec;
    spec.description = absl::StrCat("head norm ", heads_, " x ", head_size_);
    if (kv_heads_ != heads_) absl::StrAppend(&spec.description, ", ", kv_heads_, " kv heads");
    spec.output = context.input;
    const Init one = Init::Constant(1.0F);
    spec.parameters = {{"q_gamma", Shape{head_size_}, one, false},
                       {"k_gamma", Shape{head_size_}, one, false}};
    spec.memory.weight_stash_bytes = StatisticsBytes(heads_) + StatisticsBytes(kv_heads_);
    norm_workspace_bytes_ = partition::AlignTensor(
        std::max(queries_norm_->workspace_bytes(), keys_norm_->workspace_bytes()));
    spec.memory.workspace_bytes = norm_workspace_bytes_ + 2 * PartsBytes();
    spec.memory.output_gradient_last_use = LastUse::kBackwardWeight;
    const double normalized = static_cast<double>(rows_ * (of_queries + of_kv));
    const double bytes = context.value_bytes() * static_cast<double>(rows_ * context.input.dim(1));
    // A pass that divides, one that normalizes, and one that joins.
    spec.forward = {8.0 * normalized, 6.0 * bytes};
    spec.backward_input = {14.0 * normalized, 9.0 * bytes};
    spec.backward_weight = {5.0 * normalized, 6.0 * bytes};
    spec.backward_shared = {0.0, 6.0 * bytes};
    return spec;
  }

  absl::Status Forward(const LayerArgs& args) override {
    const Parts x = PartsAt(args.workspace + norm_workspace_bytes_);
    RETURN_IF_ERROR(Split(args.stream, args.x, x));
    RETURN_IF_ERROR(queries_norm_->Forward(args.stream, x.queries, args.parameters[0], {}, {},
                                           QueryStatistics(args), x.queries));
    RETURN_IF_ERROR(keys_norm_->Forward(args.stream, x.keys, args.parameters[1], {}, {},
                                        KeyStatistics(args), x.keys));
    return Join(args.stream, x, args.y);
  }

  absl::Status BackwardInput(const LayerArgs& args) override {
    if (args.dx.empty()) return absl::OkStatus();
    const Parts x = PartsAt(args.workspace + norm_workspace_bytes_);
    const Parts dy = PartsAt(args.workspace + norm_workspace_bytes_ + PartsBytes());
    RETURN_IF_ERROR(SplitBoth(args, x, dy));
    return ComputeInput(args, x, dy);
  }

  absl::Status BackwardWeight(const LayerArgs& args) override {
    const Parts x = PartsAt(args.workspace + norm_workspace_bytes_);
    const Parts dy = PartsAt(args.workspace + norm_workspace_bytes_ + PartsBytes());
    RETURN_IF_ERROR(SplitBoth(args, x, dy));
    return ComputeWeight(args, x, dy);
  }

  absl::Status Backward(const LayerArgs& args) override {
    const Parts x = PartsAt(args.workspace + norm_workspace_bytes_);
    const Parts dy = PartsAt(args.workspace + norm_workspace_bytes_ + PartsBytes());
    RETURN_IF_ERROR(SplitBoth(args, x, dy));
    RETURN_IF_ERROR(ComputeWeight(args, x, dy));
    return args.dx.empty() ? absl::OkStatus() : ComputeInput(args, x, dy);
  }

 private:
  // Copies of the parts of a tensor of the layer, each a matrix without gaps.
  struct Parts {
    Tensor queries;  // (rows H, D)
    Tensor rest;     // (rows, 2 G D)
    Tensor keys;     // (rows G, D)
    Tensor values;   // likewise
  };

  absl::StatusOr<std::unique_ptr<kernels::LayerNormOp>> CreateNorm(kernels::Ops& ops,
                                                                   int64_t heads) const {
    return ops.Create(kernels::LayerNormShape{rows_ * heads, head_size_, epsilon_, false});
  }

  int64_t StatisticsBytes(int64_t heads) const {
    return partition::AlignTensor(kernels::Float32(nullptr, Shape{rows_ * heads}).bytes());
  }
  Tensor QueryStatistics(const LayerArgs& args) const {
    return kernels::Float32(args.weight_stash, Shape{rows_ * heads_});
  }
  Tensor KeyStatistics(const LayerArgs& args) const {
    return kernels::Float32(args.weight_stash + StatisticsBytes(heads_), Shape{rows_ * kv_heads_});
  }

  Tensor At(std::byte* place, int64_t heads) const {
    return {place, type_, Shape{rows_ * heads, head_size_}};
  }
  int64_t BytesOf(int64_t heads) const {
    return partition::AlignTensor(At(nullptr, heads).bytes());
  }
  int64_t PartsBytes() const {
    return BytesOf(heads_) + BytesOf(2 * kv_heads_) + 2 * BytesOf(kv_heads_);
  }
  Parts PartsAt(std::byte* place) const {
    Parts parts;
    parts.queries = At(place, heads_);
    parts.rest = At(place + BytesOf(heads_), 2 * kv_heads_);
    std::byte* const keys = place + BytesOf(heads_) + BytesOf(2 * kv_heads_);
    parts.keys = At(keys, kv_heads_);
    parts.values = At(keys + BytesOf(kv_heads_), kv_heads_);
    return parts;
  }

  absl::Status Split(kernels::Stream& stream, const Tensor& whole, const Parts& parts) const {
    RETURN_IF_ERROR(queries_and_rest_->Split(stream, whole, parts.queries, parts.rest));
    return keys_and_values_->Split(stream, parts.rest, parts.keys, parts.values);
  }
  absl::Status Join(kernels::Stream& stream, const Parts& parts, const Tensor& whole) const {
    RETURN_IF_ERROR(keys_and_values_->Join(stream, parts.keys, parts.values, parts.rest));
    return queries_and_rest_->Join(stream, parts.queries, parts.rest, whole);
  }
  absl::Status SplitBoth(const LayerArgs& args, const Parts& x, const Parts& dy) const {
    RETURN_IF_ERROR(Split(args.stream, args.x, x));
    return Split(args.stream, args.dy, dy);
  }

  // Overwrites the parts of dy by those of dx.
  absl::Status ComputeInput(const LayerArgs& args, const Parts& x, const Parts& dy) const {
    RETURN_IF_ERROR(queries_norm_->BackwardInput(args.stream, dy.queries, x.queries,
                                                 args.parameters[0], QueryStatistics(args), {},
                                                 dy.queries));
    RETURN_IF_ERROR(keys_norm_->BackwardInput(args.stream, dy.keys, x.keys, args.parameters[1],
                                              KeyStatistics(args), {}, dy.keys));
    return Join(args.stream, dy, args.dx);
  }

  absl::Status ComputeWeight(const LayerArgs& args, const Parts& x, const Parts& dy) const {
    RETURN_IF_ERROR(queries_norm_->BackwardWeight(args.stream, dy.queries, x.queries,
                                                  QueryStatistics(args), args.gradients[0], {},
                                                  args.accumulate, args.workspace));
    return keys_norm_->BackwardWeight(args.stream, dy.keys, x.keys, KeyStatistics(args),
                                      args.gradients[1], {}, args.accumulate, args.workspace);
  }

  const int64_t heads_, kv_heads_;
  const float epsilon_;
  int64_t head_size_ = 0;
  int64_t rows_ = 0;  // positions of all samples
  kernels::DType type_ = kernels::DType::kFloat32;
  int64_t norm_workspace_bytes_ = 0;
  std::unique_ptr<kernels::ConcatOp> queries_and_rest_, keys_and_values_;
  std::unique_ptr<kernels::LayerNormOp> queries_norm_, keys_norm_;
};

}  // namespace

LayerFactory HeadNorm(const HeadNormOptions& options) { return LayerOf<HeadNormLayer>(options); }

const LayerType kHeadNormType = {
    .name = "head_norm",
    .parse = [](LayerEntry& entry, ParsedLayer& layer) -> absl::Status {
      HeadNormOptions options;
      ASSIGN_OR_RETURN(options.heads, entry.reader.RequiredInt64("heads", kFileCounts));
      ASSIGN_OR_RETURN(options.kv_heads,
                       entry.reader.OptionalInt64("kv_heads", options.heads, kFileCounts));
      ASSIGN_OR_RETURN(options.epsilon, ParseNormEpsilon(entry.reader));
      layer.factories = {HeadNorm(options)};
      return absl::OkStatus();
    },
};

}  // namespace stagecoach::engine
