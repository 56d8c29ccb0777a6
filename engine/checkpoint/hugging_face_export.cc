// ExportToHuggingFace, ExportToTorchvision.
#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "engine/checkpoint/files/bits_and_bytes.h"
#include "engine/checkpoint/files/safetensors.h"
#include "engine/checkpoint/hugging_face_files.h"
#include "engine/checkpoint/parameter_reader.h"
#include "engine/checkpoint/peft.h"
#include "engine/data/tokenizer/folder_tokenizer.h"
#include "engine/data/tokenizer/tokenizer.h"
#include "engine/models/hugging_face.h"
#include "engine/models/model_file.h"

namespace stagecoach::engine {
namespace {

constexpr int64_t kFloatBytes = SizeOf(kernels::DType::kFloat32);

// A tensor of theirs, or those of a quantized matrix, and its place in ours.
struct ExportedTensor {
  const HuggingFaceParameter* parameter = nullptr;
  const HuggingFacePiece* piece = nullptr;
  int64_t first_column = 0;
  std::string name;
  std::optional<BitsAndBytesWriter> quantized = {};

  bool continues() const { return piece->first_row > 0; }  // the tensor that the last one began
  std::vector<SafetensorsEntry> entries() const {
    if (quantized.has_value()) return quantized->entries();
    return {{.name = name, .shape = kernels::Shape(absl::MakeConstSpan(piece->shape))}};
  }
  int64_t bytes() const {
    if (!quantized.has_value()) return piece->rows() * piece->columns() * kFloatBytes;
    int64_t sum = 0;
    for (const SafetensorsEntry& entry : entries()) sum += entry.bytes();
    return sum;
  }
};
using ExportedFile = std::vector<ExportedTensor>;

// Returns the names of our parameters that are quantized: the weights of linear layers.
std::set<std::string> LinearWeightsOf(const HuggingFaceModel& model) {
  std::set<std::string> names;
  const auto* const transformer = std::get_if<Transformer>(&model);
  if (transformer == nullptr) return names;
  for (const AdapterPlace& place : AdapterPlacesOf(*transformer, {})) {
    names.insert(absl::StrCat(place.layer, "weight"));
  }
  return names;
}

// Fills files in order.
std::vector<ExportedFile> Distribute(absl::Span<const HuggingFaceParameter> parameters,
                                     const HuggingFaceModel& model,
                                     const HuggingFaceExport& options) {
  std::set<std::string> to_quantize;
  if (options.quantization.has_value()) to_quantize = LinearWeightsOf(model);
  std::vector<ExportedFile> files(1);
  int64_t bytes = 0;
  for (const HuggingFaceParameter& parameter : parameters) {
    int64_t first_column = 0;
    for (const HuggingFacePiece& piece : parameter.pieces) {
      ExportedTensor tensor = {&parameter, &piece, first_column,
                               HuggingFaceTensorName(model, piece.tensor)};
      if (to_quantize.contains(parameter.name)) {
        tensor.quantized.emplace(tensor.name, *options.quantization, piece.rows(), piece.columns());
      }
      const int64_t own = tensor.bytes();
      if (!tensor.continues() && !files.back().empty() && bytes + own > options.file_bytes) {
        files.emplace_back();
        bytes = 0;
      }
      bytes += own;
      files.back().push_back(std::move(tensor));
      first_column += piece.columns();
    }
  }
  return files;
}

// Reads the parameters of a checkpoint, with the products of adapters added to the weights.
class MergedParameters {
 public:
  static absl::StatusOr<MergedParameters> Create(const Checkpoint& checkpoint,
                                                 const HuggingFaceModel& model) {
    MergedParameters merged(checkpoint);
    ASSIGN_OR_RETURN(const std::optional<LoraOptions> lora,
                     LoraOf(checkpoint.manifest().model_source));
    const auto* const transformer = std::get_if<Transformer>(&model);
    if (!lora.has_value() || transformer == nullptr) return merged;
    merged.scale_ = lora->scale();
    merged.rank_ = static_cast<size_t>(lora->rank);
    for (AdapterPlace& place : AdapterPlacesOf(*transformer, *lora)) {
      merged.places_[absl::StrCat(place.layer, "weight")].push_back(std::move(place));
    }
    return merged;
  }

