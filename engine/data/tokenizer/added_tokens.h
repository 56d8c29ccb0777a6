#ifndef STAGECOACH_ENGINE_DATA_TOKENIZER_ADDED_TOKENS_H_
#define STAGECOACH_ENGINE_DATA_TOKENIZER_ADDED_TOKENS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

namespace stagecoach::engine {

// Tokens that are looked for in text as they are. Thread-compatible; thread-safe once all are
// added.
class AddedTokens {
 public:
  // Pre-condition: `content` is not empty. Of the same content twice, the first counts.
  void Add(const std::string& content, int32_t id);
  bool empty() const { return ids_.empty(); }

  struct Found {
    size_t begin = absl::string_view::npos;  // npos: there is none
    size_t bytes = 0;
    int32_t id = 0;
  };
  // The leftmost in `text`, and of several there the longest.
  Found Find(absl::string_view text) const;

  // The first place from which on all of `text` begins a token and is not all of it; text.size() if
  // there is none. What Find gives before it does not depend on what follows.
  size_t OpenAt(absl::string_view text) const;

 private:
  absl::flat_hash_map<std::string, int32_t> ids_;
  std::vector<size_t> lengths_;  // those that occur, the longest first
  std::array<bool, 256> begins_ = {};
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_TOKENIZER_ADDED_TOKENS_H_
