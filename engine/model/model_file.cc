#include "engine/model/model_file.h"

#include <array>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "base/check.h"
#include "base/file.h"
#include "base/json.h"
#include "base/line.h"
#include "base/nearest.h"
#include "base/status_macros.h"
#include "base/toml.h"
#include "engine/model/layers/attention.h"
#include "engine/model/layers/dropout.h"
#include "engine/model/layers/embedding.h"
#include "engine/model/layers/layer_norm.h"
#include "engine/model/layers/linear.h"
#include "engine/model/layers/residual.h"
#include "engine/model/layers/swiglu.h"

namespace stagecoach::engine {
namespace {

using base::ObjectReader;
using nlohmann::json;

template <typename T>
struct Named {
  const char* name;
  T value;
};

constexpr auto kLosses = std::to_array<Named<LossFactory (*)()>>({
    {"softmax_cross_entropy", SoftmaxCrossEntropy},
    {"mean_squared_error", MeanSquaredError},
});
constexpr std::array<Named<Activation>, 4> kActivations = {{
    {"none", Activation::kNone},
    {"relu", Activation::kRelu},
    {"gelu", Activation::kGelu},
    {"gelu_exact", Activation::kGeluExact},
}};
enum class LayerType : uint8_t {
  kLinear,
  kLayerNorm,
  kRmsNorm,
  kResidual,
  kSequence,
  kEmbedding,
  kAttention,
  kSwiGlu,
  kDropout
};
constexpr std::array<Named<LayerType>, 9> kLayerTypes = {{
    {"linear", LayerType::kLinear},
    {"layer_norm", LayerType::kLayerNorm},
    {"rms_norm", LayerType::kRmsNorm},
    {"residual", LayerType::kResidual},
    {"sequence", LayerType::kSequence},
    {"embedding", LayerType::kEmbedding},
    {"attention", LayerType::kAttention},
    {"swiglu", LayerType::kSwiGlu},
    {"dropout", LayerType::kDropout},
}};

// The value called `name`, which the reader found at `key`.
template <typename T, size_t N>
absl::StatusOr<T> Choose(const ObjectReader& reader, absl::string_view key, const std::string& name,
                         const std::array<Named<T>, N>& choices) {
  std::vector<std::string> known;
  for (const Named<T>& choice : choices) {
    if (name == choice.name) return choice.value;
    known.emplace_back(choice.name);
  }
  const std::string nearest = base::Nearest(name, known);
  return reader.Error(
      key, absl::StrCat("\"", absl::CHexEscape(name), "\" is not known, expected one of ",
                        absl::StrJoin(known, ", "),
                        nearest.empty() ? "" : absl::StrCat("; did you mean \"", nearest, "\"?")));
}

struct ParsedLayer {
  std::vector<LayerFactory> factories;  // several of a sequence
  int64_t repeat = 1;
  int64_t layers = 1;  // itself and those inside, once
  // How many numbers there are in the last axis, of how many that enter.
  std::function<int64_t(int64_t)> outputs_of = [](int64_t inputs) { return inputs; };

  int64_t OutputsOf(int64_t inputs) const {  // after all repetitions
    for (int64_t i = 0; i < repeat; ++i) inputs = outputs_of(inputs);
    return inputs;
  }
};

struct LayerList {
  std::vector<LayerFactory> factories;
  int64_t layers = 0;  // with those inside others

  absl::Status Append(const ParsedLayer& layer, absl::string_view path) {
    layers += layer.repeat * layer.layers;
    if (layers > kMaxFileLayers) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": with this there are ", layers,
                                                     " layers, expected at most ", kMaxFileLayers,
                                                     " in all"));
    }
    for (int64_t i = 0; i < layer.repeat; ++i) {
      factories.insert(factories.end(), layer.factories.begin(), layer.factories.end());
    }
    return absl::OkStatus();
  }
};

