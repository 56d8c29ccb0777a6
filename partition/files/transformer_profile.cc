#include "partition/files/transformer_profile.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/json.h"
#include "base/line.h"
#include "base/status_macros.h"
#include "base/toml.h"
#include "schedule/memory.h"

namespace stagecoach::partition {
namespace {

using base::ArrayReader;
using base::ObjectReader;
using schedule::LastUse;

constexpr int64_t kDescriptionVersion = 1;
constexpr int64_t kMaxDescriptionBytes = int64_t{1} << 20;
constexpr std::array<const char*, 3> kAttentions = {"stored", "recomputed", "flash"};

struct Field {
  const char* name;
  int64_t Transformer::*member;
  int64_t max;
};
constexpr Field kFields[] = {
    {"layers", &Transformer::layers, kMaxLayers - 2},
    {"hidden", &Transformer::hidden, int64_t{1} << 20},
    {"heads", &Transformer::heads, int64_t{1} << 16},
    {"sequence", &Transformer::sequence, int64_t{1} << 24},
    {"vocabulary", &Transformer::vocabulary, int64_t{1} << 26},
    {"bytes_per_value", &Transformer::bytes_per_value, 8},
    {"optimizer_bytes_per_parameter", &Transformer::optimizer_bytes_per_parameter, 64},
    {"tensor_parallel", &Transformer::tensor_parallel, 1024},
};
constexpr size_t kRequiredFields = 5;

// The bytes of activations at one micro-batch size, on one of the devices that share a layer.
class Activations {
 public:
  Activations(const Transformer& transformer, int64_t rows)
      : shape_(transformer),
        values_(transformer.sequence * rows * transformer.hidden),
        scores_(transformer.heads * transformer.sequence * transformer.sequence * rows),
        tokens_(transformer.sequence * rows) {}

  int64_t Boundary() const { return Whole(shape_.bytes_per_value); }
  int64_t Layer() const {
    const int64_t w = shape_.bytes_per_value;
    return Whole(4 * w + 2) + Shared(12 * w) +
           (shape_.attention == Attention::kStored ? Scores() : 0);
  }
  // What W needs of F and of B, but for the gradient of the layer's own output.
  int64_t InputsOfProducts() const {
    return Whole(2 * shape_.bytes_per_value) + Shared(5 * shape_.bytes_per_value);
  }
  int64_t GradientsOfProducts() const {
    return Whole(shape_.bytes_per_value) + Shared(7 * shape_.bytes_per_value);
  }
  // Of attention: the softmax, what dropout makes of it, and the mask.
  int64_t Scores() const { return Divided(scores_ * (2 * shape_.bytes_per_value + 1)); }
  int64_t EmbeddingMask() const { return Whole(1); }
  int64_t Logits() const { return Divided(tokens_ * shape_.vocabulary * 4); }
  int64_t TokenIds() const { return tokens_ * 8; }

 private:
  int64_t Divided(int64_t bytes) const {
    return (bytes + shape_.tensor_parallel - 1) / shape_.tensor_parallel;
  }
  // So many bytes for each value of an activation: in products, and outside of them.
  int64_t Shared(int64_t bytes) const { return Divided(values_ * bytes); }
  int64_t Whole(int64_t bytes) const {
    return shape_.sequence_parallel ? Shared(bytes) : values_ * bytes;
  }

