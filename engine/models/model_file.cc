#include "engine/models/model_file.h"

#include <array>
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
#include "engine/models/named_outputs.h"
#include "engine/models/parsed_layer.h"
#include "engine/nn/layers/activation.h"
#include "engine/nn/layers/embedding.h"
#include "engine/nn/layers/head.h"
#include "engine/nn/layers/linear.h"
#include "engine/nn/layers/residual.h"

namespace stagecoach::engine {
namespace {

using base::ObjectReader;
using nlohmann::json;

template <typename T>
struct Named {
  const char* name = nullptr;
  T value = {};
};

// The loss over labels that are classes, and over numbers; null: not available for those.
struct LossChoice {
  LossFactory (*of_classes)() = nullptr;
  LossFactory (*of_values)() = nullptr;
};
constexpr auto kLosses = std::to_array<Named<LossChoice>>({
    {"softmax_cross_entropy", {SoftmaxCrossEntropy, nullptr}},
    {"mean_squared_error", {MeanSquaredError, MeanSquaredErrorOfValues}},
});
constexpr auto kActivations = [] {
  std::array<Named<Activation>, kernels::kAllActivations.size()> named = {};
  for (size_t i = 0; i < named.size(); ++i) {
    named[i] = {ActivationName(kernels::kAllActivations[i]), kernels::kAllActivations[i]};
  }
  return named;
}();
// One layer type for each activation.
template <Activation kActivation>
absl::Status ParseActivation(ObjectReader&, ParsedLayer& layer) {
  layer.factories = {Activate(kActivation)};
  return absl::OkStatus();
}
// Kinds that need more than their own keys have a parser within ModelParser.
enum class LayerKind : uint8_t { kPlain, kLinear, kEmbedding, kHead, kResidual, kSequence };
struct LayerType {
  LayerKind kind = LayerKind::kPlain;
  absl::Status (*parse)(ObjectReader& reader, ParsedLayer& layer) = nullptr;  // if it is plain
};
constexpr auto kLayerTypes = std::to_array<Named<LayerType>>({
    {"linear", {LayerKind::kLinear}},
    {"layer_norm", {.parse = ParseLayerNorm}},
    {"rms_norm", {.parse = ParseRmsNorm}},
    {"residual", {LayerKind::kResidual}},
    {"sequence", {LayerKind::kSequence}},
    {"embedding", {LayerKind::kEmbedding}},
    {"attention", {.parse = ParseAttention}},
    {"swiglu", {.parse = ParseSwiGlu}},
    {"dropout", {.parse = ParseDropout}},
    {"conv2d", {.parse = ParseConv2d}},
    {"max_pool", {.parse = ParseMaxPool}},
    {"avg_pool", {.parse = ParseAvgPool}},
    {"global_avg_pool", {.parse = ParseGlobalAvgPool}},
    {"group_norm", {.parse = ParseGroupNorm}},
    {"batch_norm", {.parse = ParseBatchNorm}},
    {"relu", {.parse = ParseActivation<Activation::kRelu>}},
    {"gelu", {.parse = ParseActivation<Activation::kGelu>}},
    {"gelu_exact", {.parse = ParseActivation<Activation::kGeluExact>}},
    {"tanh", {.parse = ParseActivation<Activation::kTanh>}},
    {"sigmoid", {.parse = ParseActivation<Activation::kSigmoid>}},
    {"flatten", {.parse = ParseFlatten}},
    {"add_skip", {.parse = ParseAddSkip}},
    {"concat_skip", {.parse = ParseConcatSkip}},
    {"head", {LayerKind::kHead}},
});

// Returns the value called `name`, which the reader found at `key`.
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

struct LayerList {
  std::vector<LayerFactory> factories;
  int64_t layers = 0;  // including those inside others

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
  constexpr base::Int64Range kIds = {.min = 0, .max = kMaxFileOutputs - 1};
  if (reader.Has("end_of_text")) {
    ASSIGN_OR_RETURN(const base::ArrayReader ends, reader.RequiredArray("end_of_text"));
    for (size_t i = 0; i < ends.size(); ++i) {
      ASSIGN_OR_RETURN(tokens.end_of_text.emplace_back(), ends.Int64(i, kIds));
    }
  }
  if (reader.Has("begin_of_text")) {
    RETURN_IF_ERROR(read("begin_of_text", tokens.begin_of_text.emplace(), kIds));
  }
  return tokens;
}

absl::Status MisplacedTie(const std::string& path) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, ".tied: the head is not the last layer of the model"));
}

