#include "engine/checkpoint/hugging_face_files.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "base/error_class.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "base/system/system_calls.h"
#include "base/text/json.h"
#include "base/text/line.h"
#include "engine/checkpoint/files/bits_and_bytes.h"
#include "engine/checkpoint/files/safetensors.h"
#include "engine/checkpoint/files/stored_matrix.h"
#include "engine/models/hugging_face.h"

namespace stagecoach::engine {
namespace {

using base::ObjectReader;
using kernels::DType;

constexpr char kConfig[] = "config.json";
constexpr char kGenerationConfig[] = "generation_config.json";
constexpr char kSingleFile[] = "model.safetensors";
constexpr char kIndex[] = "model.safetensors.index.json";
constexpr int64_t kMaxConfigBytes = 1'000'000;
constexpr int64_t kMaxIndexBytes = 100'000'000;

std::string PathIn(const std::string& folder, const std::string& name) {
  return absl::StrCat(folder, "/", name);
}

// Returns, for each tensor, the file of the index that has it.
absl::StatusOr<std::map<std::string, std::string>> ReadIndex(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, base::ReadFile(path, kMaxIndexBytes));
  const auto read = [&]() -> absl::StatusOr<std::map<std::string, std::string>> {
    ASSIGN_OR_RETURN(const nlohmann::json document,
                     base::ParseJson(text, {.max_bytes = kMaxIndexBytes}));
    ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Create(document));
    ASSIGN_OR_RETURN(ObjectReader map, reader.RequiredObject("weight_map"));
    std::map<std::string, std::string> file_of;
    for (const std::string& tensor : map.Keys()) {
      ASSIGN_OR_RETURN(const std::string file, map.RequiredString(tensor));
      if (file.empty() || file.front() == '.' || absl::StrContains(file, '/')) {
        return map.Error(tensor, "is not the name of a file in the folder");
      }
      file_of[tensor] = file;
    }
    return file_of;
  };
  absl::StatusOr<std::map<std::string, std::string>> file_of = read();
  if (!file_of.ok()) return base::InFile(base::WithJsonPlace(file_of.status(), text), path);
  return file_of;
}

// Applies `read` to the config.json.
template <typename T>
absl::StatusOr<T> ReadConfig(const std::string& folder,
                             absl::StatusOr<T> (*read)(absl::string_view)) {
  const std::string path = PathIn(folder, kConfig);
  if (!base::Exists(folder)) {
    return base::DataError(absl::StrCat("there is no ", folder), absl::StatusCode::kNotFound);
  }
  if (!base::Exists(path)) {
    return base::DataError(
        absl::StrCat(folder, " has no ", kConfig, ", which a model's folder of Hugging Face has"),
        absl::StatusCode::kNotFound);
  }
  ASSIGN_OR_RETURN(const std::string text, base::ReadFile(path, kMaxConfigBytes));
  absl::StatusOr<T> result = read(text);
  if (!result.ok()) return base::InFile(base::WithJsonPlace(result.status(), text), path);
  return result;
}

// Refuses a folder whose parameters are only in pickles, and says how to convert them.
absl::Status CheckHasNoPickles(const std::string& folder, const HuggingFaceModel& model) {
  const char* const type = std::holds_alternative<Transformer>(model)
                               ? "AutoModelForCausalLM"
                               : "AutoModelForImageClassification";
  for (const char* const name : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
    if (!base::Exists(PathIn(folder, name))) continue;
    return base::DataError(absl::StrCat(folder, " has ", name, " and no ", kSingleFile,
                                        ": convert it in Python, by transformers.", type,
                                        ".from_pretrained(FOLDER).save_pretrained(NEW)"),
                           absl::StatusCode::kNotFound);
  }
  return absl::OkStatus();
}

}  // namespace

bool IsStateDict(absl::string_view path) { return absl::EndsWith(path, ".safetensors"); }

absl::StatusOr<HuggingFaceModel> ReadHuggingFaceModelFile(const std::string& folder) {
  ASSIGN_OR_RETURN(HuggingFaceModel model, ReadConfig(folder, ReadHuggingFaceModel));
  const std::string path = PathIn(folder, kGenerationConfig);
  auto* const transformer = std::get_if<Transformer>(&model);
  if (transformer == nullptr || !base::Exists(path)) return model;
  ASSIGN_OR_RETURN(const std::string text, base::ReadFile(path, kMaxConfigBytes));
  const absl::Status read = ReadHuggingFaceGeneration(text, *transformer);
  RETURN_IF_ERROR(base::InFile(base::WithJsonPlace(read, text), path));
  return model;
}

