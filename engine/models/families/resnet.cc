#include "engine/models/families/resnet.h"

#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/substitute.h"
#include "base/status_macros.h"
#include "base/text/hugging_face_keys.h"
#include "base/text/json.h"

namespace stagecoach::engine {
namespace {

using base::ObjectReader;

constexpr base::Int64Range kResNetExtents = {.min = 1, .max = int64_t{1} << 20};

// The names of a ResNet's modules in each library.
struct ModuleNames {
  const char* stem_convolution;
  const char* stem_norm;
  // Prefix of a block's contents: $0 is the group, counted from `first_group` on, $1 the block in
  // it.
  const char* block;
  int first_group;
  // Names within a block: $0 is the number of the convolution, counted from `first_convolution` on.
  const char* convolution;
  const char* norm;
  int first_convolution;
  const char* shortcut_convolution;
  const char* shortcut_norm;
  const char* classifier;
};
constexpr ModuleNames kTransformersNames = {.stem_convolution = "embedder.embedder.convolution",
                                            .stem_norm = "embedder.embedder.normalization",
                                            .block = "encoder.stages.$0.layers.$1.",
                                            .first_group = 0,
                                            .convolution = "layer.$0.convolution",
                                            .norm = "layer.$0.normalization",
                                            .first_convolution = 0,
                                            .shortcut_convolution = "shortcut.convolution",
                                            .shortcut_norm = "shortcut.normalization",
                                            .classifier = "classifier.1"};
constexpr ModuleNames kTorchvisionNames = {.stem_convolution = "conv1",
                                           .stem_norm = "bn1",
                                           .block = "layer$0.$1.",
                                           .first_group = 1,
                                           .convolution = "conv$0",
                                           .norm = "bn$0",
                                           .first_convolution = 1,
                                           .shortcut_convolution = "downsample.0",
                                           .shortcut_norm = "downsample.1",
                                           .classifier = "fc"};

const ModuleNames& NamesOf(const ImageClassifier& model) {
  return model.naming == ResNetNaming::kTransformers ? kTransformersNames : kTorchvisionNames;
}

// Gathers parameters and counters in the order of layers.
struct ResNetTensors {
  std::vector<HuggingFaceParameter> parameters;
  std::vector<std::string> counters;
  int layer = 0;