// Ties a head to the embedding that is the first layer.
ParameterTie TieToTable(size_t head) {
  return {.first = {0, "tokens"}, .second = {static_cast<int>(head), "weight"}};
}

// Checks a layer inside another, where outputs only reach the layers next to each other.
absl::Status CheckInside(const ParsedLayer& layer, const std::string& path) {
  if (layer.is_tied) return MisplacedTie(path);
  if (layer.name.empty() && layer.from.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(path, layer.from.empty() ? ".name" : ".from",
                   ": a skip is between layers of the model, not inside others"));
}

class ModelParser {
 public:
  explicit ModelParser(const ModelData& data) : data_(data), classes_(data.classes) {}

  absl::StatusOr<Model> Parse(const json& document) {
    ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Create(document));
    // Most layers of numbers work along the last axis: a model of images says that it is one.
    Model model{.input = data_.vocabulary > 0 ? data_.input : Shape{data_.input.elements()},
                .vocabulary = data_.vocabulary};
    RETURN_IF_ERROR(ReadTokens(reader).status());
    for (const char* const key : {"context", "vocabulary", "end_of_text", "begin_of_text"}) {
      if (reader.Has(key) && data_.vocabulary == 0) {
        return reader.Error(key, "is for a model of tokens, but the data has numbers");
      }
    }
    ASSIGN_OR_RETURN(const std::string loss,
                     reader.OptionalString("loss", kLosses[data_.has_numbers ? 1 : 0].name));
    ASSIGN_OR_RETURN(const LossChoice choice, Choose(reader, "loss", loss, kLosses));
    const auto make_loss = data_.has_numbers ? choice.of_values : choice.of_classes;
    if (make_loss == nullptr) {
      return reader.Error("loss", absl::StrCat("is \"", loss, "\", but the data's labels are ",
                                               "numbers: expected \"mean_squared_error\""));
    }
    model.loss = make_loss();
    if (reader.Has("input")) {
      if (data_.vocabulary > 0) {
        return reader.Error("input", "is for a model of numbers, but the data has ids");
      }
      ASSIGN_OR_RETURN(model.input, ParseInput(document, reader, data_.input));
    }
    RETURN_IF_ERROR(reader.RequiredArray("layer").status());
    RETURN_IF_ERROR(reader.Finish());