absl::StatusOr<Transformer> ReadHuggingFaceConfigFile(const std::string& folder) {
  ASSIGN_OR_RETURN(const HuggingFaceModel model, ReadHuggingFaceModelFile(folder));
  if (const auto* const found = std::get_if<Transformer>(&model)) return *found;
  return base::DataError(
      absl::StrCat(PathIn(folder, kConfig), ": is of a model that does not take tokens"));
}

struct HuggingFaceFolder::Contents {
  struct StoredTensor {
    size_t file = 0;  // among files
    SafetensorsEntry entry;
  };

  Contents(std::string of_path, HuggingFaceModel of)
      : path(std::move(of_path)), model(std::move(of)) {}
  absl::Status AddFile(const std::string& file);
  absl::Status AddFiles();
  absl::Status CheckParameters();
  // Opens the matrix if it is quantized.
  absl::Status CheckPiece(const HuggingFacePiece& piece);
  absl::Status CheckTiedHead() const;
  absl::Status ReadValues(absl::string_view name, const kernels::Tensor& values) const;
  // Returns whether all of it is quantized in the folder as in the parameter, and reads it then.
  absl::StatusOr<bool> ReadQuantized(const ModelParameter& parameter,
                                     absl::Span<std::byte> stored) const;
  // Finds a tensor by its name without a prefix.
  TensorFinder Finder() const;
  absl::Status AddBytesOf(const StoredTensor& stored, base::Hasher& hasher) const;
  absl::Status ReadConfigs();

  const std::string path;
  const HuggingFaceModel model;
  std::string config;   // in the form of HuggingFaceConfigOf
  std::string dropout;  // that it asks for
  std::vector<base::FileReader> files;
  std::map<std::string, StoredTensor, std::less<>> tensors;             // by name, without a prefix
  std::map<std::string, HuggingFaceParameter, std::less<>> parameters;  // by our name
  std::map<std::string, BitsAndBytesMatrix, std::less<>> quantized;  // by the tensor of its codes
};

absl::StatusOr<HuggingFaceFolder> HuggingFaceFolder::Open(const std::string& path,
                                                          const HuggingFaceModel& model) {
  HuggingFaceModel named = model;
  if (IsStateDict(path)) {
    auto* const resnet = std::get_if<ImageClassifier>(&named);
    if (resnet == nullptr) {
      return base::DataError(absl::StrCat(
          path, ": a file of tensors alone is read for ResNets; name a folder with config.json"));
    }
    resnet->naming = ResNetNaming::kTorchvision;
  } else if (auto* const transformer = std::get_if<Transformer>(&named)) {
    // An error is told below, after those of tensors.
    const absl::StatusOr<HuggingFaceModel> theirs = ReadHuggingFaceModelFile(path);
    const auto* const read = theirs.ok() ? std::get_if<Transformer>(&*theirs) : nullptr;
    transformer->has_joined_tensors = read != nullptr && read->has_joined_tensors;
  }
  const auto contents = std::make_shared<Contents>(path, named);
  std::vector<HuggingFaceParameter> parameters = HuggingFaceParametersOf(named);
  for (HuggingFaceParameter& parameter : parameters) {
    std::string name = parameter.name;
    contents->parameters.emplace(std::move(name), std::move(parameter));
  }
  RETURN_IF_ERROR(contents->AddFiles());
  const absl::Status fits = contents->CheckParameters();
  if (!fits.ok()) return base::Annotate(fits, path);
  if (!IsStateDict(path)) RETURN_IF_ERROR(contents->ReadConfigs());
  return HuggingFaceFolder(contents);
}

absl::Status HuggingFaceFolder::Contents::ReadConfigs() {
  ASSIGN_OR_RETURN(const HuggingFaceModel theirs, ReadHuggingFaceModelFile(path));
  config = HuggingFaceConfigOf(theirs);
  ASSIGN_OR_RETURN(dropout, ReadConfig(path, HuggingFaceDropoutOf));
  std::string difference;
  if (theirs.index() != model.index()) {
    difference = "its model_type";
  } else if (const auto* const transformer = std::get_if<Transformer>(&theirs)) {
    difference = DifferenceOf(*transformer, std::get<Transformer>(model));
  }
  if (difference.empty()) return absl::OkStatus();
  return base::DataError(absl::StrCat(PathIn(path, kConfig),
                                      " is of another model than the one to train: ", difference));
}

absl::Status HuggingFaceFolder::Contents::AddFiles() {
  if (IsStateDict(path)) return AddFile(path);
  const std::string index = PathIn(path, kIndex), single = PathIn(path, kSingleFile);
  if (!base::Exists(index)) {
    if (!base::Exists(single)) RETURN_IF_ERROR(CheckHasNoPickles(path, model));
    return AddFile(single);
  }
  ASSIGN_OR_RETURN(const auto file_of, ReadIndex(index));
  std::set<std::string> names;
  for (const auto& [tensor, file] : file_of) names.insert(file);
  for (const std::string& name : names) RETURN_IF_ERROR(AddFile(PathIn(path, name)));
  return absl::OkStatus();
}