  // Valid until the next call.
  absl::StatusOr<absl::Span<const float>> Read(const std::string& name) {
    const auto places = places_.find(name);
    if (places == places_.end()) return reader_.Read(name);
    if (name == merged_name_) return merged_;
    ASSIGN_OR_RETURN(const absl::Span<const float> frozen, reader_.Read(name));
    merged_.assign(frozen.begin(), frozen.end());
    merged_name_ = name;
    for (const AdapterPlace& place : places->second) RETURN_IF_ERROR(Add(place));
    return merged_;
  }

 private:
  explicit MergedParameters(const Checkpoint& checkpoint) : reader_(checkpoint) {}

  absl::Status Add(const AdapterPlace& place) {
    ASSIGN_OR_RETURN(const absl::Span<const float> a, reader_.Read(place.ParameterOf("lora_A")));
    ASSIGN_OR_RETURN(const absl::Span<const float> b, reader_.Read(place.ParameterOf("lora_B")));
    const auto inputs = static_cast<size_t>(place.inputs);
    const auto outputs = static_cast<size_t>(place.outputs);
    const size_t columns = merged_.size() / inputs;
    std::vector<double> sums(outputs);
    for (size_t i = 0; i < inputs; ++i) {
      std::fill(sums.begin(), sums.end(), 0.0);
      for (size_t k = 0; k < rank_; ++k) {
        const double factor = double{scale_} * a[i * rank_ + k];
        for (size_t o = 0; o < outputs; ++o) sums[o] += factor * b[k * outputs + o];
      }
      float* const row = merged_.data() + i * columns + static_cast<size_t>(place.first);
      for (size_t o = 0; o < outputs; ++o) row[o] = static_cast<float>(row[o] + sums[o]);
    }
    return absl::OkStatus();
  }

