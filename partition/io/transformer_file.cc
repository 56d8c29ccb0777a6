#include "partition/io/transformer_file.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "base/text/json.h"
#include "base/text/line.h"
#include "base/text/toml.h"
#include "partition/io/transformer_families.h"
#include "partition/io/transformer_keys.h"

namespace stagecoach::partition {
namespace {

using base::ArrayReader;
using base::ObjectReader;
using nlohmann::json;

constexpr int64_t kDescriptionVersion = 1;
constexpr int64_t kMaxDescriptionBytes = int64_t{1} << 20;
constexpr int64_t kMostAutomaticRows = 16;
constexpr std::array<const char*, 3> kAttentions = {"stored", "recomputed", "flash"};
constexpr std::array<const char*, 2> kRecomputes = {"full", "selective"};
constexpr std::array<const char*, 3> kOperators = {"scores", "norms", "activation"};

// A key has one value, several, or is left to the planner.
enum class Form : uint8_t { kAbsent, kOne, kList, kAny };

Form FormOf(const json& document, const char* key) {
  const auto found = document.find(key);
  if (found == document.end() || found->is_null()) return Form::kAbsent;
  if (found->is_array()) return Form::kList;
  return *found == json("auto") ? Form::kAny : Form::kOne;
}

// Returns the values of "auto": 1, 2, 4, ...
std::vector<int64_t> PowersOfTwo(int64_t max) {
  std::vector<int64_t> powers;
  for (int64_t power = 1; power <= max; power *= 2) powers.push_back(power);
  return powers;
}

// Reads the numbers of a key that has a list or "auto".
absl::StatusOr<std::vector<int64_t>> ReadNumbers(const json& document, const char* key,
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

// Returns the indices into `words` of a key's values: one, a list, or "auto" for all. Empty: there
// is no such key.
absl::StatusOr<std::vector<size_t>> ReadWords(const json& document, const char* key,
                                              absl::Span<const char* const> words,
                                              ObjectReader& reader) {
  std::vector<std::string> found;
  std::vector<size_t> indices;
  switch (FormOf(document, key)) {
    case Form::kAbsent:
      reader.Has(key);
      return indices;
    case Form::kAny:
      RETURN_IF_ERROR(reader.RequiredString(key).status());
      found.assign(words.begin(), words.end());
      break;
    case Form::kOne: {
      ASSIGN_OR_RETURN(found.emplace_back(), reader.RequiredString(key));
      break;
    }
    case Form::kList: {
      ASSIGN_OR_RETURN(const ArrayReader array, reader.RequiredArray(key));
      for (size_t i = 0; i < array.size(); ++i) {
        ASSIGN_OR_RETURN(found.emplace_back(), array.String(i));
      }
    }
  }
  for (const std::string& word : found) {
    ASSIGN_OR_RETURN(const size_t index,
                     IndexOf(word, words, key, ", a list of these, or \"auto\"", reader));
    if (std::find(indices.begin(), indices.end(), index) != indices.end()) {
      return reader.Error(key, absl::StrCat("has \"", word, "\" twice"));
    }
    indices.push_back(index);
  }
  if (indices.empty()) return reader.Error(key, "must have at least one kind");
  return indices;
}

absl::Status ReadTensorParallel(const json& document, ObjectReader& reader,
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

absl::Status ReadInteger(const json& document, ObjectReader& reader, const IntegerKey& key,
                         ReadTransformerKeys& read) {
  const char* found = nullptr;
  for (const char* const name : key.names) {
    if (name == nullptr || !HasValue(document, reader, name)) continue;
    if (found != nullptr) {
      return reader.Error(name, absl::StrCat("is \"", found, "\", which is there too: give one"));
    }
    found = name;
  }
  if (found == nullptr) return absl::OkStatus();
  read.spelled[key.names[0]] = found;
  ASSIGN_OR_RETURN(read.description.transformer.*key.member,
                   reader.RequiredInt64(found, {.min = key.min, .max = key.max}));
  return absl::OkStatus();
}

absl::Status ReadKinds(const json& document, ObjectReader& reader,
                       TransformerDescription& description) {
  Transformer& t = description.transformer;
  ASSIGN_OR_RETURN(const std::vector<size_t> attentions,
                   ReadWords(document, "attention", kAttentions, reader));
  if (!attentions.empty()) description.attentions.clear();
  for (const size_t word : attentions) {
    description.attentions.push_back(static_cast<Attention>(word));
  }
  t.attention = description.attentions.front();
  ASSIGN_OR_RETURN(const std::vector<size_t> recomputes,
                   ReadWords(document, "recompute", kRecomputes, reader));
  if (!recomputes.empty()) description.recomputes.clear();
  for (const size_t word : recomputes) {
    description.recomputes.push_back(static_cast<Recompute>(word));
  }
  t.recompute = description.recomputes.front();
  ASSIGN_OR_RETURN(const std::vector<size_t> operators,
                   ReadWords(document, "recompute_operators", kOperators, reader));
  if (operators.empty()) return absl::OkStatus();
  const auto has = [&](size_t word) {
    return std::find(operators.begin(), operators.end(), word) != operators.end();
  };
  t.repeated = {.scores = has(0), .norms = has(1), .activation = has(2)};
  return absl::OkStatus();
}

// Reads the keys of a document, which override what has been read.
absl::Status ReadKeys(const json& document, ObjectReader& reader, ReadTransformerKeys& read) {
  TransformerDescription& description = read.description;
  Transformer& t = description.transformer;
  RETURN_IF_ERROR(ReadTensorParallel(document, reader, description));
  const bool has_list = !description.tensor_parallel.empty();
  for (const IntegerKey& key : kIntegerKeys) {
    if (key.member == &Transformer::tensor_parallel && has_list) continue;
    RETURN_IF_ERROR(ReadInteger(document, reader, key, read));
  }
  switch (FormOf(document, "micro_batch_rows")) {
    case Form::kAbsent:
      reader.Has("micro_batch_rows");
      break;
    case Form::kOne: {
      ASSIGN_OR_RETURN(const int64_t rows, reader.RequiredInt64("micro_batch_rows"));
      t.micro_batch_rows = {rows};
      break;
    }
    default: {
      ASSIGN_OR_RETURN(t.micro_batch_rows,
                       ReadNumbers(document, "micro_batch_rows", kMostAutomaticRows, reader));
    }
  }
  for (const SwitchKey& key : kSwitchKeys) {
    if (!HasValue(document, reader, key.name)) continue;
    ASSIGN_OR_RETURN(t.*key.member, reader.OptionalBool(key.name, false));
  }
  for (const RealKey& key : kRealKeys) {
    if (!HasValue(document, reader, key.name)) continue;
    ASSIGN_OR_RETURN(t.*key.member, reader.RequiredDouble(key.name));
  }
  for (const WordKey& key : kWordKeys) {
    if (!HasValue(document, reader, key.name)) continue;
    ASSIGN_OR_RETURN(const std::string word, reader.RequiredString(key.name));
    const auto* const end = std::find(key.words.begin(), key.words.end(), nullptr);
    ASSIGN_OR_RETURN(const size_t index,
                     IndexOf(word, {key.words.data(), static_cast<size_t>(end - key.words.begin())},
                             key.name, "", reader));
    key.set(t, index);
  }
  return ReadKinds(document, reader, description);
}

absl::Status ReadDocument(const json& document, ObjectReader& reader, ReadTransformerKeys& read) {
  const bool is_family = reader.Has("model_type");
  if (is_family) RETURN_IF_ERROR(ReadFamily(document, reader, read));
  RETURN_IF_ERROR(ReadKeys(document, reader, read));
  return is_family ? FinishFamily(document, reader) : reader.Finish();
}

absl::Status ReadConfig(const std::string& path, ReadTransformerKeys& read) {
  ASSIGN_OR_RETURN(const std::string text, base::ReadFile(path, kMaxDescriptionBytes));
  const auto parse = [&]() -> absl::Status {
    ASSIGN_OR_RETURN(const json document,
                     base::ParseJson(text, {.max_bytes = kMaxDescriptionBytes}));
    ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Create(document));
    RETURN_IF_ERROR(reader.RequiredString("model_type").status());
    return base::WithJsonPlace(ReadDocument(document, reader, read), text);
  };
  return base::InFile(parse(), path);
}

absl::Status ReadNamedConfig(ObjectReader& reader, const std::optional<std::string>& folder,
                             ReadTransformerKeys& read) {
  if (!reader.Has("config")) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string path, reader.RequiredString("config"));
  if (!folder.has_value()) return reader.Error("config", "is of a file, and this text is of none");
  if (reader.Has("model_type")) return reader.Error("model_type", "is that of config: give one");
  return ReadConfig((std::filesystem::path(*folder) / path).string(), read);
}

// Derives what follows from everything that was read, and checks that it is a transformer.
absl::Status Complete(ObjectReader& reader, bool is_config, ReadTransformerKeys& read) {
  Transformer& t = read.description.transformer;
  if (!read.Has("sequence") && t.context > 0) {
    t.sequence = t.context;
    read.spelled["sequence"] = read.spelled["context"];
  }
  for (const IntegerKey& key : kIntegerKeys) {
    if (!key.is_required || read.Has(key.names[0])) continue;
    const char* const name = is_config && key.names[1] != nullptr ? key.names[1] : key.names[0];
    RETURN_IF_ERROR(reader.RequiredInt64(name).status());
  }
  if (t.bytes_per_value >= 4 && !read.Has("optimizer_bytes_per_parameter")) {
    t.optimizer_bytes_per_parameter = 8;
  }
  const absl::Status checked = CheckTransformer(t);
  if (checked.ok()) return checked;
  const std::string message(checked.message());
  const std::string key = message.substr(0, message.find(':'));
  const auto spelled = read.spelled.find(key);
  return absl::InvalidArgumentError(absl::StrCat(
      "$.", spelled == read.spelled.end() ? key : spelled->second, message.substr(key.size())));
}

absl::StatusOr<TransformerDescription> ReadDescription(const json& document, bool is_config,
                                                       const std::optional<std::string>& folder) {
  ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Create(document));
  ReadTransformerKeys read;
  if (is_config) {
    RETURN_IF_ERROR(reader.RequiredString("model_type").status());
  } else {
    ASSIGN_OR_RETURN(const int64_t version, reader.RequiredInt64("version"));
    if (version != kDescriptionVersion) {
      return reader.Error(
          "version",
          absl::StrCat("version ", version, ": this program reads version ", kDescriptionVersion));
    }
    RETURN_IF_ERROR(ReadNamedConfig(reader, folder, read));
  }
  RETURN_IF_ERROR(ReadDocument(document, reader, read));
  RETURN_IF_ERROR(Complete(reader, is_config, read));
  return std::move(read.description);
}

}  // namespace

absl::StatusOr<TransformerDescription> ParseTransformer(absl::string_view text,
                                                        const std::optional<std::string>& folder) {
  const bool is_config = absl::StartsWith(absl::StripLeadingAsciiWhitespace(text), "{");
  const base::JsonLimits limits = {.max_bytes = kMaxDescriptionBytes};
  ASSIGN_OR_RETURN(const json document,
                   is_config ? base::ParseJson(text, limits) : base::ParseToml(text, limits));
  absl::StatusOr<TransformerDescription> description = ReadDescription(document, is_config, folder);
  if (description.ok()) return description;
  return is_config ? base::WithJsonPlace(description.status(), text)
                   : base::WithTomlPlace(description.status(), text);
}

absl::StatusOr<TransformerDescription> ReadTransformer(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, base::ReadInput(path, kMaxDescriptionBytes));
  absl::StatusOr<TransformerDescription> description =
      ParseTransformer(text, std::filesystem::path(path).parent_path().string());
  if (!description.ok()) return base::InFile(description.status(), path);
  return description;
}

}  // namespace stagecoach::partition