absl::StatusOr<ModelTokens> ReadTokens(ObjectReader& reader) {
  ModelTokens tokens;
  const auto read = [&](const char* key, int64_t& value,
                        const base::Int64Range& range) -> absl::Status {
    if (!reader.Has(key)) return absl::OkStatus();
    ASSIGN_OR_RETURN(value, reader.RequiredInt64(key, range));
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(read("context", tokens.context, {.min = 1, .max = kMaxFileOutputs}));
  RETURN_IF_ERROR(read("vocabulary", tokens.vocabulary, {.min = 2, .max = kMaxFileOutputs}));
  return tokens;
}

class ModelParser {
 public:
  explicit ModelParser(const ModelData& data) : data_(data), classes_(data.classes) {}

  absl::StatusOr<Model> Parse(const json& document) {
    ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Create(document));
    Model model{.input = data_.input, .vocabulary = data_.vocabulary};
    RETURN_IF_ERROR(ReadTokens(reader).status());
    for (const char* const key : {"context", "vocabulary"}) {
      if (reader.Has(key) && data_.vocabulary == 0) {
        return reader.Error(key, "is for a model of tokens, but the data has numbers");
      }
    }
    ASSIGN_OR_RETURN(const std::string loss, reader.OptionalString("loss", kLosses[0].name));
    ASSIGN_OR_RETURN(const auto make_loss, Choose(reader, "loss", loss, kLosses));
    model.loss = make_loss();
    RETURN_IF_ERROR(reader.RequiredArray("layer").status());
    RETURN_IF_ERROR(reader.Finish());

    const json& entries = document["layer"];
    LayerList list;
    int64_t outputs = data_.input.elements();
    for (size_t i = 0; i < entries.size(); ++i) {
      const std::string path = absl::StrCat("$.layer[", i, "]");
      ASSIGN_OR_RETURN(const ParsedLayer layer, ParseLayer(entries[i], path));
      RETURN_IF_ERROR(list.Append(layer, path));
      outputs = layer.OutputsOf(outputs);
    }
    model.layers = std::move(list.factories);
    if (entries.empty() || outputs != classes_) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the last layer must give one output for each of the ", classes_,
          " classes of the data: end with a linear layer of outputs = \"classes\"",
          entries.empty() ? "" : absl::StrCat(" (the model's layers give ", outputs, ")")));
    }
    return model;
  }

 private:
  absl::StatusOr<ParsedLayer> ParseLayer(const json& entry, const std::string& path) {
    ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Create(entry, path));
    ASSIGN_OR_RETURN(const std::string name, reader.RequiredString("type"));
    ASSIGN_OR_RETURN(const LayerType type, Choose(reader, "type", name, kLayerTypes));
    ParsedLayer layer;
    switch (type) {
      case LayerType::kLinear:
        RETURN_IF_ERROR(ParseLinear(entry, reader, layer));
        break;
      case LayerType::kLayerNorm:
        RETURN_IF_ERROR(ParseNorm(LayerNorm, reader, layer));
        break;
      case LayerType::kRmsNorm:
        RETURN_IF_ERROR(ParseNorm(RmsNorm, reader, layer));
        break;
      case LayerType::kResidual:
        RETURN_IF_ERROR(ParseInside(entry, reader, layer));
        layer.factories = {Residual(std::move(layer.factories))};
        layer.outputs_of = [](int64_t inputs) { return inputs; };
        ++layer.layers;
        break;
      case LayerType::kSequence:
        RETURN_IF_ERROR(ParseInside(entry, reader, layer));
        break;
      case LayerType::kEmbedding:
        RETURN_IF_ERROR(ParseEmbedding(entry, reader, layer));
        break;
      case LayerType::kAttention:
        RETURN_IF_ERROR(ParseAttention(reader, layer));
        break;
      case LayerType::kSwiGlu:
        layer.factories = {SwiGlu()};
        layer.outputs_of = [](int64_t inputs) { return inputs / 2; };
        break;
      case LayerType::kDropout:
        RETURN_IF_ERROR(ParseDropout(reader, layer));
        break;
    }
    ASSIGN_OR_RETURN(layer.repeat,
                     reader.OptionalInt64("repeat", 1, {.min = 1, .max = kMaxFileLayers}));
    RETURN_IF_ERROR(reader.Finish());
    return layer;
  }

  // A number, or the word that stands for the data's classes.
  absl::StatusOr<int64_t> ParseCount(const json& entry, const char* key, ObjectReader& reader) {
    if (!entry.contains(key) || !entry[key].is_string()) {
      return reader.RequiredInt64(key, {.min = 1, .max = kMaxFileOutputs});
    }
    ASSIGN_OR_RETURN(const std::string word, reader.RequiredString(key));
    if (word == "classes") return classes_;
    return reader.Error(
        key, absl::StrCat("\"", absl::CHexEscape(word), "\": expected a number or \"classes\""));
  }

  absl::Status ParseLinear(const json& entry, ObjectReader& reader, ParsedLayer& layer) {
    ASSIGN_OR_RETURN(const int64_t outputs, ParseCount(entry, "outputs", reader));
    ASSIGN_OR_RETURN(const std::string name,
                     reader.OptionalString("activation", kActivations[0].name));
    ASSIGN_OR_RETURN(const Activation activation, Choose(reader, "activation", name, kActivations));
    ASSIGN_OR_RETURN(const bool has_bias, reader.OptionalBool("bias", true));
    layer.factories = {Linear(outputs, activation, /*gain=*/1.0F, has_bias)};
    layer.outputs_of = [outputs](int64_t) { return outputs; };
    return absl::OkStatus();
  }

  absl::Status ParseEmbedding(const json& entry, ObjectReader& reader, ParsedLayer& layer) {
    EmbeddingOptions options;
    ASSIGN_OR_RETURN(options.vocabulary, ParseCount(entry, "vocabulary", reader));
    ASSIGN_OR_RETURN(options.features,
                     reader.RequiredInt64("features", {.min = 1, .max = kMaxFileOutputs}));
    ASSIGN_OR_RETURN(options.positions, reader.OptionalBool("positions", options.positions));
    for (const auto& [key, deviation] :
         {std::pair("token_deviation", &options.token_deviation),
          std::pair("position_deviation", &options.position_deviation)}) {
      ASSIGN_OR_RETURN(const double value,
                       reader.OptionalDouble(key, *deviation, {.min = 0.0, .max = 1e3}));
      *deviation = static_cast<float>(value);
    }
    layer.factories = {Embedding(options)};
    layer.outputs_of = [outputs = options.features](int64_t) { return outputs; };
    return absl::OkStatus();
  }

  static absl::Status ParseAttention(ObjectReader& reader, ParsedLayer& layer) {
    AttentionOptions options;
    ASSIGN_OR_RETURN(options.heads,
                     reader.RequiredInt64("heads", {.min = 1, .max = kMaxFileOutputs}));
    ASSIGN_OR_RETURN(options.kv_heads, reader.OptionalInt64("kv_heads", options.heads,
                                                            {.min = 1, .max = kMaxFileOutputs}));
    ASSIGN_OR_RETURN(const double base,
                     reader.OptionalDouble("rotary_base", 0.0, {.min = 0.0, .max = 1e12}));
    if (base > 0.0 && base < 1.0) {
      return reader.Error("rotary_base", "expected at least 1, or 0 for no rotary embedding");
    }
    options.rotary_base = static_cast<float>(base);
    layer.factories = {Attention(options)};
    layer.outputs_of = [options](int64_t inputs) {
      return inputs / (options.heads + 2 * options.kv_heads) * options.heads;
    };
    return absl::OkStatus();
  }

  static absl::Status ParseDropout(ObjectReader& reader, ParsedLayer& layer) {
    constexpr double kMaxRate = 0.999;
    ASSIGN_OR_RETURN(const double rate,
                     reader.RequiredDouble("rate", {.min = 0.0, .max = kMaxRate}));
    layer.factories = {Dropout(static_cast<float>(rate))};
    return absl::OkStatus();
  }

  static absl::Status ParseNorm(LayerFactory (*norm)(float), ObjectReader& reader,
                                ParsedLayer& layer) {
    ASSIGN_OR_RETURN(const double epsilon,
                     reader.OptionalDouble("epsilon", 1e-5, {.min = 1e-12, .max = 1.0}));
    layer.factories = {norm(static_cast<float>(epsilon))};
    return absl::OkStatus();
  }

  // Recursion ends with the depth that ParseToml allows.
  absl::Status ParseInside(const json& entry, ObjectReader& reader, ParsedLayer& layer) {
    ASSIGN_OR_RETURN(const base::ArrayReader entries, reader.RequiredArray("layers"));
    if (entries.size() == 0) return reader.Error("layers", "expected at least one layer");
    LayerList inside;
    std::vector<ParsedLayer> parsed;
    for (size_t i = 0; i < entries.size(); ++i) {
      const std::string path = absl::StrCat(entries.path(), "[", i, "]");
      ASSIGN_OR_RETURN(parsed.emplace_back(), ParseLayer(entry["layers"][i], path));
      RETURN_IF_ERROR(inside.Append(parsed.back(), path));
    }
    layer.factories = std::move(inside.factories);
    layer.layers = inside.layers;
    layer.outputs_of = [parsed = std::move(parsed)](int64_t inputs) {
      for (const ParsedLayer& inner : parsed) inputs = inner.OutputsOf(inputs);
      return inputs;
    };
    return absl::OkStatus();
  }

  const ModelData data_;
  const int64_t classes_;
};

}  // namespace

