#include "engine/data/tokens/token_info.h"

#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "base/text/json.h"
#include "base/text/line.h"
#include "engine/data/tokenizer/token_ids.h"

namespace stagecoach::engine {

using base::ObjectReader;

namespace {

constexpr int64_t kMaxTokenInfoBytes = int64_t{1} << 20;

std::string InfoPath(const std::string& path) {
  return base::IsFolder(path) ? absl::StrCat(path, "/tokens.json") : absl::StrCat(path, ".json");
}

absl::StatusOr<TokenInfo> ParseTokenInfo(const std::string& text) {
  ASSIGN_OR_RETURN(const nlohmann::json value, base::ParseJson(text));
  ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Create(value));
  TokenInfo info;
  ASSIGN_OR_RETURN(info.vocabulary,
                   reader.RequiredInt64("vocabulary", {.min = 2, .max = kMaxVocabulary}));
  ASSIGN_OR_RETURN(info.tokenizer, reader.RequiredString("tokenizer"));
  ASSIGN_OR_RETURN(info.tokenizer_hash, reader.RequiredString("tokenizer_hash"));
  ASSIGN_OR_RETURN(ObjectReader tokens, reader.RequiredObject("tokens"));
  RETURN_IF_ERROR(reader.Finish());
  const std::vector<std::string> names = tokens.Keys();
  for (const std::string& name : names) {
    ASSIGN_OR_RETURN(info.tokens[name], tokens.RequiredInt64(name, {.min = 0}));
  }
  return info;
}

}  // namespace

absl::Status WriteTokenInfo(const std::string& path, const TokenInfo& info) {
  const nlohmann::ordered_json json = {{"vocabulary", info.vocabulary},
                                       {"tokenizer", info.tokenizer},
                                       {"tokenizer_hash", info.tokenizer_hash},
                                       {"tokens", info.tokens}};
  using Handler = nlohmann::ordered_json::error_handler_t;
  return base::WriteFileAtomically(InfoPath(path),
                                   absl::StrCat(json.dump(2, ' ', false, Handler::replace), "\n"));
}

absl::StatusOr<std::optional<TokenInfo>> ReadTokenInfo(const std::string& path) {
  const std::string file = InfoPath(path);
  if (!base::Exists(file)) return std::nullopt;
  ASSIGN_OR_RETURN(const std::string text, base::ReadFile(file, kMaxTokenInfoBytes));
  absl::StatusOr<TokenInfo> info = ParseTokenInfo(text);
  RETURN_IF_ERROR(base::InFile(base::WithJsonPlace(info.status(), text), file));
  if (!info->tokenizer.empty()) {
    info->tokenizer = (std::filesystem::path(file).parent_path() / info->tokenizer).string();
  }
  return std::optional<TokenInfo>(*std::move(info));
}

}  // namespace stagecoach::engine
