#include "partition/files/transformer_profile.h"

#include <algorithm>
#include <array>
#include <cstddef>
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
#include "partition/files/transformer_times.h"
#include "schedule/memory.h"

namespace stagecoach::partition {
namespace {

using base::ArrayReader;
using base::ObjectReader;
using schedule::LastUse;

constexpr int64_t kDescriptionVersion = 1;
constexpr int64_t kMaxDescriptionBytes = int64_t{1} << 20;
constexpr int64_t kMaxTensorParallel = 1024;
constexpr int64_t kMostAutomaticRows = 16;
constexpr std::array<const char*, 3> kAttentions = {"stored", "recomputed", "flash"};

struct Field {
  const char* name;
  int64_t Transformer::*member;
  int64_t max;
  int64_t min = 1;
};
constexpr Field kFields[] = {
    {"layers", &Transformer::layers, kMaxLayers - 2},
    {"hidden", &Transformer::hidden, int64_t{1} << 20},
    {"heads", &Transformer::heads, int64_t{1} << 16},
    {"sequence", &Transformer::sequence, int64_t{1} << 24},
    {"vocabulary", &Transformer::vocabulary, int64_t{1} << 26},
    {"bytes_per_value", &Transformer::bytes_per_value, 8},
    {"optimizer_bytes_per_parameter", &Transformer::optimizer_bytes_per_parameter, 64},
    {"device_multiprocessors", &Transformer::device_multiprocessors, 1 << 16, 0},
    {"tensor_parallel", &Transformer::tensor_parallel, kMaxTensorParallel},
};
constexpr size_t kRequiredFields = 5;

struct Rate {
  const char* name;
  double Transformer::*member;
  double min;
};
constexpr double kMaxRate = 1e9;
constexpr Rate kRates[] = {
    {"device_teraflops", &Transformer::device_teraflops, 1e-6},
    {"memory_gigabytes_per_second", &Transformer::memory_gigabytes_per_second, 0},
};

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

void SetParameters(const Transformer& t, int64_t count, LayerCost& layer) {
  layer.parameters = count;
  const int64_t own = (count + t.tensor_parallel - 1) / t.tensor_parallel;
  layer.memory.parameter_bytes = own * t.bytes_per_value;
  layer.memory.optimizer_bytes = own * t.optimizer_bytes_per_parameter;
}

LayerCost Embedding(const Transformer& t, int64_t rows) {
  const Activations bytes(t, rows);
  LayerCost layer = {.name = "embedding"};
  SetParameters(t, (t.vocabulary + t.sequence) * t.hidden, layer);
  SetEmbeddingTimes(t, rows, layer);
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
  SetLayerTimes(t, rows, layer);
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
  SetHeadTimes(t, rows, layer);
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

// A key that has one value, several, or is left to the planner.
enum class Form : uint8_t { kAbsent, kOne, kList, kAny };

Form FormOf(const nlohmann::json& document, const char* key) {
  const auto found = document.find(key);
  if (found == document.end()) return Form::kAbsent;
  if (found->is_array()) return Form::kList;
  return *found == nlohmann::json("auto") ? Form::kAny : Form::kOne;
}

// "auto": 1, 2, 4, ...
std::vector<int64_t> PowersOfTwo(int64_t max) {
  std::vector<int64_t> powers;
  for (int64_t power = 1; power <= max; power *= 2) powers.push_back(power);
  return powers;
}

// The numbers of a key that has a list or "auto".
absl::StatusOr<std::vector<int64_t>> ReadNumbers(const nlohmann::json& document, const char* key,
                                                 int64_t max_auto, ObjectReader& reader) {
  if (FormOf(document, key) == Form::kAny) {
    RETURN_IF_ERROR(reader.RequiredString(key).status());
    return PowersOfTwo(max_auto);
  }
  ASSIGN_OR_RETURN(const ArrayReader array, reader.RequiredArray(key));
  std::vector<int64_t> numbers;
  for (size_t i = 0; i < array.size(); ++i) {
    ASSIGN_OR_RETURN(numbers.emplace_back(), array.Int64(i));
  }
  return numbers;
}

absl::StatusOr<Attention> AttentionOf(const std::string& word, const ObjectReader& reader) {
  const auto* const attention = std::find(kAttentions.begin(), kAttentions.end(), word);
  if (attention != kAttentions.end()) {
    return static_cast<Attention>(attention - kAttentions.begin());
  }
  return reader.Error("attention",
                      absl::StrCat("must be \"stored\", \"recomputed\", \"flash\", a list of "
                                   "these, or \"auto\", found \"",
                                   absl::CHexEscape(word), "\""));
}

absl::StatusOr<std::vector<Attention>> ReadAttentions(const nlohmann::json& document,
                                                      ObjectReader& reader) {
  std::vector<std::string> words;
  switch (FormOf(document, "attention")) {
    case Form::kAbsent:
      return std::vector<Attention>{Attention::kStored};
    case Form::kAny:
      RETURN_IF_ERROR(reader.RequiredString("attention").status());
      words.assign(kAttentions.begin(), kAttentions.end());
      break;
    case Form::kOne: {
      ASSIGN_OR_RETURN(words.emplace_back(), reader.RequiredString("attention"));
      break;
    }
    case Form::kList: {
      ASSIGN_OR_RETURN(const ArrayReader array, reader.RequiredArray("attention"));
      for (size_t i = 0; i < array.size(); ++i) {
        ASSIGN_OR_RETURN(words.emplace_back(), array.String(i));
      }
    }
  }
  std::vector<Attention> attentions;
  for (const std::string& word : words) {
    ASSIGN_OR_RETURN(const Attention attention, AttentionOf(word, reader));
    if (std::find(attentions.begin(), attentions.end(), attention) != attentions.end()) {
      return reader.Error("attention", absl::StrCat("has \"", word, "\" twice"));
    }
    attentions.push_back(attention);
  }
  if (attentions.empty()) return reader.Error("attention", "must have at least one kind");
  return attentions;
}

absl::Status ReadTensorParallel(const nlohmann::json& document, ObjectReader& reader,
                                TransformerDescription& description) {
  const Form form = FormOf(document, "tensor_parallel");
  if (form != Form::kList && form != Form::kAny) return absl::OkStatus();
  description.any_tensor_parallel = form == Form::kAny;
  ASSIGN_OR_RETURN(description.tensor_parallel,
                   ReadNumbers(document, "tensor_parallel", kMaxTensorParallel, reader));
  int64_t previous = 0;
  for (const int64_t devices : description.tensor_parallel) {
    if (devices > previous && devices <= kMaxTensorParallel) {
      previous = devices;
      continue;
    }
    return reader.Error("tensor_parallel", absl::StrCat("must ascend from at least 1 to at most ",
                                                        kMaxTensorParallel, ", found ", devices));
  }
  if (previous == 0) return reader.Error("tensor_parallel", "must have at least one number");
  return absl::OkStatus();
}

absl::StatusOr<TransformerDescription> ReadDescription(const nlohmann::json& document) {
  ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Create(document));
  ASSIGN_OR_RETURN(const int64_t version, reader.RequiredInt64("version"));
  if (version != kDescriptionVersion) {
    return reader.Error(
        "version",
        absl::StrCat("version ", version, ": this program reads version ", kDescriptionVersion));
  }
  TransformerDescription description;
  Transformer& t = description.transformer;
  ASSIGN_OR_RETURN(t.bytes_per_value, reader.OptionalInt64("bytes_per_value", t.bytes_per_value));
  if (t.bytes_per_value >= 4) t.optimizer_bytes_per_parameter = 8;
  RETURN_IF_ERROR(ReadTensorParallel(document, reader, description));
  for (size_t i = 0; i < std::size(kFields); ++i) {
    const Field& field = kFields[i];
    const bool is_read =
        field.member == &Transformer::tensor_parallel && !description.tensor_parallel.empty();
    if (is_read || (i >= kRequiredFields && !reader.Has(field.name))) continue;
    ASSIGN_OR_RETURN(t.*field.member, reader.RequiredInt64(field.name));
  }
  switch (FormOf(document, "micro_batch_rows")) {
    case Form::kAbsent:
      break;
    case Form::kOne: {
      ASSIGN_OR_RETURN(t.micro_batch_rows[0], reader.RequiredInt64("micro_batch_rows"));
      break;
    }
    default: {
      ASSIGN_OR_RETURN(t.micro_batch_rows,
                       ReadNumbers(document, "micro_batch_rows", kMostAutomaticRows, reader));
    }
  }
  ASSIGN_OR_RETURN(t.sequence_parallel, reader.OptionalBool("sequence_parallel", false));
  for (const Rate& rate : kRates) {
    ASSIGN_OR_RETURN(t.*rate.member, reader.OptionalDouble(rate.name, t.*rate.member));
  }
  ASSIGN_OR_RETURN(description.attentions, ReadAttentions(document, reader));
  t.attention = description.attentions.front();
  RETURN_IF_ERROR(reader.Finish());
  const absl::Status checked = CheckTransformer(t);
  if (!checked.ok()) return absl::InvalidArgumentError(absl::StrCat("$.", checked.message()));
  return description;
}

}  // namespace

absl::Status CheckTransformer(const Transformer& t) {
  for (const Field& field : kFields) {
    const int64_t value = t.*field.member;
    if (value >= field.min && value <= field.max) continue;
    return absl::InvalidArgumentError(absl::StrCat(field.name, ": must be from ", field.min, " to ",
                                                   field.max, ", found ", value));
  }
  if (t.hidden % t.heads != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("heads: must divide hidden, ", t.hidden, ", found ", t.heads));
  }
  for (const Rate& rate : kRates) {
    const double value = t.*rate.member;
    if (value >= rate.min && value <= kMaxRate) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(rate.name, ": must be from ", rate.min, " to ", kMaxRate, ", found ", value));
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

absl::StatusOr<TransformerDescription> ParseTransformer(absl::string_view text) {
  ASSIGN_OR_RETURN(const nlohmann::json document,
                   base::ParseToml(text, {.max_bytes = kMaxDescriptionBytes}));
  absl::StatusOr<TransformerDescription> description = ReadDescription(document);
  if (!description.ok()) return base::WithTomlPlace(description.status(), text);
  return description;
}

absl::StatusOr<TransformerDescription> ReadTransformer(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, base::ReadInput(path, kMaxDescriptionBytes));
  absl::StatusOr<TransformerDescription> description = ParseTransformer(text);
  if (!description.ok()) return base::InFile(description.status(), path);
  return description;
}

}  // namespace stagecoach::partition