  ParameterReader reader_;
  float scale_ = 1.0F;
  size_t rank_ = 0;
  std::map<std::string, std::vector<AdapterPlace>> places_;  // by the weight
  std::string merged_name_;
  std::vector<float> merged_;
};

// Appends the values of a tensor of theirs.
absl::Status AppendTensor(const ExportedTensor& tensor, absl::Span<const float> ours,
                          const base::AppendFunction& append) {
  const HuggingFacePiece& piece = *tensor.piece;
  const int64_t columns = tensor.parameter->columns();
  if (std::ssize(ours) != piece.rows() * columns) {
    return base::DataError(absl::StrCat("the parameter \"", tensor.parameter->name, "\" has ",
                                        ours.size(), " values, expected ", piece.rows() * columns),
                           absl::StatusCode::kFailedPrecondition);
  }
  if (tensor.quantized.has_value()) {
    std::vector<float> values;
    for (int64_t i = 0; i < piece.rows(); ++i) {
      const float* const row = ours.data() + i * columns + tensor.first_column;
      for (int64_t o = 0; o < piece.columns(); ++o) values.push_back(row[piece.ColumnOf(o)]);
    }
    return tensor.quantized->Append(values, append);
  }
  const int64_t lines = piece.is_transposed ? piece.columns() : piece.rows();
  std::vector<float> line(
      static_cast<size_t>(piece.is_transposed ? piece.rows() : piece.columns()));
  for (int64_t i = 0; i < lines; ++i) {
    for (int64_t j = 0; j < std::ssize(line); ++j) {
      const int64_t row = piece.is_transposed ? j : i;
      const int64_t column = tensor.first_column + piece.ColumnOf(piece.is_transposed ? i : j);
      line[static_cast<size_t>(j)] =
          ours[static_cast<size_t>(row * columns + column)] - piece.offset;
    }
    RETURN_IF_ERROR(
        append({reinterpret_cast<const char*>(line.data()), line.size() * sizeof(float)}));
  }
  return absl::OkStatus();
}

// `batches`: the value of counters; none are written without it.
absl::Status WriteTensors(const ExportedFile& file, const HuggingFaceModel& model,
                          MergedParameters& parameters, std::optional<int64_t> batches,
                          const base::AppendFunction& append) {
  SafetensorsHeader header{.metadata = {{"format", "pt"}}};
  for (const ExportedTensor& tensor : file) {
    if (tensor.continues()) continue;
    for (SafetensorsEntry& entry : tensor.entries()) header.tensors.push_back(std::move(entry));
  }
  std::vector<std::string> counters;
  if (batches.has_value()) counters = HuggingFaceCountersOf(model);
  for (const std::string& counter : counters) {
    header.tensors.push_back(
        {.name = HuggingFaceTensorName(model, counter), .type = std::nullopt, .shape = {}});
  }
  RETURN_IF_ERROR(append(LayOutSafetensors(header)));
  for (const ExportedTensor& tensor : file) {
    ASSIGN_OR_RETURN(const absl::Span<const float> ours, parameters.Read(tensor.parameter->name));
    RETURN_IF_ERROR(AppendTensor(tensor, ours, append));
  }
  for (size_t i = 0; i < counters.size(); ++i) {
    RETURN_IF_ERROR(append({reinterpret_cast<const char*>(&*batches), sizeof(int64_t)}));
  }
  return absl::OkStatus();
}

std::string FileName(size_t index, size_t files) {
  if (files == 1) return "model.safetensors";
  return absl::StrFormat("model-%05d-of-%05d.safetensors", index + 1, files);
}

std::string IndexOf(absl::Span<const ExportedFile> files, const HuggingFaceModel& model) {
  nlohmann::ordered_json map;
  int64_t bytes = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    for (const ExportedTensor& tensor : files[i]) {
      for (const SafetensorsEntry& entry : tensor.entries()) {
        map[entry.name] = FileName(i, files.size());
      }
      bytes += tensor.bytes();
    }
  }
  for (const std::string& counter : HuggingFaceCountersOf(model)) {
    map[HuggingFaceTensorName(model, counter)] = FileName(files.size() - 1, files.size());
    bytes += static_cast<int64_t>(sizeof(int64_t));
  }
  const nlohmann::ordered_json index = {{"metadata", {{"total_size", bytes}}}, {"weight_map", map}};
  return index.dump(2) + "\n";
}

// Returns the model of a checkpoint. Its data may have had other tokens and images than its model
// file says.
absl::StatusOr<HuggingFaceModel> ModelOfCheckpoint(const Checkpoint& checkpoint) {
  const Manifest& manifest = checkpoint.manifest();
  auto model = HuggingFaceModelOf(manifest.model_source, manifest.input, manifest.outputs());
  if (model.ok()) {
    // Samples of fewer positions do not reduce those of a model that has no table of them.
    auto* const transformer = std::get_if<Transformer>(&*model);
    if (transformer == nullptr || !transformer->is_rotary()) return model;
    ASSIGN_OR_RETURN(const Transformer whole, TransformerOf(manifest.model_source));
    transformer->context = std::max(transformer->context, whole.context);
    return model;
  }
  return base::DataError(absl::StrCat(checkpoint.path(), ": ", model.status().message()),
                         absl::StatusCode::kFailedPrecondition);
}

absl::StatusOr<std::shared_ptr<const Tokenizer>> TokenizerOfCheckpoint(const Checkpoint& checkpoint,
                                                                       const std::string& path) {
  ASSIGN_OR_RETURN(std::shared_ptr<const Tokenizer> tokenizer, Tokenizer::Load(path));
  const std::string& hash = checkpoint.manifest().encoding.tokenizer;
  if (hash.empty() || hash == tokenizer->hash()) return tokenizer;
  return base::DataError(absl::StrCat(checkpoint.path(), " was trained on tokens of the tokenizer ",
                                      hash, ", and ", path, " is ", tokenizer->hash()),
                         absl::StatusCode::kFailedPrecondition);
}

}  // namespace