    const json& entries = document["layer"];
    LayerList list;
    NamedOutputs named;
    Shape shape = model.input;
    for (size_t i = 0; i < entries.size(); ++i) {
      const std::string path = absl::StrCat("$.layer[", i, "]");
      ASSIGN_OR_RETURN(ParsedLayer layer, ParseLayer(entries[i], path));
      RETURN_IF_ERROR(list.Append(layer, path));
      if (layer.is_tied && i + 1 < entries.size()) return MisplacedTie(path);
      if (layer.is_tied) model.ties = {TieToTable(list.factories.size() - 1)};
      const int index = static_cast<int>(list.factories.size()) - 1;
      RETURN_IF_ERROR(named.Connect(index, path, layer));
      shape = layer.OutputOf(shape);
      RETURN_IF_ERROR(named.Add(index, path, layer, shape));
    }
    model.skips = named.TakeSkips();
    const int64_t outputs = LastAxisOf(shape);
    model.layers = std::move(list.factories);
    if (entries.empty() || outputs != classes_) {
      const std::string expected =
          data_.has_numbers
              ? "one output, the number to predict: end with a linear layer of outputs = 1"
              : absl::StrCat("one output for each of the ", classes_,
                             " classes of the data: end with a head, or with a linear layer of "
                             "outputs = \"classes\"");
      return absl::InvalidArgumentError(absl::StrCat(
          "the last layer must give ", expected,
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
    switch (type.kind) {
      case LayerKind::kPlain:
        RETURN_IF_ERROR(type.parse(reader, layer));
        break;
      case LayerKind::kLinear:
        RETURN_IF_ERROR(ParseLinear(entry, reader, layer));
        break;
      case LayerKind::kEmbedding:
        RETURN_IF_ERROR(ParseEmbedding(entry, reader, layer));
        break;
      case LayerKind::kResidual:
        RETURN_IF_ERROR(ParseResidual(entry, reader, layer));
        break;
      case LayerKind::kSequence:
        RETURN_IF_ERROR(ParseInside(entry, "layers", reader, layer));
        break;
      case LayerKind::kHead:
        RETURN_IF_ERROR(ParseHead(reader, layer));
        break;
    }
    if (reader.Has("name")) {
      ASSIGN_OR_RETURN(layer.name, ParseName("name", reader));
    }
    ASSIGN_OR_RETURN(layer.repeat,
                     reader.OptionalInt64("repeat", 1, {.min = 1, .max = kMaxFileLayers}));
    RETURN_IF_ERROR(reader.Finish());
    if (layer.repeat > 1 && !layer.from.empty()) {
      return reader.Error("repeat", "a layer that reads another's output cannot be repeated");
    }
    return layer;
  }

  // Parses a number, or the word that stands for the data's classes.
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
    LinearOptions options = {.outputs = outputs, .activation = activation, .has_bias = has_bias};
    if (reader.Has("deviation")) {
      ASSIGN_OR_RETURN(const double deviation,
                       reader.RequiredDouble("deviation", {.min = 0.0, .max = 1e3}));
      options.deviation = static_cast<float>(deviation);
    }
    layer.factories = {Linear(options)};
    layer.output_of = [outputs](const Shape& input) { return WithLastAxis(input, outputs); };
    return absl::OkStatus();
  }

  absl::Status ParseEmbedding(const json& entry, ObjectReader& reader, ParsedLayer& layer) {
    EmbeddingOptions options;
    ASSIGN_OR_RETURN(options.vocabulary, ParseCount(entry, "vocabulary", reader));
    ASSIGN_OR_RETURN(options.features,
                     reader.RequiredInt64("features", {.min = 1, .max = kMaxFileOutputs}));
    if (reader.Has("positions") && entry["positions"].is_number()) {
      ASSIGN_OR_RETURN(options.table_positions,
                       reader.RequiredInt64("positions", {.min = 1, .max = kMaxFileOutputs}));
      options.positions = true;
    } else {
      ASSIGN_OR_RETURN(options.positions, reader.OptionalBool("positions", options.positions));
    }
    for (const auto& [key, deviation] :
         {std::pair("token_deviation", &options.token_deviation),
          std::pair("position_deviation", &options.position_deviation)}) {
      ASSIGN_OR_RETURN(const double value,
                       reader.OptionalDouble(key, *deviation, {.min = 0.0, .max = 1e3}));
      *deviation = static_cast<float>(value);
    }
    layer.factories = {Embedding(options)};
    layer.output_of = [outputs = options.features](const Shape& input) {
      return input.rank() == 1 ? Shape{input.dim(0), outputs} : input;
    };
    return absl::OkStatus();
  }

  absl::Status ParseHead(ObjectReader& reader, ParsedLayer& layer) const {
    HeadOptions options = {.classes = classes_};
    ASSIGN_OR_RETURN(const double deviation, reader.OptionalDouble("deviation", options.deviation,
                                                                   {.min = 0.0, .max = 1e3}));
    options.deviation = static_cast<float>(deviation);
    ASSIGN_OR_RETURN(layer.is_tied, reader.OptionalBool("tied", false));
    layer.factories = {Head(options)};
    layer.output_of = [outputs = options.classes](const Shape& input) {
      return WithLastAxis(input, outputs);
    };
    return absl::OkStatus();
  }

  absl::Status ParseResidual(const json& entry, ObjectReader& reader, ParsedLayer& layer) {
    RETURN_IF_ERROR(ParseInside(entry, "layers", reader, layer));
    ParsedLayer shortcut{.layers = 0};
    if (reader.Has("shortcut")) {
      RETURN_IF_ERROR(ParseInside(entry, "shortcut", reader, shortcut));
    }
    ASSIGN_OR_RETURN(const bool relu, reader.OptionalBool("relu", false));
    layer.factories = {Residual(std::move(layer.factories), std::move(shortcut.factories), relu)};
    layer.layers += 1 + shortcut.layers;
    return absl::OkStatus();
  }

  // Parses the layers inside another. The recursion ends with the depth that ParseToml allows.
  absl::Status ParseInside(const json& entry, const char* key, ObjectReader& reader,
                           ParsedLayer& layer) {
    ASSIGN_OR_RETURN(const base::ArrayReader entries, reader.RequiredArray(key));
    if (entries.size() == 0) return reader.Error(key, "expected at least one layer");
    LayerList inside;
    std::vector<ParsedLayer> parsed;
    for (size_t i = 0; i < entries.size(); ++i) {
      const std::string path = absl::StrCat(entries.path(), "[", i, "]");
      ASSIGN_OR_RETURN(parsed.emplace_back(), ParseLayer(entry[key][i], path));
      RETURN_IF_ERROR(CheckInside(parsed.back(), path));
      RETURN_IF_ERROR(inside.Append(parsed.back(), path));
    }
    layer.factories = std::move(inside.factories);
    layer.layers = inside.layers;
    layer.output_of = [parsed = std::move(parsed)](Shape shape) {
      for (const ParsedLayer& inner : parsed) shape = inner.OutputOf(shape);
      return shape;
    };
    return absl::OkStatus();
  }

  const ModelData data_;
  const int64_t classes_;
};

}  // namespace

