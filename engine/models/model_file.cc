#include "engine/models/model_file.h"

#include <array>
#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "base/text/json.h"
#include "base/text/line.h"
#include "base/text/toml.h"
#include "engine/models/named_outputs.h"
#include "engine/nn/layers/layers.h"
#include "engine/nn/parsing/parsed_layer.h"
#include "engine/nn/parsing/tensor_cut.h"

namespace stagecoach::engine {
namespace {

using base::ObjectReader;
using nlohmann::json;

// A loss over labels that are classes, and over numbers; null: not available for those.
struct LossChoice {
  const char* name = nullptr;
  LossFactory (*of_classes)() = nullptr;
  LossFactory (*of_values)() = nullptr;
};
constexpr auto kLosses = std::to_array<LossChoice>({
    {"softmax_cross_entropy", [] { return SoftmaxCrossEntropy(); }, nullptr},
    {"mean_squared_error", MeanSquaredError, MeanSquaredErrorOfValues},
});

absl::StatusOr<LossChoice> ParseLoss(bool has_numbers, ObjectReader& reader) {
  std::vector<std::string> names;
  for (const LossChoice& choice : kLosses) names.emplace_back(choice.name);
  ASSIGN_OR_RETURN(const std::string name,
                   reader.OptionalString("loss", kLosses[has_numbers ? 1 : 0].name));
  ASSIGN_OR_RETURN(const size_t choice, ChooseAmong(names, "loss", name, reader));
  return kLosses[choice];
}

int64_t RootOf(int64_t square) {
  const auto root = static_cast<int64_t>(std::llround(std::sqrt(static_cast<double>(square))));
  return root * root == square ? root : 0;
}

// Parses "input": the shape of a sample, which has as many elements as `data`; or, for "image",
// `data` itself if it has channels, and otherwise that of a square image of one channel or three.
absl::StatusOr<Shape> ParseInput(const json& document, ObjectReader& reader, const Shape& data) {
  const int64_t numbers = data.elements();
  if (document["input"].is_string()) {
    ASSIGN_OR_RETURN(const std::string word, reader.RequiredString("input"));
    if (word != "image") return reader.Error("input", "expected a shape or \"image\"");
    if (data.rank() == 3) return data;
    for (const int64_t channels : {1, 3}) {
      const int64_t side = numbers % channels == 0 ? RootOf(numbers / channels) : 0;
      if (side > 0) return Shape{channels, side, side};
    }
    return reader.Error(
        "input", absl::StrCat("the data has samples of ", numbers,
                              " numbers, which are no square image of 1 or 3 channels: say their "
                              "shape, such as [3, 32, 48]"));
  }
  ASSIGN_OR_RETURN(const base::ArrayReader entries, reader.RequiredArray("input"));
  if (entries.size() < 1 || entries.size() >= Shape::kMaxRank) {
    return reader.Error("input", absl::StrCat("expected 1 to ", Shape::kMaxRank - 1, " extents"));
  }
  std::vector<int64_t> extents;
  int64_t rest = numbers;
  for (size_t i = 0; i < entries.size(); ++i) {
    ASSIGN_OR_RETURN(const int64_t extent, entries.Int64(i, {.min = 1, .max = numbers}));
    extents.push_back(extent);
    rest = rest % extent == 0 ? rest / extent : 0;
    if (rest == 0) break;
  }
  if (rest != 1) {
    return reader.Error("input", absl::StrCat("has not as many elements as the samples of the "
                                              "data, which have ",
                                              numbers, " numbers"));
  }
  return Shape(extents);
}

std::vector<std::string> NamesOf(absl::Span<const LayerType* const> types) {
  std::vector<std::string> names;
  for (const LayerType* const type : types) names.emplace_back(type->name);
  return names;
}

std::vector<const LayerType*> AllLayerTypes() {
  std::vector<const LayerType*> types(std::begin(kLayerTypes), std::end(kLayerTypes));
  for (const LayerType& activation : kActivationTypes) types.push_back(&activation);
  return types;
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

bool IsOfImages(const json& document) {
  return document.contains("input") &&
         (document["input"] == "image" || document["input"].size() == 3);
}

absl::StatusOr<std::optional<kernels::Quantization>> ReadQuantization(ObjectReader& reader) {
  ASSIGN_OR_RETURN(auto table, reader.OptionalObject("quantization"));
  if (!table.has_value()) return std::nullopt;
  ASSIGN_OR_RETURN(const std::string type, table->RequiredString("type"));
  const absl::StatusOr<kernels::Quantization> quantization = kernels::ParseQuantization(type);
  if (!quantization.ok()) return table->Error("type", quantization.status().message());
  RETURN_IF_ERROR(table->Finish());
  return *quantization;
}

absl::StatusOr<int64_t> ReadTensorBlocks(ObjectReader& reader) {
  ASSIGN_OR_RETURN(auto table, reader.OptionalObject("tensor"));
  if (!table.has_value()) return 1;
  ASSIGN_OR_RETURN(const int64_t blocks,
                   table->RequiredInt64("blocks", {.min = 1, .max = kMostTensorBlocks}));
  if (!std::has_single_bit(static_cast<uint64_t>(blocks))) {
    return table->Error("blocks", absl::StrCat("is ", blocks, ", expected a power of two"));
  }
  RETURN_IF_ERROR(table->Finish());
  return blocks;
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

// Lets the parameters of a layer be trained beside adapters.
void TrainWhole(ParsedLayer& layer) {
  for (LayerFactory& factory : layer.factories) {
    factory = [make = std::move(factory)] {
      std::unique_ptr<Layer> made = make();
      if (made != nullptr) made->TrainWhole();
      return made;
    };
  }
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
    ASSIGN_OR_RETURN(const LossChoice choice, ParseLoss(data_.has_numbers, reader));
    const auto make_loss = data_.has_numbers ? choice.of_values : choice.of_classes;
    if (make_loss == nullptr) {
      return reader.Error("loss",
                          absl::StrCat("is \"", choice.name, "\", but the data's labels are ",
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
    ASSIGN_OR_RETURN(auto lora, reader.OptionalObject("lora"));
    if (lora.has_value()) {
      ASSIGN_OR_RETURN(lora_, ReadLora(document["lora"], *std::move(lora)));
    }
    ASSIGN_OR_RETURN(quantization_, ReadQuantization(reader));
    for (const auto& [table, is_there] :
         {std::pair("lora", lora_.has_value()), {"quantization", quantization_.has_value()}}) {
      if (!is_there) continue;
      if (model.input.rank() == 3) {
        return reader.Error(table, "is for models of tokens or of numbers, not of images");
      }
      model.is_frozen = true;
    }
    ASSIGN_OR_RETURN(const int64_t blocks, ReadTensorBlocks(reader));
    RETURN_IF_ERROR(reader.Finish());

    json cut;
    if (blocks > 1) {
      absl::StatusOr<json> layers = WithTensorBlocks(document["layer"], blocks);
      if (!layers.ok()) return reader.Error("tensor", layers.status().message());
      cut = *std::move(layers);
    }
    const json& entries = blocks > 1 ? cut : document["layer"];
    LayerList list;
    NamedOutputs named;
    Shape shape = model.input;
    for (size_t i = 0; i < entries.size(); ++i) {
      const std::string path = absl::StrCat("$.layer[", i, "]");
      ASSIGN_OR_RETURN(ParsedLayer layer, ParseLayer(entries, i, path));
      RETURN_IF_ERROR(list.Append(layer, path));
      if (layer.is_tied && i + 1 < entries.size()) return MisplacedTie(path);
      if (layer.is_tied) model.ties = {TieToTable(list.factories.size() - 1)};
      const int index = static_cast<int>(list.factories.size()) - 1;
      RETURN_IF_ERROR(named.Connect(index, path, layer));
      shape = layer.OutputOf(shape);
      RETURN_IF_ERROR(named.Add(index, path, layer, shape));
    }
    if (lora_.has_value()) {
      RETURN_IF_ERROR(base::Annotate(CheckLoraLayers(*lora_, entries), "$.lora"));
    }
    model.skips = named.TakeSkips();
    const int64_t outputs = LastAxisOf(shape);
    model.layers = std::move(list.factories);
    if (entries.empty() || outputs != classes_) {
      const std::string expected =
          data_.has_numbers && classes_ == 1
              ? "one output, the number to predict: end with a linear layer of outputs = 1"
          : data_.has_numbers
              ? absl::StrCat(classes_, " outputs, the numbers to predict: end with a linear layer ",
                             "of outputs = \"classes\"")
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
  absl::StatusOr<ParsedLayer> ParseLayer(const json& list, size_t i, const std::string& path) {
    const json& entry = list[i];
    ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Create(entry, path));
    ASSIGN_OR_RETURN(const std::string name, reader.RequiredString("type"));
    static const auto* const types = new std::vector<const LayerType*>(AllLayerTypes());
    ASSIGN_OR_RETURN(const size_t choice, ChooseAmong(NamesOf(*types), "type", name, reader));
    ParsedLayer layer;
    LayerEntry own = {
        .json = entry,
        .reader = reader,
        .classes = classes_,
        .list = list,
        .index = i,
        .lora = lora_.has_value() ? &*lora_ : nullptr,
        .quantization = quantization_,
        .parse_inside = [&](const char* key,
                            ParsedLayer& outer) { return ParseInside(entry, key, reader, outer); },
        .parse_lists_inside =
            [&](const char* key, std::vector<ParsedLayer>& lists) {
              return ParseListsInside(entry, key, reader, lists);
            },
        .parse_list = [&](const json& made, ParsedLayer& outer) -> absl::Status {
          ASSIGN_OR_RETURN(const base::ArrayReader entries,
                           base::ArrayReader::Create(made, absl::StrCat(path, ".layers")));
          return ParseList(made, entries, outer);
        }};
    RETURN_IF_ERROR((*types)[choice]->parse(own, layer));
    if (lora_.has_value() && lora_->trains(WholeLayerOf(name))) TrainWhole(layer);
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

  // Parses the layers inside another. The recursion ends with the depth that ParseToml allows.
  absl::Status ParseInside(const json& entry, const char* key, ObjectReader& reader,
                           ParsedLayer& layer) {
    ASSIGN_OR_RETURN(const base::ArrayReader entries, reader.RequiredArray(key));
    if (entries.size() == 0) return reader.Error(key, "expected at least one layer");
    return ParseList(entry[key], entries, layer);
  }

  absl::Status ParseListsInside(const json& entry, const char* key, ObjectReader& reader,
                                std::vector<ParsedLayer>& lists) {
    ASSIGN_OR_RETURN(const base::ArrayReader arrays, reader.RequiredArray(key));
    if (arrays.size() == 0) return reader.Error(key, "expected at least one array of layers");
    for (size_t i = 0; i < arrays.size(); ++i) {
      ASSIGN_OR_RETURN(const base::ArrayReader entries, arrays.Array(i));
      if (entries.size() == 0) return arrays.Error(i, "expected at least one layer");
      RETURN_IF_ERROR(ParseList(entry[key][i], entries, lists.emplace_back()));
    }
    return absl::OkStatus();
  }

  absl::Status ParseList(const json& list, const base::ArrayReader& entries, ParsedLayer& layer) {
    LayerList inside;
    std::vector<ParsedLayer> parsed;
    for (size_t i = 0; i < entries.size(); ++i) {
      const std::string path = absl::StrCat(entries.path(), "[", i, "]");
      ASSIGN_OR_RETURN(parsed.emplace_back(), ParseLayer(list, i, path));
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
  std::optional<LoraOptions> lora_;
  std::optional<kernels::Quantization> quantization_;
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

absl::StatusOr<int64_t> TensorBlocksOf(absl::string_view toml) {
  ASSIGN_OR_RETURN(const json document, base::ParseToml(toml));
  ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Create(document));
  const absl::StatusOr<int64_t> blocks = ReadTensorBlocks(reader);
  if (!blocks.ok()) return base::WithTomlPlace(blocks.status(), toml);
  return blocks;
}

std::string TensorTableOf(int64_t blocks) {
  return absl::StrCat("[tensor]\nblocks = ", blocks, "\n");
}

absl::Status CheckCanAdapt(absl::string_view toml, const LoraOptions& lora) {
  ASSIGN_OR_RETURN(const json document, base::ParseToml(toml));
  if (IsOfImages(document)) {
    return absl::InvalidArgumentError("a model of images has no adapters");
  }
  return CheckLoraLayers(lora, document.value("layer", json::array()));
}

absl::Status CheckCanQuantize(absl::string_view toml) {
  ASSIGN_OR_RETURN(const json document, base::ParseToml(toml));
  if (IsOfImages(document)) {
    return absl::InvalidArgumentError("a model of images is not quantized");
  }
  if (LinearLayersIn(document.value("layer", json::array())).empty()) {
    return absl::InvalidArgumentError("the model has no linear layer to quantize");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<LoraOptions>> LoraOf(absl::string_view toml) {
  ASSIGN_OR_RETURN(const json document, base::ParseToml(toml));
  const auto read = [&]() -> absl::StatusOr<std::optional<LoraOptions>> {
    ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Create(document));
    ASSIGN_OR_RETURN(auto table, reader.OptionalObject("lora"));
    if (!table.has_value()) return std::nullopt;
    ASSIGN_OR_RETURN(LoraOptions options, ReadLora(document["lora"], *std::move(table)));
    return options;
  };
  absl::StatusOr<std::optional<LoraOptions>> lora = read();
  if (!lora.ok()) return base::WithTomlPlace(lora.status(), toml);
  return lora;
}

absl::StatusOr<std::optional<kernels::Quantization>> QuantizationOf(absl::string_view toml) {
  ASSIGN_OR_RETURN(const json document, base::ParseToml(toml));
  ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Create(document));
  auto quantization = ReadQuantization(reader);
  if (!quantization.ok()) return base::WithTomlPlace(quantization.status(), toml);
  return quantization;
}

std::string QuantizationTableOf(kernels::Quantization quantization) {
  return absl::StrCat("[quantization]\ntype = \"", QuantizationName(quantization), "\"\n");
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
