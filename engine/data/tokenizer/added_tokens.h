#ifndef STAGECOACH_ENGINE_DATA_TOKENIZER_ADDED_TOKENS_H_
#define STAGECOACH_ENGINE_DATA_TOKENIZER_ADDED_TOKENS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

namespace stagecoach::engine {

// Tokens that are looked for in text verbatim. Thread-compatible; thread-safe once all are added.
class AddedTokens {
 public:
  struct Token {
    int32_t id = 0;
    bool single_word = false;  // neither preceded nor followed by a character of a word
    bool strips_left = false;  // includes the white space in front of it
    bool strips_right = false;
  };
  // Pre-condition: `content` is not empty. If the same content is added twice, the first counts.
  void Add(const std::string& content, const Token& token);
  bool empty() const { return tokens_.empty(); }

  struct Found {
    size_t begin = absl::string_view::npos;  // npos: there is none
    size_t bytes = 0;
    int32_t id = 0;
  };
  // Returns the leftmost token in `text`, and the longest of several there. `follows_word`: a
  // character of a word precedes `text`.
  Found Find(absl::string_view text, bool follows_word) const;

  // Returns the first place from which on all of `text` may be a part of a token whose end, or
  // whose neighbor, is not in it; text.size() if there is none. What Find returns before that place
  // does not depend on what follows `text`.
  size_t OpenAt(absl::string_view text) const;

 private:
  // Returns the longest token at the front of `text`; null: there is none.
  const std::pair<const std::string, Token>* LongestAt(absl::string_view text) const;

  absl::flat_hash_map<std::string, Token> tokens_;
  std::vector<size_t> lengths_;  // those that occur, longest first
  std::array<bool, 256> begins_ = {};
  bool has_single_words_ = false, strips_left_ = false, strips_right_ = false;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_TOKENIZER_ADDED_TOKENS_H_
