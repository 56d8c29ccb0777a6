#include "engine/checkpoint/hugging_face_files.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/line.h"
#include "base/mapped_file.h"
#include "base/status_macros.h"
#include "engine/checkpoint/hugging_face.h"
#include "engine/checkpoint/safetensors.h"
#include "kernels/bfloat16.h"

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

// Names the files of the index, and, for each tensor, which of them has it.
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

// IEEE 754 binary16.
float FromFloat16(uint16_t value) {
  const int exponent = value >> 10 & 0x1F, fraction = value & 0x3FF;
  const float sign = (value & 0x8000) != 0 ? -1.0F : 1.0F;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), -24);
  if (exponent == 0x1F) {
    return fraction != 0 ? std::numeric_limits<float>::quiet_NaN()
                         : sign * std::numeric_limits<float>::infinity();
  }
  return sign * std::ldexp(static_cast<float>(0x400 + fraction), exponent - 25);
}

// The numbers of `entry`, which lies at `bytes`, from `first` on.
void ReadFloats(const SafetensorsEntry& entry, const char* bytes, int64_t first,
                absl::Span<float> values) {
  const char* const from = bytes + first * SizeOf(*entry.type);
  const auto read = [&]<typename Stored>(auto to_float, Stored /*type*/) {
    for (size_t i = 0; i < values.size(); ++i) {
      Stored stored;
      std::memcpy(&stored, from + i * sizeof(Stored), sizeof(Stored));
      values[i] = to_float(stored);
    }
  };
  switch (*entry.type) {
    case DType::kFloat32:
      std::memcpy(values.data(), from, values.size() * sizeof(float));
      return;
    case DType::kFloat64:
      return read([](double value) { return static_cast<float>(value); }, double());
    case DType::kBfloat16:
      return read(kernels::FromBfloat16, uint16_t());
    case DType::kFloat16:
      return read(FromFloat16, uint16_t());
    default:
      STAGECOACH_CHECK(false, "a type that was refused");
  }
}

// What `read` makes of the config.json.
template <typename T>
absl::StatusOr<T> ReadConfig(const std::string& folder,
                             absl::StatusOr<T> (*read)(absl::string_view)) {
  const std::string path = PathIn(folder, kConfig);
  if (!base::Exists(path)) {
    return absl::NotFoundError(
        absl::StrCat(folder, " has no ", kConfig, ": not a model's folder of Hugging Face's"));
  }
  ASSIGN_OR_RETURN(const std::string text, base::ReadFile(path, kMaxConfigBytes));
  absl::StatusOr<T> result = read(text);
  if (!result.ok()) return base::InFile(base::WithJsonPlace(result.status(), text), path);
  return result;
}

// How the parameters of older folders become what is read.
absl::Status CheckHasNoPickles(const std::string& folder, const HuggingFaceModel& model) {
  const char* const type = std::holds_alternative<Transformer>(model)
                               ? "AutoModelForCausalLM"
                               : "AutoModelForImageClassification";
  for (const char* const name : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
    if (!base::Exists(PathIn(folder, name))) continue;
    return absl::NotFoundError(absl::StrCat(folder, " has ", name, " and no ", kSingleFile,
                                            ": convert it in Python, by transformers.", type,
                                            ".from_pretrained(FOLDER).save_pretrained(NEW)"));
  }
  return absl::OkStatus();
}

bool IsFloatingPoint(DType type) {
  return type == DType::kFloat32 || type == DType::kFloat64 || type == DType::kBfloat16 ||
         type == DType::kFloat16;
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
  return absl::InvalidArgumentError(
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
  absl::Status CheckParameters() const;
  absl::Status CheckTiedHead() const;
  absl::Status ReadConfigs();

  const std::string path;
  const HuggingFaceModel model;
  std::string config;   // as HuggingFaceConfigOf writes it
  std::string dropout;  // that it asks for
  std::vector<base::MappedFile> files;
  std::map<std::string, StoredTensor, std::less<>> tensors;             // by name, without a prefix
  std::map<std::string, HuggingFaceParameter, std::less<>> parameters;  // by our name
};

absl::StatusOr<HuggingFaceFolder> HuggingFaceFolder::Open(const std::string& path,
                                                          const HuggingFaceModel& model) {
  HuggingFaceModel named = model;
  if (IsStateDict(path)) {
    auto* const resnet = std::get_if<ImageClassifier>(&named);
    if (resnet == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": a file of tensors alone is read for ResNets; name a folder with config.json"));
    }
    resnet->naming = ResNetNaming::kTorchvision;
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
  return absl::InvalidArgumentError(absl::StrCat(
      PathIn(path, kConfig), " is of another model than the one to train: ", difference));
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
  ASSIGN_OR_RETURN(base::MappedFile mapped, base::MappedFile::Open(file));
  const absl::string_view contents = mapped.contents();
  absl::StatusOr<SafetensorsHeader> header =
      ParseSafetensors(contents, static_cast<int64_t>(contents.size()));
  if (!header.ok()) return base::Annotate(header.status(), file);
  const std::string prefix = HuggingFacePrefix(model);
  for (SafetensorsEntry& entry : header->tensors) {
    std::string tensor(absl::StripPrefix(entry.name, prefix));
    const auto [place, is_new] =
        tensors.try_emplace(std::move(tensor), StoredTensor{files.size(), std::move(entry)});
    if (is_new) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": there are two tensors \"", place->first, "\""));
  }
  files.push_back(std::move(mapped));
  return absl::OkStatus();
}

