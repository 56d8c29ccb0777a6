#include "engine/data/tokenizer/folder_tokenizer.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "base/text/json.h"

namespace stagecoach::engine {
namespace {

constexpr char kJson[] = "/tokenizer.json";
constexpr char kModel[] = "/tokenizer.model";
constexpr char kConfig[] = "tokenizer_config.json";
constexpr int64_t kMaxTokenizerFileBytes = int64_t{1} << 30;
constexpr int64_t kMaxConfigBytes = int64_t{16} << 20;

bool IsModel(const std::string& path) { return absl::EndsWith(path, ".model"); }

std::string Beside(const std::string& path, const char* name) {
  return (std::filesystem::path(path).parent_path() / name).string();
}

absl::Status CopyTo(const std::string& from, const std::string& to, int64_t max_bytes) {
  ASSIGN_OR_RETURN(const std::string contents, base::ReadFile(from, max_bytes));
  return base::WriteFileAtomically(to, contents);
}

// Makes a configuration for a tokenizer that has none.
std::string MakeConfig(const std::string& path, const Tokenizer& tokenizer, int64_t context,
                       std::optional<int64_t> begin_of_text, std::optional<int64_t> end_of_text) {
  nlohmann::ordered_json config = {
      {"tokenizer_class", IsModel(path) ? "LlamaTokenizer" : "PreTrainedTokenizerFast"},
      {"clean_up_tokenization_spaces", false},
      {"model_max_length", context}};
  if (IsModel(path)) {
    config["add_bos_token"] = false;
    config["add_eos_token"] = false;
    config["legacy"] = false;
  }
  for (const auto& [key, id] :
       {std::pair("bos_token", begin_of_text), std::pair("eos_token", end_of_text)}) {
    if (!id.has_value()) continue;
    const std::string text(tokenizer.BytesOf(static_cast<int32_t>(*id)));
    if (!text.empty() && base::IsUtf8(text)) config[key] = text;
  }
  return config.dump(2) + "\n";
}

}  // namespace

absl::StatusOr<FolderTokenizer> LoadFolderTokenizer(const std::string& folder) {
  const std::string json = folder + kJson, model = folder + kModel;
  absl::Status refused;
  if (base::Exists(json)) {
    absl::StatusOr<std::shared_ptr<const Tokenizer>> tokenizer = Tokenizer::Load(json);
    if (tokenizer.ok()) return FolderTokenizer{json, *std::move(tokenizer), ""};
    refused = tokenizer.status();
    if (!base::Exists(model)) return refused;
  }
  if (!base::Exists(model)) {
    return base::DataError(absl::StrCat(folder, " has no tokenizer.json and no tokenizer.model"),
                           absl::StatusCode::kNotFound);
  }
  ASSIGN_OR_RETURN(std::shared_ptr<const Tokenizer> tokenizer, Tokenizer::Load(model));
  return FolderTokenizer{
      model, std::move(tokenizer),
      refused.ok() ? ""
                   : absl::StrCat("takes the tokenizer ", model, ", since ", refused.message())};
}

bool AddsBeginOfText(const std::string& tokenizer) {
  if (!IsModel(tokenizer)) return false;
  const absl::StatusOr<std::string> text =
      base::ReadFile(Beside(tokenizer, kConfig), kMaxConfigBytes);
  if (!text.ok()) return true;
  const absl::StatusOr<nlohmann::json> config = base::ParseJson(*text);
  return !config.ok() || !config->is_object() ||
         config->value("add_bos_token", nlohmann::json()) != false;
}

absl::Status WriteFolderTokenizer(const std::string& path, const Tokenizer& tokenizer,
                                  int64_t context, std::optional<int64_t> begin_of_text,
                                  std::optional<int64_t> end_of_text, const std::string& folder) {
  RETURN_IF_ERROR(CopyTo(path, folder + (IsModel(path) ? kModel : kJson), kMaxTokenizerFileBytes));
  const std::string config = Beside(path, kConfig), written = absl::StrCat(folder, "/", kConfig);
  if (!base::Exists(config)) {
    return base::WriteFileAtomically(
        written, MakeConfig(path, tokenizer, context, begin_of_text, end_of_text));
  }
  const std::string special = "special_tokens_map.json";
  if (base::Exists(Beside(path, special.c_str()))) {
    RETURN_IF_ERROR(
        CopyTo(Beside(path, special.c_str()), absl::StrCat(folder, "/", special), kMaxConfigBytes));
  }
  return CopyTo(config, written, kMaxConfigBytes);
}

}  // namespace stagecoach::engine