  const Transformer& shape_;
  int64_t values_, scores_, tokens_;
};

// Of one layer's products, for one pass.
double LinearFlops(const Transformer& t, int64_t rows) {
  return 24.0 * static_cast<double>(rows * t.sequence) * static_cast<double>(t.hidden * t.hidden);
}
double AttentionFlops(const Transformer& t, int64_t rows) {
  return 4.0 * static_cast<double>(rows * t.sequence) * static_cast<double>(t.sequence * t.hidden);
}
double HeadFlops(const Transformer& t, int64_t rows) {
  return 2.0 * static_cast<double>(rows * t.sequence) *
         static_cast<double>(t.hidden * t.vocabulary);
}

void SetParameters(const Transformer& t, int64_t count, LayerCost& layer) {
  layer.parameters = count;
  const int64_t own = (count + t.tensor_parallel - 1) / t.tensor_parallel;
  layer.memory.parameter_bytes = own * t.bytes_per_value;
  layer.memory.optimizer_bytes = own * t.optimizer_bytes_per_parameter;
}

// Flops of F, of B, of W.
void SetTimes(const Transformer& t, double forward, double input, double weight, LayerCost& layer) {
  const double flops_per_ns = t.device_teraflops * 1e3 * static_cast<double>(t.tensor_parallel);
  layer.forward_ns = forward / flops_per_ns;
  layer.backward_input_ns = input / flops_per_ns;
  layer.backward_weight_ns = weight / flops_per_ns;
}

LayerCost Embedding(const Transformer& t, int64_t rows) {
  const Activations bytes(t, rows);
  LayerCost layer = {.name = "embedding"};
  SetParameters(t, (t.vocabulary + t.sequence) * t.hidden, layer);
  layer.memory.input_bytes = bytes.TokenIds();
  layer.memory.output_bytes = bytes.Boundary();
  layer.memory.stash_bytes = bytes.EmbeddingMask();
  layer.memory.input_last_use = LastUse::kBackwardWeight;
  layer.memory.output_gradient_last_use = LastUse::kBackwardWeight;
  return layer;
}

LayerCost Layer(const Transformer& t, int64_t rows, int64_t index) {
  const Activations bytes(t, rows);
  LayerCost layer = {.name = absl::StrCat("layer", index)};
  SetParameters(t, 12 * t.hidden * t.hidden + 13 * t.hidden, layer);
  const double linear = LinearFlops(t, rows), attention = AttentionFlops(t, rows);
  const double again = t.attention == Attention::kStored ? 0 : attention;
  SetTimes(t, linear + attention, linear + 2 * attention + again, linear, layer);
  layer.flops = 3 * (linear + attention);
  LayerMemory& memory = layer.memory;
  memory.input_bytes = bytes.Boundary();
  memory.output_bytes = bytes.Boundary();
  memory.weight_stash_bytes = bytes.InputsOfProducts();
  memory.stash_bytes = bytes.Layer() - memory.weight_stash_bytes - memory.input_bytes;
  memory.gradient_stash_bytes = bytes.GradientsOfProducts();
  memory.workspace_bytes = t.attention == Attention::kRecomputed ? bytes.Scores() : 0;
  memory.input_last_use = LastUse::kBackwardInput;
  memory.output_gradient_last_use = LastUse::kBackwardWeight;
  layer.recompute_stash_bytes = 0;
  return layer;
}

LayerCost Head(const Transformer& t, int64_t rows) {
  const Activations bytes(t, rows);
  LayerCost layer = {.name = "head"};
  SetParameters(t, t.vocabulary * t.hidden, layer);
  layer.parameters = 0;
  const double flops = HeadFlops(t, rows);
  SetTimes(t, flops, flops, flops, layer);
  layer.flops = 3 * flops;
  layer.memory.input_bytes = bytes.Boundary();
  // W needs the norm's output, and the gradient of the logits, which takes their place.
  layer.memory.weight_stash_bytes = bytes.Boundary() + bytes.Logits();
  layer.memory.input_last_use = LastUse::kBackwardInput;
  return layer;
}

absl::Status CheckTotals(const Transformer& t, int64_t rows) {
  const double tokens = static_cast<double>(t.sequence) * static_cast<double>(rows);
  const double most =
      std::max(tokens * 20 * 8 * static_cast<double>(t.hidden) +
                   tokens * 17 * static_cast<double>(t.sequence) * static_cast<double>(t.heads),
               tokens * 4 * static_cast<double>(t.vocabulary));
  if (most <= 16.0 * static_cast<double>(schedule::kMaxSizeBytes)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("micro_batch_rows: with ", rows, " rows a layer keeps up to ", most,
                   " bytes, expected a smaller product with sequence, hidden or vocabulary"));
}

// ---- Reading ----

absl::Status ReadRows(const nlohmann::json& document, ObjectReader& reader, Transformer& t) {
  if (!document.contains("micro_batch_rows") || !document["micro_batch_rows"].is_array()) {
    ASSIGN_OR_RETURN(t.micro_batch_rows[0], reader.OptionalInt64("micro_batch_rows", 1));
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const ArrayReader array, reader.RequiredArray("micro_batch_rows"));
  t.micro_batch_rows.clear();
  for (size_t i = 0; i < array.size(); ++i) {
    ASSIGN_OR_RETURN(t.micro_batch_rows.emplace_back(), array.Int64(i));
  }
  return absl::OkStatus();
}

absl::StatusOr<Transformer> ReadTransformer(const nlohmann::json& document) {
  ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Create(document));
  ASSIGN_OR_RETURN(const int64_t version, reader.RequiredInt64("version"));
  if (version != kDescriptionVersion) {
    return reader.Error(
        "version",
        absl::StrCat("version ", version, ": this program reads version ", kDescriptionVersion));
  }
  Transformer t;
  ASSIGN_OR_RETURN(t.bytes_per_value, reader.OptionalInt64("bytes_per_value", t.bytes_per_value));
  if (t.bytes_per_value >= 4) t.optimizer_bytes_per_parameter = 8;
  for (size_t i = 0; i < std::size(kFields); ++i) {
    const Field& field = kFields[i];
    if (i >= kRequiredFields && !reader.Has(field.name)) continue;
    ASSIGN_OR_RETURN(t.*field.member, reader.RequiredInt64(field.name));
  }
  RETURN_IF_ERROR(ReadRows(document, reader, t));
  ASSIGN_OR_RETURN(t.sequence_parallel, reader.OptionalBool("sequence_parallel", false));
  ASSIGN_OR_RETURN(t.device_teraflops,
                   reader.OptionalDouble("device_teraflops", t.device_teraflops));
  ASSIGN_OR_RETURN(const std::string word, reader.OptionalString("attention", kAttentions[0]));
  RETURN_IF_ERROR(reader.Finish());
  const auto* const attention = std::find(kAttentions.begin(), kAttentions.end(), word);
  if (attention == kAttentions.end()) {
    return reader.Error("attention",
                        absl::StrCat("must be \"stored\", \"recomputed\" or \"flash\", found \"",
                                     absl::CHexEscape(word), "\""));
  }
  t.attention = static_cast<Attention>(attention - kAttentions.begin());
  const absl::Status checked = CheckTransformer(t);
  if (!checked.ok()) return absl::InvalidArgumentError(absl::StrCat("$.", checked.message()));
  return t;
}

}  // namespace

