#include "engine/data/tokenizer/added_tokens.h"

#include <algorithm>
#include <functional>

namespace stagecoach::engine {

void AddedTokens::Add(const std::string& content, int32_t id) {
  ids_.emplace(content, id);
  begins_[static_cast<uint8_t>(content.front())] = true;
  const auto place =
      std::lower_bound(lengths_.begin(), lengths_.end(), content.size(), std::greater<>());
  if (place == lengths_.end() || *place != content.size()) lengths_.insert(place, content.size());
}

AddedTokens::Found AddedTokens::Find(absl::string_view text) const {
  if (empty()) return {};
  for (size_t i = 0; i < text.size(); ++i) {
    if (!begins_[static_cast<uint8_t>(text[i])]) continue;
    for (const size_t length : lengths_) {
      if (length > text.size() - i) continue;
      const auto found = ids_.find(text.substr(i, length));
      if (found != ids_.end()) return {i, length, found->second};
    }
  }
  return {};
}

size_t AddedTokens::OpenAt(absl::string_view text) const {
  if (empty()) return text.size();
  const size_t most = lengths_.front() - 1;  // bytes of a token that is not whole
  for (size_t i = text.size() - std::min(most, text.size()); i < text.size(); ++i) {
    if (!begins_[static_cast<uint8_t>(text[i])]) continue;
    const absl::string_view rest = text.substr(i);
    for (const auto& [content, id] : ids_) {
      if (content.size() > rest.size() &&
          absl::string_view(content).substr(0, rest.size()) == rest) {
        return i;
      }
    }
  }
  return text.size();
}

}  // namespace stagecoach::engine
