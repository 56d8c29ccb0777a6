#include "engine/nn/layers/attention.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text/json.h"
#include "engine/nn/layers/heads.h"
#include "engine/nn/parsing/parsed_layer.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/cached_attention.h"
#include "kernels/ops/ops.h"

namespace stagecoach::engine {
namespace {

class AttentionLayer final : public Layer {
 public:
  explicit AttentionLayer(const AttentionOptions& options)
      : options_(options),
        heads_(options.heads),
        kv_heads_(options.kv_heads == 0 ? options.heads : options.kv_heads) {}

  absl::StatusOr<LayerSpec> Prepare(const LayerContext& context) override {
    ASSIGN_OR_RETURN(const int64_t head_size,
                     HeadSizeOf("attention", heads_, kv_heads_, context.input));
    const int64_t positions = context.input.dim(0);
    LayerSpec spec;
    spec.description = absl::StrCat("attention ", heads_, " x ", head_size);
    if (kv_heads_ != heads_) absl::StrAppend(&spec.description, ", ", kv_heads_, " kv heads");
    Describe(spec.description);
    spec.output = Shape{positions, heads_ * head_size};
    spec.has_attention = true;
    if (context.cached_positions > 0) {
      RETURN_IF_ERROR(PrepareCached(context, head_size, spec));
      return spec;
    }
    const ResolvedRotary rotary = RotaryFor(head_size, positions);
    ASSIGN_OR_RETURN(op_, context.device.ops().Create(
                              kernels::AttentionShape{.samples = context.rows,
                                                      .positions = positions,
                                                      .heads = heads_,
                                                      .kv_heads = kv_heads_,
                                                      .head_size = head_size,
                                                      .rotary_base = rotary.base,
                                                      .rotary_scaling = rotary.scaling,
                                                      .rotary_size = options_.rotary_size,
                                                      .window = options_.window,
                                                      .scale = options_.scale,
                                                      .score_cap = options_.score_cap,
                                                      .has_documents = context.has_documents}));
    statistics_ = Shape{context.rows, heads_, positions};
    spec.memory.stash_bytes = kernels::Float32(nullptr, statistics_).bytes();
    spec.memory.workspace_bytes = op_->workspace_bytes();
    spec.memory.input_last_use = LastUse::kBackwardInput;
    spec.memory.output_last_use = LastUse::kBackwardInput;
    SetWork(context, positions, head_size, spec);
    return spec;
  }

  absl::Status Forward(const LayerArgs& args) override {
    if (cached_op_ != nullptr) {
      return cached_op_->Forward(args.stream, args.call.rows, args.x, args.cache, args.y,
                                 args.workspace);
    }
    return op_->Forward(args.stream, args.x, args.documents, Statistics(args), args.y,
                        args.workspace);
  }

  absl::Status BackwardInput(const LayerArgs& args) override {
    if (args.dx.empty()) return absl::OkStatus();
    return op_->BackwardInput(args.stream, args.dy, args.x, args.documents, args.y,
                              Statistics(args), args.dx, args.workspace);
  }

 private:
  ResolvedRotary RotaryFor(int64_t head_size, int64_t positions) const {
    const int64_t rotated = options_.rotary_size > 0 ? options_.rotary_size : head_size;
    return ResolveRotary(options_.rotary_scaling, options_.rotary_base, rotated, positions);
  }
  void Describe(std::string& text) const {
    if (options_.rotary_base != 0.0F) {
      absl::StrAppend(&text, ", rotary ", options_.rotary_base);
    }
    if (options_.rotary_scaling.factor != 1.0) {
      absl::StrAppend(&text, " scaled by ", options_.rotary_scaling.factor);
    } else if (!options_.rotary_scaling.is_none()) {
      absl::StrAppend(&text, " scaled");
    }
    if (options_.rotary_size != 0) absl::StrAppend(&text, " of ", options_.rotary_size);
    if (options_.window != 0) absl::StrAppend(&text, ", window ", options_.window);
    if (options_.scale != 0.0F) absl::StrAppend(&text, ", scale ", options_.scale);
    if (options_.score_cap != 0.0F) absl::StrAppend(&text, ", cap ", options_.score_cap);
  }