ModelData ModelData::Of(const SampleSpec& spec) {
  const TensorSpec& input = spec.inputs.front();
  return {.input = input.shape, .vocabulary = input.vocabulary, .classes = spec.target.classes};
}

absl::StatusOr<ModelTokens> ParseModelTokens(absl::string_view toml) {
  ASSIGN_OR_RETURN(const json document, base::ParseToml(toml));
  ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Create(document));
  absl::StatusOr<ModelTokens> tokens = ReadTokens(reader);
  if (!tokens.ok()) return base::WithTomlLine(tokens.status(), toml);
  return tokens;
}

absl::StatusOr<Model> ParseModel(absl::string_view toml, int64_t features, int64_t classes) {
  return ParseModel(toml, ModelData::Features(features, classes));
}

absl::StatusOr<Model> ParseModel(absl::string_view toml, const ModelData& data) {
  STAGECOACH_CHECK(data.input.elements() >= 1 && data.classes >= 1,
                   absl::StrCat(data.input.elements(), " features, ", data.classes, " classes"));
  ASSIGN_OR_RETURN(const json document, base::ParseToml(toml));
  absl::StatusOr<Model> model = ModelParser(data).Parse(document);
  if (!model.ok()) return base::WithTomlLine(model.status(), toml);
  return model;
}

absl::StatusOr<Model> ReadModelFile(const std::string& path, int64_t features, int64_t classes) {
  ASSIGN_OR_RETURN(const std::string toml, base::ReadFile(path, kMaxModelFileBytes));
  absl::StatusOr<Model> model = ParseModel(toml, features, classes);
  RETURN_IF_ERROR(base::Annotate(model.status(), path));
  return model;
}

}  // namespace stagecoach::engine
