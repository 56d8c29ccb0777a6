#include "partition/io/transformer_profile.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "partition/io/transformer_times.h"
#include "schedule/memory/memory_plan.h"

namespace stagecoach::partition {
namespace {

using schedule::LastUse;

// The bytes of activations at one micro-batch size, on one of the devices that share a layer.
class Activations {
 public:
  Activations(const Transformer& transformer, int64_t rows)
      : shape_(transformer),
        width_(transformer.bytes_per_value),
        tokens_(TokensOfGroup(transformer, rows)),
        pairs_(transformer.experts > 0 ? PairsOfGroup(transformer, rows) : tokens_) {}

  int64_t Boundary() const { return Whole(width_ * shape_.hidden * tokens_); }
  int64_t Layer() const {
    int64_t whole = (4 * width_ + Masks()) * shape_.hidden * tokens_;
    if (shape_.post_norms) whole += 2 * width_ * shape_.hidden * tokens_;  // their inputs
    if (shape_.experts > 0) {  // the inputs and outputs of the experts, and the router's work
      whole += 2 * width_ * shape_.hidden * pairs_ + 8 * shape_.experts * tokens_;
    }
    const int64_t normalized = shape_.qk_norm ? shape_.query_width() + shape_.key_width() : 0;
    const int64_t shared = (shape_.qkv_width() + normalized + shape_.query_width()) * tokens_ +
                           (shape_.mlp_inputs() + 1) * shape_.mlp_width() * pairs_;
    return Whole(whole) + Divided(width_ * shared) +
           (shape_.attention == Attention::kStored ? Scores() : 0);
  }
  // Returns what W needs of F and of B, except the gradient of the layer's own output.
  int64_t InputsOfProducts() const {
    const int64_t of_experts = shape_.experts > 0 ? shape_.hidden * pairs_ : 0;
    return Whole(width_ * (2 * shape_.hidden * tokens_ + of_experts)) +
           Divided(width_ * (shape_.query_width() * tokens_ + shape_.mlp_width() * pairs_));
  }
  int64_t GradientsOfProducts() const {
    const int64_t of_experts = shape_.experts > 0 ? shape_.hidden * pairs_ : 0;
    return Whole(width_ * (shape_.hidden * tokens_ + of_experts)) +
           Divided(width_ * (shape_.qkv_width() * tokens_ +
                             shape_.mlp_inputs() * shape_.mlp_width() * pairs_));
  }
  // Returns what attention keeps: the softmax, and with dropout its result and the mask.
  int64_t Scores() const {
    return Divided(shape_.heads * shape_.sequence * tokens_ *
                   (shape_.dropout ? 2 * width_ + 1 : width_));
  }
  int64_t OutputsOfNorms() const { return Whole(2 * width_ * shape_.hidden * tokens_); }
  int64_t OutputOfActivation() const { return Divided(width_ * shape_.mlp_width() * pairs_); }
  int64_t EmbeddingMask() const { return shape_.dropout ? Whole(shape_.hidden * tokens_) : 0; }
  int64_t Logits() const { return Divided(tokens_ * shape_.vocabulary * 4); }
  int64_t TokenIds() const { return tokens_ * 8; }

 private:
  int64_t Masks() const { return shape_.dropout ? 2 : 0; }
  int64_t Divided(int64_t bytes) const {
    return (bytes + shape_.tensor_parallel - 1) / shape_.tensor_parallel;
  }
  // Returns the bytes of what lies outside the products that devices share.
  int64_t Whole(int64_t bytes) const { return shape_.sequence_parallel ? Divided(bytes) : bytes; }