  // Prepares for positions that arrive one after the other.
  absl::Status PrepareCached(const LayerContext& context, int64_t head_size, LayerSpec& spec) {
    if (context.input.dim(0) != 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "attention: with a cache, a sample is one position, not ", context.input.dim(0)));
    }
    const ResolvedRotary rotary = RotaryFor(head_size, context.cached_positions);
    ASSIGN_OR_RETURN(cached_op_, context.device.ops().Create(kernels::CachedAttentionShape{
                                     .rows = context.rows,
                                     .positions = context.cached_positions,
                                     .heads = heads_,
                                     .kv_heads = kv_heads_,
                                     .head_size = head_size,
                                     .rotary_base = rotary.base,
                                     .rotary_scaling = rotary.scaling,
                                     .sequences = context.cached_sequences,
                                     .rows_are_sequences = context.rows_are_sequences,
                                     .rotary_size = options_.rotary_size,
                                     .window = options_.window,
                                     .scale = options_.scale,
                                     .score_cap = options_.score_cap}));
    spec.memory.cache_bytes = cached_op_->cache_bytes();
    spec.memory.workspace_bytes = cached_op_->workspace_bytes();
    // On average, half of a sequence's cache is read.
    const auto rows = static_cast<double>(context.rows);
    const int64_t sequence_bytes = spec.memory.cache_bytes / context.cached_sequences;
    const double bytes = 0.5 * rows * static_cast<double>(sequence_bytes);
    spec.forward = {0.5 * bytes * static_cast<double>(heads_) / static_cast<double>(kv_heads_),
                    bytes};
    return absl::OkStatus();
  }

  void SetWork(const LayerContext& context, int64_t positions, int64_t head_size,
               LayerSpec& spec) const {
    // Half of all pairs of positions are computed; with a window W, as many for the first W
    // positions, and W for each of the others.
    const auto T = static_cast<double>(positions);
    const auto W = options_.window == 0 ? T : std::min(T, static_cast<double>(options_.window));
    const double pairs = 0.5 * W * (W + 1.0) + (T - W) * W;
    const double scores = static_cast<double>(statistics_.elements()) * pairs / T;
    const double product = 2.0 * static_cast<double>(head_size) * scores;
    const kernels::DType type = context.device.activation_type();
    const auto bytes = [&](const Shape& shape) {
      return static_cast<double>(Tensor{nullptr, type, shape.Batched(context.rows)}.bytes());
    };
    const double x = bytes(context.input);
    const double y = bytes(spec.output);
    constexpr double kSoftmaxFlops = 20.0;  // per score
    spec.forward = {2.0 * product + kSoftmaxFlops * scores, x + y};
    spec.backward_input = {5.0 * product + kSoftmaxFlops * scores, 2.0 * x + 2.0 * y};
  }

  Tensor Statistics(const LayerArgs& args) const {
    return kernels::Float32(args.stash, statistics_);
  }

  const AttentionOptions options_;
  const int64_t heads_, kv_heads_;
  Shape statistics_;  // (rows, heads, positions)
  std::unique_ptr<kernels::AttentionOp> op_;
  std::unique_ptr<kernels::CachedAttentionOp> cached_op_;  // or this one
};

}  // namespace

LayerFactory Attention(const AttentionOptions& options) { return LayerOf<AttentionLayer>(options); }

const LayerType kAttentionType = {
    .name = "attention",
    .parse = [](LayerEntry& entry, ParsedLayer& layer) -> absl::Status {
      AttentionOptions options;
      ASSIGN_OR_RETURN(options.heads, entry.reader.RequiredInt64("heads", kFileCounts));
      ASSIGN_OR_RETURN(options.kv_heads,
                       entry.reader.OptionalInt64("kv_heads", options.heads, kFileCounts));
      ASSIGN_OR_RETURN(const double base,
                       entry.reader.OptionalDouble("rotary_base", 0.0, {.min = 0.0, .max = 1e12}));
      if (base > 0.0 && base < 1.0) {
        return entry.reader.Error("rotary_base",
                                  "expected at least 1, or 0 for no rotary embedding");
      }
      options.rotary_base = static_cast<float>(base);
      if (entry.reader.Has("rotary_scaling")) {
        ASSIGN_OR_RETURN(base::ObjectReader scaling, entry.reader.RequiredObject("rotary_scaling"));
        ASSIGN_OR_RETURN(options.rotary_scaling, ParseRotaryScaling(std::move(scaling)));
      }
      ASSIGN_OR_RETURN(options.rotary_size,
                       entry.reader.OptionalInt64("rotary_size", 0, kFileCounts));
      ASSIGN_OR_RETURN(options.window, entry.reader.OptionalInt64("window", 0, kFileCounts));
      for (const auto& [key, value] :
           {std::pair("scale", &options.scale), std::pair("score_cap", &options.score_cap)}) {
        if (!entry.reader.Has(key)) continue;
        ASSIGN_OR_RETURN(const double number,
                         entry.reader.RequiredDouble(key, {.min = 1e-6, .max = 1e6}));
        *value = static_cast<float>(number);
      }
      layer.factories = {Attention(options)};
      layer.output_of = [options](const Shape& input) {
        const int64_t heads = LastAxisOf(input) / (options.heads + 2 * options.kv_heads);
        return WithLastAxis(input, heads * options.heads);
      };
      return absl::OkStatus();
    },
};

}  // namespace stagecoach::engine
