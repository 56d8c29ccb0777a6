#include "tools/stagecoach/generate/token_text.h"

#include <utility>

#include "engine/data/tokenizer/token_ids.h"

namespace stagecoach::tools {

TokenText::TokenText(std::shared_ptr<const engine::Tokenizer> tokenizer)
    : tokenizer_(std::move(tokenizer)) {
  if (tokenizer_ != nullptr) decoder_.emplace(*tokenizer_);
}

int64_t TokenText::vocabulary() const {
  return tokenizer_ == nullptr ? engine::kBytesVocabulary : tokenizer_->vocabulary();
}

absl::StatusOr<std::vector<int32_t>> TokenText::Encode(absl::string_view text) const {
  if (tokenizer_ != nullptr) return tokenizer_->Encode(text);
  std::vector<int32_t> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

std::string TokenText::Append(int32_t id) {
  return decoder_.has_value() ? decoder_->Append(id) : std::string(1, static_cast<char>(id));
}

std::string TokenText::Finish() { return decoder_.has_value() ? decoder_->Finish() : ""; }

}  // namespace stagecoach::tools