  const Transformer& shape_;
  int64_t width_, tokens_;
  int64_t pairs_;  // tokens of the perceptron, each counted once per expert that processes it
};

// Sets the parameters of a layer of which every device has its part, `others` and those of experts.
void SetParameters(const Transformer& t, int64_t others, int64_t experts, LayerCost& layer) {
  layer.parameters = others + experts;
  const auto part = [](int64_t count, int64_t devices) { return (count + devices - 1) / devices; };
  const int64_t own = part(others, t.tensor_parallel) + part(experts, t.devices());
  layer.memory.parameter_bytes = own * t.bytes_per_value;
  layer.memory.optimizer_bytes = own * t.optimizer_bytes_per_parameter;
}

LayerCost Embedding(const Transformer& t, int64_t rows) {
  const Activations bytes(t, rows);
  LayerCost layer = {.name = "embedding"};
  SetParameters(t, ParametersOfEmbedding(t), 0, layer);
  SetEmbeddingTimes(t, rows, layer);
  layer.memory.input_bytes = bytes.TokenIds();
  layer.memory.output_bytes = bytes.Boundary();
  layer.memory.stash_bytes = bytes.EmbeddingMask();
  layer.memory.input_last_use = LastUse::kBackwardWeight;
  layer.memory.output_gradient_last_use = LastUse::kBackwardWeight;
  return layer;
}

// Lets the layer repeat F, if that leaves less.
void SetRecomputation(const Transformer& t, int64_t rows, LayerCost& layer) {
  if (t.recompute == Recompute::kFull) {
    layer.recompute_stash_bytes = 0;
    return;
  }
  const Activations bytes(t, rows);
  RepeatedPart part = RepeatedTimes(t, rows);
  if (t.repeated.scores && t.attention == Attention::kStored) part.stash_bytes += bytes.Scores();
  if (t.repeated.norms) part.weight_stash_bytes += bytes.OutputsOfNorms();
  if (t.repeated.activation) part.weight_stash_bytes += bytes.OutputOfActivation();
  if (part.stash_bytes + part.weight_stash_bytes > 0) SetRepeated(part, layer);
}

LayerCost Layer(const Transformer& t, int64_t rows, int64_t index) {
  const Activations bytes(t, rows);
  LayerCost layer = {.name = absl::StrCat("layer", index)};
  const LayerParameters parameters = ParametersOfLayer(t);
  SetParameters(t, parameters.others, parameters.experts, layer);
  SetLayerTimes(t, rows, index, layer);
  LayerMemory& memory = layer.memory;
  memory.input_bytes = bytes.Boundary();
  memory.output_bytes = bytes.Boundary();
  memory.weight_stash_bytes = bytes.InputsOfProducts();
  memory.stash_bytes = bytes.Layer() - memory.weight_stash_bytes - memory.input_bytes;
  memory.gradient_stash_bytes = bytes.GradientsOfProducts();
  memory.workspace_bytes = t.attention == Attention::kRecomputed ? bytes.Scores() : 0;
  memory.input_last_use = LastUse::kBackwardInput;
  memory.output_gradient_last_use = LastUse::kBackwardWeight;
  SetRecomputation(t, rows, layer);
  return layer;
}

LayerCost Head(const Transformer& t, int64_t rows) {
  const Activations bytes(t, rows);
  LayerCost layer = {.name = "head"};
  SetParameters(t, ParametersOfNorm(t) + t.vocabulary * t.hidden, 0, layer);
  layer.parameters = ParametersOfNorm(t) + ParametersOfHead(t);
  SetHeadTimes(t, rows, layer);
  layer.memory.input_bytes = bytes.Boundary();
  // W needs the norm's output, and the gradient of the logits, which replaces them.
  layer.memory.weight_stash_bytes = bytes.Boundary() + bytes.Logits();
  layer.memory.input_last_use = LastUse::kBackwardInput;
  return layer;
}

}  // namespace

int64_t ActivationBytes(const Transformer& t, int64_t rows) { return Activations(t, rows).Layer(); }

Profile TransformerProfile(const Transformer& t, std::string model) {
  Profile profile = {.model = std::move(model)};
  for (const int64_t rows : t.micro_batch_rows) {
    SizedLayers& size = profile.sizes.emplace_back();
    size.micro_batch_rows = rows;
    size.layers.push_back(Embedding(t, rows));
    for (int64_t i = 0; i < t.layers; ++i) size.layers.push_back(Layer(t, rows, i));
    size.layers.push_back(Head(t, rows));
  }
  return profile;
}

}  // namespace stagecoach::partition
