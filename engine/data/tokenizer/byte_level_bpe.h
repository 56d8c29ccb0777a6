#ifndef STAGECOACH_ENGINE_DATA_TOKENIZER_BYTE_LEVEL_BPE_H_
#define STAGECOACH_ENGINE_DATA_TOKENIZER_BYTE_LEVEL_BPE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/data/tokenizer/added_tokens.h"
#include "engine/data/tokenizer/bpe_merges.h"
#include "engine/data/tokenizer/split_pattern.h"
#include "engine/data/tokenizer/tokenizer.h"

namespace stagecoach::engine {

// What a tokenizer.json says of a byte-level BPE.
struct ByteLevelBpe {
  std::vector<std::string> tokens;        // what each id stands for
  std::array<int32_t, 256> symbols = {};  // of each byte
  BpeMerges merges;
  // Pieces that become one token, whatever the merges make of them.
  absl::flat_hash_map<std::string, int32_t> whole_pieces;
  // First these are found in a text, the second ones in what is left.
  std::array<AddedTokens, 2> added;
  // Then each divides the pieces that the one before has left.
  std::vector<SplitPattern> patterns;
  bool adds_prefix_space = false;
  std::vector<int32_t> before_text;
  std::optional<int32_t> end_of_text;
};

// Reads a tokenizer.json. InvalidArgument says where and what is wrong or not supported.
absl::StatusOr<ByteLevelBpe> ParseTokenizerJson(absl::string_view text);

// The tokenizer that it is.
absl::StatusOr<std::unique_ptr<Tokenizer>> ParseByteLevelBpe(absl::string_view text);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_TOKENIZER_BYTE_LEVEL_BPE_H_