absl::Status ExportToHuggingFace(const Checkpoint& checkpoint, const std::string& folder,
                                 const HuggingFaceExport& options) {
  const std::string& tokenizer = options.tokenizer;
  ASSIGN_OR_RETURN(HuggingFaceModel model, ModelOfCheckpoint(checkpoint));
  if (auto* const transformer = std::get_if<Transformer>(&model)) {
    transformer->quantization = options.quantization;
  } else if (options.quantization.has_value()) {
    return base::DataError(
        absl::StrCat(checkpoint.path(), " is of a model of images, which is not quantized"),
        absl::StatusCode::kFailedPrecondition);
  }
  std::shared_ptr<const Tokenizer> tokens;
  if (!tokenizer.empty()) {
    ASSIGN_OR_RETURN(tokens, TokenizerOfCheckpoint(checkpoint, tokenizer));
    if (auto* const transformer = std::get_if<Transformer>(&model);
        transformer != nullptr && transformer->end_of_text.empty() && tokens->end_of_text()) {
      transformer->end_of_text = {*tokens->end_of_text()};
    }
  }
  const auto* const resnet = std::get_if<ImageClassifier>(&model);
  if (resnet != nullptr && resnet->net.is_small) {
    return base::DataError(absl::StrCat(checkpoint.path(),
                                        " is of a ResNet for small images, which transformers has "
                                        "not: its first convolution is of "
                                        "7 x 7; --format torchvision writes it"),
                           absl::StatusCode::kFailedPrecondition);
  }
  // This file is written last: a folder without it is that of a failed export.
  const std::string config = absl::StrCat(folder, "/config.json");
  if (base::Exists(config)) {
    return absl::AlreadyExistsError(absl::StrCat(config, " is there already: name a new folder"));
  }
  RETURN_IF_ERROR(base::MakeFolders(folder));
  const std::vector<HuggingFaceParameter> parameters = HuggingFaceParametersOf(model);
  const std::vector<ExportedFile> files = Distribute(parameters, model, options);
  ASSIGN_OR_RETURN(MergedParameters reader, MergedParameters::Create(checkpoint, model));
  for (size_t i = 0; i < files.size(); ++i) {
    RETURN_IF_ERROR(base::WriteFileAtomically(
        absl::StrCat(folder, "/", FileName(i, files.size())),
        [&](const base::AppendFunction& append) {
          return WriteTensors(
              files[i], model, reader,
              i + 1 < files.size() ? std::nullopt : std::optional(checkpoint.manifest().step),
              append);
        }));
  }
  if (files.size() > 1) {
    RETURN_IF_ERROR(base::WriteFileAtomically(absl::StrCat(folder, "/model.safetensors.index.json"),
                                              IndexOf(files, model)));
  }
  if (const auto* const transformer = std::get_if<Transformer>(&model);
      transformer != nullptr && tokens != nullptr) {
    const std::vector<int64_t>& ends = transformer->end_of_text;
    RETURN_IF_ERROR(WriteFolderTokenizer(
        tokenizer, *tokens, std::max(transformer->context, transformer->positions),
        transformer->begin_of_text, ends.empty() ? std::nullopt : std::optional(ends.front()),
        folder));
  }
  return base::WriteFileAtomically(config, HuggingFaceConfigOf(model));
}

absl::Status ExportToTorchvision(const Checkpoint& checkpoint, const std::string& path) {
  ASSIGN_OR_RETURN(HuggingFaceModel model, ModelOfCheckpoint(checkpoint));
  auto* const resnet = std::get_if<ImageClassifier>(&model);
  if (resnet == nullptr) {
    return base::DataError(
        absl::StrCat(checkpoint.path(),
                     " has another model than a ResNet: torchvision's names are for ResNets"),
        absl::StatusCode::kFailedPrecondition);
  }
  resnet->naming = ResNetNaming::kTorchvision;
  const std::vector<HuggingFaceParameter> parameters = HuggingFaceParametersOf(model);
  const std::vector<ExportedFile> files =
      Distribute(parameters, model, {.file_bytes = std::numeric_limits<int64_t>::max()});
  ASSIGN_OR_RETURN(MergedParameters reader, MergedParameters::Create(checkpoint, model));
  return base::WriteFileAtomically(path, [&](const base::AppendFunction& append) {
    return WriteTensors(files.front(), model, reader, checkpoint.manifest().step, append);
  });
}

}  // namespace stagecoach::engine
