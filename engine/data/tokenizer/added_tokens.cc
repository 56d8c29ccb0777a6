#include "engine/data/tokenizer/added_tokens.h"

#include <algorithm>
#include <functional>

#include "absl/strings/match.h"
#include "engine/data/tokenizer/characters.h"

namespace stagecoach::engine {

void AddedTokens::Add(const std::string& content, const Token& token) {
  tokens_.emplace(content, token);
  has_single_words_ = has_single_words_ || token.single_word;
  strips_left_ = strips_left_ || token.strips_left;
  strips_right_ = strips_right_ || token.strips_right;
  begins_[static_cast<uint8_t>(content.front())] = true;
  const auto place =
      std::lower_bound(lengths_.begin(), lengths_.end(), content.size(), std::greater<>());
  if (place == lengths_.end() || *place != content.size()) lengths_.insert(place, content.size());
}

const std::pair<const std::string, AddedTokens::Token>* AddedTokens::LongestAt(
    absl::string_view text) const {
  if (!begins_[static_cast<uint8_t>(text.front())]) return nullptr;
  for (const size_t length : lengths_) {
    if (length > text.size()) continue;
    const auto found = tokens_.find(text.substr(0, length));
    if (found != tokens_.end()) return &*found;
  }
  return nullptr;
}

AddedTokens::Found AddedTokens::Find(absl::string_view text, bool follows_word) const {
  if (empty()) return {};
  for (size_t i = 0; i < text.size(); ++i) {
    const auto* const found = LongestAt(text.substr(i));
    if (found == nullptr) continue;
    const Token& token = found->second;
    size_t begin = i, end = i + found->first.size();
    if (token.single_word && ((i == 0 ? follows_word : EndsInWordCharacter(text.substr(0, i))) ||
                              BeginsWithWordCharacter(text.substr(end)))) {
      i = end - 1;
      continue;
    }
    if (token.strips_left) begin = WithoutTrailingSpace(text.substr(0, i)).size();
    if (token.strips_right) end = text.size() - WithoutLeadingSpace(text.substr(end)).size();
    return {begin, end - begin, token.id};
  }
  return {};
}

size_t AddedTokens::OpenAt(absl::string_view text) const {
  if (empty()) return text.size();
  size_t open = text.size();
  // White space at the end may belong to a token in front of it.
  const size_t end = strips_right_ ? WithoutTrailingSpace(text).size() : text.size();
  const size_t from = end - std::min(lengths_.front(), end);
  for (size_t i = from; i < text.size() && open == text.size(); ++i) {
    if (!begins_[static_cast<uint8_t>(text[i])]) continue;
    const absl::string_view rest = text.substr(i);
    for (const auto& [content, token] : tokens_) {
      const bool is_cut = content.size() > rest.size() && absl::StartsWith(content, rest);
      const bool is_last = absl::StartsWith(rest, content) &&
                           ((token.single_word && content.size() == rest.size()) ||
                            (token.strips_right && i + content.size() >= end));
      if (is_cut || is_last) open = i;
    }
  }
  return strips_left_ ? WithoutTrailingSpace(text.substr(0, open)).size() : open;
}

}  // namespace stagecoach::engine