absl::Status CheckTransformer(const Transformer& t) {
  for (const Field& field : kFields) {
    const int64_t value = t.*field.member;
    if (value >= 1 && value <= field.max) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(field.name, ": must be from 1 to ", field.max, ", found ", value));
  }
  if (t.hidden % t.heads != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("heads: must divide hidden, ", t.hidden, ", found ", t.heads));
  }
  if (!(t.device_teraflops >= 1e-6 && t.device_teraflops <= 1e9)) {
    return absl::InvalidArgumentError(
        absl::StrCat("device_teraflops: must be from 1e-06 to 1e+09, found ", t.device_teraflops));
  }
  const size_t sizes = t.micro_batch_rows.size();
  if (sizes < 1 || sizes > kMaxSizes) {
    return absl::InvalidArgumentError(
        absl::StrCat("micro_batch_rows: must be from 1 to ", kMaxSizes, " sizes, found ", sizes));
  }
  if ((t.layers + 2) * static_cast<int64_t>(sizes) > kMaxLayerCosts) {
    return absl::InvalidArgumentError(absl::StrCat("layers: ", t.layers, " of them and 2 more for ",
                                                   sizes, " sizes, expected a product of at most ",
                                                   kMaxLayerCosts));
  }
  int64_t previous = 0;
  for (const int64_t rows : t.micro_batch_rows) {
    if (rows <= previous || rows > kMaxMicroBatchRows) {
      return absl::InvalidArgumentError(
          absl::StrCat("micro_batch_rows: must ascend from at least 1 to at most ",
                       kMaxMicroBatchRows, ", found ", rows));
    }
    RETURN_IF_ERROR(CheckTotals(t, rows));
    previous = rows;
  }
  return absl::OkStatus();
}

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

absl::StatusOr<Profile> ParseTransformerProfile(absl::string_view text, absl::string_view model) {
  ASSIGN_OR_RETURN(const nlohmann::json document,
                   base::ParseToml(text, {.max_bytes = kMaxDescriptionBytes}));
  const absl::StatusOr<Transformer> transformer = ReadTransformer(document);
  if (!transformer.ok()) return base::WithTomlLine(transformer.status(), text);
  Profile profile = TransformerProfile(*transformer, std::string(model));
  RETURN_IF_ERROR(CheckProfile(profile));
  return profile;
}

absl::StatusOr<Profile> ReadTransformerProfile(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, base::ReadFile(path, kMaxDescriptionBytes));
  absl::StatusOr<Profile> profile =
      ParseTransformerProfile(text, std::filesystem::path(path).stem().string());
  if (!profile.ok()) return base::Annotate(profile.status(), path);
  return profile;
}

}  // namespace stagecoach::partition