ModelData ModelData::Of(const SampleSpec& spec) {
  const TensorSpec& input = spec.inputs.front();
  const bool has_numbers = spec.target.kind == TargetSpec::Kind::kValues;
  return {.input = input.shape,
          .vocabulary = input.vocabulary,
          .classes = has_numbers ? spec.target.shape.elements() : spec.target.classes,
          .has_numbers = has_numbers};
}

absl::StatusOr<ModelTokens> ParseModelTokens(absl::string_view toml) {
  ASSIGN_OR_RETURN(const json document, base::ParseToml(toml));
  ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Create(document));
  absl::StatusOr<ModelTokens> tokens = ReadTokens(reader);
  if (!tokens.ok()) return base::WithTomlPlace(tokens.status(), toml);
  return tokens;
}

Shape ParseModelInput(absl::string_view toml) {
  const absl::StatusOr<json> document = base::ParseToml(toml);
  if (!document.ok() || !document->contains("input")) return {};
  const json& input = document->at("input");
  if (!input.is_array() || input.size() >= Shape::kMaxRank) return {};
  std::vector<int64_t> extents;
  for (const json& extent : input) {
    if (!extent.is_number_integer() || extent < 1) return {};
    extents.push_back(extent);
  }
  return Shape(extents);
}

absl::StatusOr<Model> ParseModel(absl::string_view toml, int64_t features, int64_t classes) {
  return ParseModel(toml, ModelData::Features(features, classes));
}

absl::StatusOr<Model> ParseModel(absl::string_view toml, const ModelData& data) {
  STAGECOACH_CHECK(data.input.elements() >= 1 && data.classes >= 1,
                   absl::StrCat(data.input.elements(), " features, ", data.classes, " classes"));
  ASSIGN_OR_RETURN(const json document, base::ParseToml(toml));
  absl::StatusOr<Model> model = ModelParser(data).Parse(document);
  if (!model.ok()) return base::WithTomlPlace(model.status(), toml);
  return model;
}

absl::StatusOr<Model> ReadModelFile(const std::string& path, int64_t features, int64_t classes) {
  ASSIGN_OR_RETURN(const std::string toml, base::ReadInput(path, kMaxModelFileBytes));
  absl::StatusOr<Model> model = ParseModel(toml, features, classes);
  RETURN_IF_ERROR(base::InFile(model.status(), path));
  return model;
}

}  // namespace stagecoach::engine
