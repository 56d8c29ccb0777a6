#ifndef STAGECOACH_ENGINE_DATA_TOKENIZER_TOKENIZER_JSON_MODEL_H_
#define STAGECOACH_ENGINE_DATA_TOKENIZER_TOKENIZER_JSON_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/text/json.h"
#include "engine/data/tokenizer/piece_model.h"

namespace stagecoach::engine {

// The contents of "model" in a tokenizer.json.
struct TokenizerJsonModel {
  std::unique_ptr<PieceModel> model;
  absl::flat_hash_map<std::string, int32_t> ids;  // by the names in the file
  std::vector<std::string> tokens;                // these names, by id
  bool is_bpe = false;
};

// Reads "model". InvalidArgument says where and what is wrong or not supported. `is_byte_level`:
// pieces are bytes, which the file writes as the characters that stand for them. Removes nulls from
// `model`.
absl::StatusOr<TokenizerJsonModel> ReadTokenizerJsonModel(nlohmann::json& model,
                                                          bool is_byte_level);

// Returns the bytes that a token of a byte-level model stands for; nullopt if it has other
// characters.
std::optional<std::string> BytesOfByteLevelToken(absl::string_view token);

// Removes options that are null, which count as absent.
void EraseNulls(nlohmann::json& object);
// Returns the upper limit of ids: few of them are unused, so that a small file makes no large
// vocabulary.
size_t EndOfIds(size_t tokens);
// Fails if the key has another value.
absl::Status RequireBool(base::ObjectReader& reader, absl::string_view key, bool expected,
                         bool if_missing);
std::string Quoted(absl::string_view text);
absl::Status Unsupported(const base::ObjectReader& reader, absl::string_view type);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_TOKENIZER_TOKENIZER_JSON_MODEL_H_