absl::Status HuggingFaceFolder::Contents::AddFile(const std::string& file) {
  ASSIGN_OR_RETURN(base::FileReader reader, base::FileReader::Open(file, /*follows_links=*/true));
  absl::StatusOr<SafetensorsHeader> header = ReadSafetensorsHeader(reader);
  if (!header.ok()) return base::Annotate(header.status(), file);
  const std::string prefix = HuggingFacePrefix(model);
  for (SafetensorsEntry& entry : header->tensors) {
    std::string tensor(absl::StripPrefix(entry.name, prefix));
    const auto [place, is_new] =
        tensors.try_emplace(std::move(tensor), StoredTensor{files.size(), std::move(entry)});
    if (is_new) continue;
    return base::DataError(absl::StrCat(file, ": there are two tensors \"", place->first, "\""));
  }
  files.push_back(std::move(reader));
  return absl::OkStatus();
}

// If a model's config says that its head is the embedding's table, a file may still have another
// head: versions of transformers disagree on which of the two counts.
absl::Status HuggingFaceFolder::Contents::CheckTiedHead() const {
  const auto* const transformer = std::get_if<Transformer>(&model);
  if (transformer == nullptr || !transformer->is_tied) return absl::OkStatus();
  const std::string head_name = HuggingFaceHead(*transformer);
  const auto head = tensors.find(head_name);
  if (head == tensors.end()) return absl::OkStatus();
  const std::string table_name = HuggingFaceTokenTable(*transformer);
  const StoredTensor& own = head->second;
  const StoredTensor& table = tensors.find(table_name)->second;
  if (own.entry.shape == table.entry.shape && own.entry.type == table.entry.type) {
    base::Hasher values, of_table;
    RETURN_IF_ERROR(AddBytesOf(own, values));
    RETURN_IF_ERROR(AddBytesOf(table, of_table));
    if (values.HexDigest() == of_table.HexDigest()) return absl::OkStatus();
  }
  return base::DataError(absl::StrCat(
      "the tensor \"", head_name, "\" has other values than \"", table_name, "\", but ", kConfig,
      " says tie_word_embeddings: set it to false there, or leave the tensor out"));
}

absl::Status HuggingFaceFolder::Contents::CheckParameters() {
  std::set<absl::string_view> known;
  for (const auto& [name, parameter] : parameters) {
    for (const HuggingFacePiece& piece : parameter.pieces) {
      const auto found = tensors.find(piece.tensor);
      if (found == tensors.end()) {
        return base::DataError(absl::StrCat("the tensor \"", piece.tensor, "\" is missing"));
      }
      known.insert(piece.tensor);
      RETURN_IF_ERROR(CheckPiece(piece));
    }
  }
  for (const auto& [tensor, stored] : tensors) {
    if (known.contains(tensor) || IsHuggingFaceBuffer(model, tensor)) continue;
    if (known.contains(BitsAndBytesMatrix::MatrixOf(tensor))) continue;
    return base::DataError(
        absl::StrCat("there is a tensor \"", tensor, "\", which the model does not have"));
  }
  return CheckTiedHead();
}

absl::Status HuggingFaceFolder::Contents::CheckPiece(const HuggingFacePiece& piece) {
  const auto refuse = [&](const auto&... what) {
    return base::DataError(absl::StrCat("the tensor \"", piece.tensor, "\" ", what...));
  };
  if (BitsAndBytesMatrix::IsOne(Finder(), piece.tensor)) {
    if (piece.some_rows > 0) return refuse("is quantized and joins layers, which is not supported");
    ASSIGN_OR_RETURN(
        BitsAndBytesMatrix matrix,
        BitsAndBytesMatrix::Open(Finder(), piece.tensor, piece.rows(), piece.columns()));
    quantized.emplace(piece.tensor, std::move(matrix));
    return absl::OkStatus();
  }
  const SafetensorsEntry& entry = tensors.find(piece.tensor)->second.entry;
  const kernels::Shape expected(absl::MakeConstSpan(piece.shape));
  if (entry.shape != expected) {
    return refuse("has the shape ", entry.shape.ToString(), ", and the model's ",
                  expected.ToString());
  }
  if (!entry.type.has_value() || !IsFloatingPoint(*entry.type)) return refuse("has integers");
  return absl::OkStatus();
}

TensorFinder HuggingFaceFolder::Contents::Finder() const {
  return [this](absl::string_view name) -> TensorInFile {
    const auto found = tensors.find(name);
    if (found == tensors.end()) return {};
    return {&files[found->second.file], found->second.entry};
  };
}

