#ifndef STAGECOACH_ENGINE_DATA_TOKENS_TOKEN_INFO_H_
#define STAGECOACH_ENGINE_DATA_TOKENS_TOKEN_INFO_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace stagecoach::engine {

// Describes files of ids in a file next to them: "tokens.json" in a directory, and "a.bin.json" for
// a file a.bin.
struct TokenInfo {
  int64_t vocabulary = 0;
  std::string tokenizer;       // its file
  std::string tokenizer_hash;  // Tokenizer::hash
  // The number of tokens in each file, by its name in the same directory: reveals files of another
  // time.
  std::map<std::string, int64_t> tokens;

  friend bool operator==(const TokenInfo&, const TokenInfo&) = default;
};

// Replaces the description of the ids at `path`, a directory or a file. A tokenizer's path is
// stored relative to it, if it is relative.
absl::Status WriteTokenInfo(const std::string& path, const TokenInfo& info);

// Returns the description of the ids at `path`; nullopt: there is none. The tokenizer's path is
// then as this program finds it. Errors name the file: InvalidArgument says where and what is wrong
// in it.
absl::StatusOr<std::optional<TokenInfo>> ReadTokenInfo(const std::string& path);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_TOKENS_TOKEN_INFO_H_