  void Add(absl::string_view name, const std::string& tensor, std::vector<int64_t> shape,
           bool is_transposed = false) {
    parameters.push_back(
        {absl::StrCat("layer ", layer, ": ", name), {{tensor, std::move(shape), is_transposed}}});
  }
  void AddConvolution(absl::string_view inside, const std::string& module, int64_t outputs,
                      int64_t inputs, int64_t kernel) {
    Add(absl::StrCat(inside, "weight"), module + ".weight", {outputs, inputs, kernel, kernel});
  }
  void AddNorm(absl::string_view inside, const std::string& module, int64_t channels) {
    for (const char* const name : {"weight", "bias", "running_mean", "running_var"}) {
      Add(absl::StrCat(inside, name), absl::StrCat(module, ".", name), {channels});
    }
    counters.push_back(module + ".num_batches_tracked");
  }
};

void AddResNetBlock(const ImageClassifier& model, size_t group, int64_t block, int64_t inputs,
                    ResNetTensors& tensors) {
  const ResNet& net = model.net;
  const ModuleNames& names = NamesOf(model);
  const std::string prefix =
      absl::Substitute(names.block, static_cast<int>(group) + names.first_group, block);
  const int64_t outputs = net.outputs[group], inner = net.inner(group);
  struct Convolution {
    int64_t outputs, inputs, kernel;
  };
  std::vector<Convolution> convolutions = {{inner, inputs, 3}, {outputs, inner, 3}};
  if (net.is_bottleneck) {
    convolutions = {{inner, inputs, 1}, {inner, inner, 3}, {outputs, inner, 1}};
  }
  for (int i = 0; i < static_cast<int>(convolutions.size()); ++i) {
    const auto& [to, from, kernel] = convolutions[static_cast<size_t>(i)];
    const int number = i + names.first_convolution;
    // Adds each with its norm and a ReLU.
    tensors.AddConvolution(absl::StrCat(3 * i, "."),
                           prefix + absl::Substitute(names.convolution, number), to, from, kernel);
    tensors.AddNorm(absl::StrCat(3 * i + 1, "."), prefix + absl::Substitute(names.norm, number),
                    to);
  }
  if (!net.has_shortcut(group, block)) return;
  tensors.AddConvolution("shortcut.0.", prefix + names.shortcut_convolution, outputs, inputs, 1);
  tensors.AddNorm("shortcut.1.", prefix + names.shortcut_norm, outputs);
}

ResNetTensors ResNetTensorsOf(const ImageClassifier& model) {
  const ResNet& net = model.net;
  const ModuleNames& names = NamesOf(model);
  ResNetTensors tensors;
  tensors.AddConvolution("", names.stem_convolution, net.stem, model.channels,
                         net.is_small ? 3 : 7);
  tensors.layer = 1;
  tensors.AddNorm("", names.stem_norm, net.stem);
  tensors.layer = net.is_small ? 3 : 4;  // behind a ReLU, and a pool
  int64_t inputs = net.stem;
  for (size_t group = 0; group < net.blocks.size(); ++group) {
    for (int64_t block = 0; block < net.blocks[group]; ++block) {
      AddResNetBlock(model, group, block, inputs, tensors);
      inputs = net.outputs[group];
      ++tensors.layer;
    }
  }
  ++tensors.layer;  // the average
  tensors.Add("weight", absl::StrCat(names.classifier, ".weight"), {model.classes, inputs}, true);
  tensors.Add("bias", absl::StrCat(names.classifier, ".bias"), {model.classes});
  return tensors;
}

absl::Status ReadExtents(ObjectReader& reader, const char* key, std::vector<int64_t>& extents) {
  if (!reader.Has(key)) return absl::OkStatus();
  ASSIGN_OR_RETURN(const base::ArrayReader values, reader.RequiredArray(key));
  extents.clear();
  for (size_t i = 0; i < values.size(); ++i) {
    ASSIGN_OR_RETURN(extents.emplace_back(), values.Int64(i, kResNetExtents));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ImageClassifier> ReadResNetConfig(const nlohmann::json& document) {
  ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Create(document));
  ImageClassifier model;
  ResNet& net = model.net;
  net.blocks = {3, 4, 6, 3};
  net.outputs = {256, 512, 1024, 2048};
  RETURN_IF_ERROR(ReadExtents(reader, "depths", net.blocks));
  RETURN_IF_ERROR(ReadExtents(reader, "hidden_sizes", net.outputs));
  ASSIGN_OR_RETURN(net.stem, reader.OptionalInt64("embedding_size", 64, kResNetExtents));
  ASSIGN_OR_RETURN(model.channels, reader.OptionalInt64("num_channels", 3, kResNetExtents));
  ASSIGN_OR_RETURN(const std::string type, reader.OptionalString("layer_type", "bottleneck"));
  if (type != "basic" && type != "bottleneck") {
    return reader.Error("layer_type",
                        absl::StrCat("is \"", type, "\", expected \"basic\" or \"bottleneck\""));
  }
  net.is_bottleneck = type == "bottleneck";
  ASSIGN_OR_RETURN(const std::string activation, reader.OptionalString("hidden_act", "relu"));
  if (activation != "relu") {
    return reader.Error("hidden_act", absl::StrCat("is \"", activation, "\", expected \"relu\""));
  }
  for (const char* const key : {"downsample_in_first_stage", "downsample_in_bottleneck"}) {
    ASSIGN_OR_RETURN(const bool is_elsewhere, reader.OptionalBool(key, false));
    if (is_elsewhere) {
      return reader.Error(key, "is true, which there is no ResNet of here; expected false");
    }
  }
  ASSIGN_OR_RETURN(model.classes, reader.OptionalInt64("num_labels", 2, kResNetExtents));
  if (reader.Has("id2label")) {
    ASSIGN_OR_RETURN(ObjectReader labels, reader.RequiredObject("id2label"));
    model.classes = static_cast<int64_t>(labels.Keys().size());
  }
  RETURN_IF_ERROR(CheckOtherConfigKeys(
      document, reader, {"out_features", "out_indices", "stage_names"}));  // those of a backbone
  RETURN_IF_ERROR(CheckResNet(net));
  return model;
}

std::string ResNetConfigOf(const ImageClassifier& model) {
  nlohmann::ordered_json config = {{"architectures", {"ResNetForImageClassification"}},
                                   {"model_type", "resnet"},
                                   {"num_channels", model.channels},
                                   {"embedding_size", model.net.stem},
                                   {"hidden_sizes", model.net.outputs},
                                   {"depths", model.net.blocks},
                                   {"layer_type", model.net.is_bottleneck ? "bottleneck" : "basic"},
                                   {"hidden_act", "relu"},
                                   {"downsample_in_first_stage", false},
                                   {"downsample_in_bottleneck", false}};
  std::map<std::string, std::string> names;
  std::map<std::string, int64_t> numbers;
  for (int64_t label = 0; label < model.classes; ++label) {
    const std::string name = absl::StrCat("LABEL_", label);  // as in transformers
    names[absl::StrCat(label)] = name;
    numbers[name] = label;
  }
  config["id2label"] = names;
  config["label2id"] = numbers;
  config["dtype"] = "float32";
  return config.dump(2) + "\n";
}

std::vector<HuggingFaceParameter> ResNetParametersOf(const ImageClassifier& model) {
  return ResNetTensorsOf(model).parameters;
}

std::vector<std::string> ResNetCountersOf(const ImageClassifier& model) {
  return ResNetTensorsOf(model).counters;
}

}  // namespace stagecoach::engine