absl::Status HuggingFaceFolder::Contents::AddBytesOf(const StoredTensor& stored,
                                                     base::Hasher& hasher) const {
  constexpr int64_t kBytesAtOnce = int64_t{256} << 10;
  std::vector<std::byte> part(static_cast<size_t>(std::min(stored.entry.bytes(), kBytesAtOnce)));
  for (int64_t done = 0; done < stored.entry.bytes(); done += std::ssize(part)) {
    const auto own = absl::MakeSpan(part).first(
        static_cast<size_t>(std::min(std::ssize(part), stored.entry.bytes() - done)));
    RETURN_IF_ERROR(files[stored.file].ReadAt(stored.entry.begin + done, own));
    hasher.Update(own);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> HuggingFaceFolder::Fingerprint() const {
  base::Hasher values;
  for (const auto& [name, tensor] : contents_->tensors) {
    const SafetensorsEntry& entry = tensor.entry;
    values.Update(absl::StrCat(name, " ", entry.shape.ToString(), " "));
    values.UpdateValue(entry.type.value_or(DType::kUint8));
    RETURN_IF_ERROR(contents_->AddBytesOf(tensor, values));
  }
  return absl::StrCat("initial config.json: ", base::HashOf(contents_->config),
                      "\ninitial parameters: ", values.HexDigest(), "\n");
}

const std::string& HuggingFaceFolder::dropout() const { return contents_->dropout; }

absl::Status HuggingFaceFolder::Read(const ModelParameter& parameter,
                                     const kernels::Tensor& values) const {
  if (!parameter.quantized.has_value()) return contents_->ReadValues(parameter.name, values);
  const auto stored =
      absl::MakeSpan(static_cast<std::byte*>(values.data), static_cast<size_t>(values.bytes()));
  ASSIGN_OR_RETURN(const bool is_read, contents_->ReadQuantized(parameter, stored));
  if (is_read) return absl::OkStatus();
  const auto elements = static_cast<size_t>(parameter.shape.elements());
  const auto floats = std::make_unique_for_overwrite<float[]>(elements);
  RETURN_IF_ERROR(
      contents_->ReadValues(parameter.name, kernels::Float32(floats.get(), parameter.shape)));
  Quantize(*parameter.quantized, absl::MakeConstSpan(floats.get(), elements), stored);
  return absl::OkStatus();
}

absl::StatusOr<bool> HuggingFaceFolder::Contents::ReadQuantized(
    const ModelParameter& parameter, absl::Span<std::byte> stored) const {
  const auto found = parameters.find(parameter.name);
  if (found == parameters.end()) return false;
  const std::vector<HuggingFacePiece>& pieces = found->second.pieces;
  const kernels::QuantizedMatrix& matrix = *parameter.quantized;
  std::vector<const BitsAndBytesMatrix*> theirs;
  std::vector<int64_t> parts;
  for (const HuggingFacePiece& piece : pieces) {
    // Outputs in another order are in other blocks of scales.
    const auto own = quantized.find(piece.tensor);
    if (!piece.order.empty() || own == quantized.end()) return false;
    if (own->second.kind() != matrix.kind) return false;
    theirs.push_back(&own->second);
    parts.push_back(piece.columns());
  }
  if (matrix.parts.empty() ? parts.size() > 1 : matrix.parts != parts) return false;
  std::fill(stored.begin(), stored.end(), std::byte{0});
  for (size_t i = 0; i < theirs.size(); ++i) {
    absl::StatusOr<kernels::BitsAndBytesPart> part = theirs[i]->Read();
    RETURN_IF_ERROR(base::Annotate(part.status(), path));
    StorePart(matrix, static_cast<int>(i), *part, stored);
  }
  return true;
}

absl::Status HuggingFaceFolder::Contents::ReadValues(absl::string_view name,
                                                     const kernels::Tensor& values) const {
  const auto parameter = parameters.find(name);
  if (parameter == parameters.end()) {
    return base::DataError(absl::StrCat(path, " has no values of \"", name, "\""),
                           absl::StatusCode::kNotFound);
  }
  const int64_t columns = parameter->second.columns();
  kernels::Tensor rest = values;  // from the beginning of a piece
  for (const HuggingFacePiece& piece : parameter->second.pieces) {
    STAGECOACH_CHECK(piece.rows() * columns == values.elements(), "another number of values");
    const StoredTensor& stored = tensors.find(piece.tensor)->second;
    const auto matrix = quantized.find(piece.tensor);
    const absl::Status read =
        matrix == quantized.end()
            ? ReadPiece(files[stored.file], stored.entry, piece, rest, columns)
            : matrix->second.ReadValues(piece.order, rest, columns);
    RETURN_IF_ERROR(base::Annotate(read, path));
    rest.data = static_cast<std::byte*>(rest.data) + piece.columns() * SizeOf(values.dtype);
  }
  return absl::OkStatus();
}

}  // namespace stagecoach::engine