// Of a model whose config says that its head is the embedding's table, a file may have another:
// which of the two counts, versions of transformers disagree on.
absl::Status HuggingFaceFolder::Contents::CheckTiedHead() const {
  const auto* const transformer = std::get_if<Transformer>(&model);
  const auto head = tensors.find("lm_head.weight");
  if (transformer == nullptr || !transformer->is_tied || head == tensors.end()) {
    return absl::OkStatus();
  }
  const char* const table_name =
      transformer->family == TransformerFamily::kGpt2 ? "wte.weight" : "embed_tokens.weight";
  const StoredTensor& own = head->second;
  const StoredTensor& table = tensors.find(table_name)->second;
  const auto values_of = [this](const StoredTensor& stored) {
    return files[stored.file].contents().substr(static_cast<size_t>(stored.entry.begin),
                                                static_cast<size_t>(stored.entry.bytes()));
  };
  if (own.entry.shape == table.entry.shape && own.entry.type == table.entry.type &&
      values_of(own) == values_of(table)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "the tensor \"lm_head.weight\" has other values than \"", table_name, "\", but ", kConfig,
      " says tie_word_embeddings: set it to false there, or leave the tensor out"));
}

absl::Status HuggingFaceFolder::Contents::CheckParameters() const {
  std::set<absl::string_view> known;
  for (const auto& [name, parameter] : parameters) {
    for (const HuggingFacePiece& piece : parameter.pieces) {
      const auto found = tensors.find(piece.tensor);
      if (found == tensors.end()) {
        return absl::InvalidArgumentError(
            absl::StrCat("the tensor \"", piece.tensor, "\" is missing"));
      }
      known.insert(piece.tensor);
      const SafetensorsEntry& entry = found->second.entry;
      const kernels::Shape expected(absl::MakeConstSpan(piece.shape));
      if (entry.shape != expected) {
        return absl::InvalidArgumentError(absl::StrCat("the tensor \"", piece.tensor,
                                                       "\" has the shape ", entry.shape.ToString(),
                                                       ", and the model's ", expected.ToString()));
      }
      if (!entry.type.has_value() || !IsFloatingPoint(*entry.type)) {
        return absl::InvalidArgumentError(
            absl::StrCat("the tensor \"", piece.tensor, "\" has integers"));
      }
    }
  }
  for (const auto& [tensor, stored] : tensors) {
    if (known.contains(tensor) || IsHuggingFaceBuffer(model, tensor)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("there is a tensor \"", tensor, "\", which the model has not"));
  }
  return CheckTiedHead();
}

std::string HuggingFaceFolder::Fingerprint() const {
  base::Hasher values;
  for (const auto& [name, tensor] : contents_->tensors) {
    const SafetensorsEntry& entry = tensor.entry;
    values.Update(absl::StrCat(name, " ", entry.shape.ToString(), " "));
    values.UpdateValue(entry.type.value_or(DType::kUint8));
    values.Update(contents_->files[tensor.file].contents().substr(
        static_cast<size_t>(entry.begin), static_cast<size_t>(entry.bytes())));
  }
  return absl::StrCat("initial config.json: ", base::HashOf(contents_->config),
                      "\ninitial parameters: ", values.HexDigest(), "\n");
}

const std::string& HuggingFaceFolder::dropout() const { return contents_->dropout; }

absl::Status HuggingFaceFolder::Read(absl::string_view name, absl::Span<float> values) const {
  const Contents& all = *contents_;
  const auto parameter = all.parameters.find(name);
  if (parameter == all.parameters.end()) {
    return absl::NotFoundError(absl::StrCat(all.path, " has no values of \"", name, "\""));
  }
  const int64_t columns = parameter->second.columns();
  int64_t first_column = 0;
  for (const HuggingFacePiece& piece : parameter->second.pieces) {
    const Contents::StoredTensor& stored = all.tensors.find(piece.tensor)->second;
    const char* const bytes = all.files[stored.file].contents().data() + stored.entry.begin;
    STAGECOACH_CHECK(piece.rows() * columns == std::ssize(values), "another number of values");
    const int64_t lines = piece.is_transposed ? piece.columns() : piece.rows();
    std::vector<float> line(
        static_cast<size_t>(piece.is_transposed ? piece.rows() : piece.columns()));
    for (int64_t i = 0; i < lines; ++i) {
      ReadFloats(stored.entry, bytes, (piece.first_row + i) * std::ssize(line),
                 absl::MakeSpan(line));
      // Theirs is a column of ours, or a part of a row.
      float* to = values.data() + first_column + (piece.is_transposed ? i : i * columns);
      for (const float value : line) {
        *to = value;
        to += piece.is_transposed ? columns : 1;
      }
    }
    first_column += piece.columns();
  }
  const auto bad = std::find_if_not(values.begin(), values.end(),
                                    [](float value) { return std::isfinite(value); });
  if (bad == values.end()) return absl::OkStatus();
  int64_t column = (bad - values.begin()) % columns;
  const HuggingFacePiece* from = parameter->second.pieces.data();
  while (column >= from->columns()) column -= (from++)->columns();
  return absl::InvalidArgumentError(absl::StrCat(all.path, ": the tensor \"", from->tensor,
                                                 "\" has a value that is not finite, ", *bad));
}

}  // namespace stagecoach::engine
