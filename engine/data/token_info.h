#ifndef STAGECOACH_ENGINE_DATA_TOKEN_INFO_H_
#define STAGECOACH_ENGINE_DATA_TOKEN_INFO_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace stagecoach::engine {

// What files of ids do not say of themselves, in a file beside them: "tokens.json" in a directory,
// and "a.bin.json" for a file a.bin.
struct TokenInfo {
  int64_t vocabulary = 0;
  std::string tokenizer;       // its file
  std::string tokenizer_hash;  // Tokenizer::hash
  // How many tokens each file has, by its name in the same directory: so it is noticed if they are
  // of another time.
  std::map<std::string, int64_t> tokens;

  friend bool operator==(const TokenInfo&, const TokenInfo&) = default;
};

// Replaces the file for the ids at `path`, a directory or a file. A tokenizer's path is written
// relative to it, if it is so.
absl::Status WriteTokenInfo(const std::string& path, const TokenInfo& info);

// That of ids at `path`; nullopt: there is none. The tokenizer's path is then as this program finds
// it. Errors name the file: InvalidArgument says where and what is wrong in it.
absl::StatusOr<std::optional<TokenInfo>> ReadTokenInfo(const std::string& path);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_TOKEN_INFO_H_
