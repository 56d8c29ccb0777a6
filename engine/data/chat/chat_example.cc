#include "engine/data/chat/chat_example.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"

namespace stagecoach::engine {
namespace {

using IdSpan = absl::Span<const int32_t>;

size_t CommonPrefix(IdSpan a, IdSpan b) {
  const auto differ = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return static_cast<size_t>(differ.first - a.begin());
}

// Encodes texts without the tokens that the post-processor puts around them.
class BareEncoder {
 public:
  static absl::StatusOr<BareEncoder> Create(const Tokenizer& tokenizer) {
    ASSIGN_OR_RETURN(std::vector<int32_t> around, tokenizer.Encode(""));
    // Where the text belongs among these tokens is seen with one that is not empty.
    ASSIGN_OR_RETURN(const std::vector<int32_t> with_text, tokenizer.Encode("a"));
    const size_t front = CommonPrefix(around, with_text);
    return BareEncoder(tokenizer, std::move(around), front);
  }

  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text) const {
    ASSIGN_OR_RETURN(std::vector<int32_t> ids, tokenizer_.Encode(text));
    ids.erase(ids.end() - static_cast<std::ptrdiff_t>(around_.size() - front_), ids.end());
    ids.erase(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(front_));
    return ids;
  }

  // Returns the tokens in front of a text.
  IdSpan front() const { return IdSpan(around_).first(front_); }

 private:
  BareEncoder(const Tokenizer& tokenizer, std::vector<int32_t> around, size_t front)
      : tokenizer_(tokenizer), around_(std::move(around)), front_(front) {}

  const Tokenizer& tokenizer_;
  const std::vector<int32_t> around_;
  const size_t front_;
};

absl::StatusOr<ChatTemplate> WithStop(const Tokenizer& tokenizer, const ChatTemplate& chat) {
  ChatTemplate filled = chat;
  if (filled.stop.empty() && tokenizer.end_of_text().has_value()) {
    filled.stop = std::string(tokenizer.BytesOf(*tokenizer.end_of_text()));
  }
  if (!filled.stop.empty()) return filled;
  return absl::FailedPreconditionError(
      absl::StrCat("in ", chat.name, ", an answer ends in the tokenizer's end-of-text token, and ",
                   "this tokenizer has none that can be written in a text"));
}

absl::StatusOr<ChatTokens> TokenizeConversation(const Tokenizer& tokenizer,
                                                const ChatTemplate& chat,
                                                absl::Span<const ChatMessage> messages,
                                                TrainOn train_on) {
  ASSIGN_OR_RETURN(const ChatTemplate filled, WithStop(tokenizer, chat));
  ASSIGN_OR_RETURN(const RenderedChat rendered, RenderChat(filled, messages, false));
  ASSIGN_OR_RETURN(const BareEncoder encoder, BareEncoder::Create(tokenizer));
  ChatTokens tokens;
  ASSIGN_OR_RETURN(tokens.ids, encoder.Encode(rendered.text));
  tokens.trained.assign(tokens.ids.size(), train_on == TrainOn::kAll ? 1 : 0);
  if (train_on == TrainOn::kAll) return tokens;
  const absl::string_view text = rendered.text;
  const auto tokens_before = [&](size_t bytes) -> absl::StatusOr<size_t> {
    if (bytes == text.size()) return tokens.ids.size();
    ASSIGN_OR_RETURN(const std::vector<int32_t> ids, encoder.Encode(text.substr(0, bytes)));
    return CommonPrefix(ids, tokens.ids);
  };
  for (const ByteRange& answer : rendered.answers) {
    ASSIGN_OR_RETURN(const size_t begin, tokens_before(answer.begin));
    ASSIGN_OR_RETURN(const size_t end, tokens_before(answer.end));
    for (size_t i = begin; i < end; ++i) tokens.trained[i] = 1;
  }
  return tokens;
}

// Tokenizes a text that no template is applied to, of which the part after `given_bytes` is to be
// learned.
absl::StatusOr<ChatTokens> TokenizePlain(const Tokenizer& tokenizer, absl::string_view text,
                                         size_t given_bytes) {
  ASSIGN_OR_RETURN(const BareEncoder encoder, BareEncoder::Create(tokenizer));
  ChatTokens tokens;
  ASSIGN_OR_RETURN(tokens.ids, encoder.Encode(text));
  size_t given = 0;
  if (given_bytes > 0) {
    ASSIGN_OR_RETURN(const std::vector<int32_t> ids, encoder.Encode(text.substr(0, given_bytes)));
    given = CommonPrefix(ids, tokens.ids);
  }
  const IdSpan front = encoder.front();
  if (CommonPrefix(front, tokens.ids) < front.size()) {
    tokens.ids.insert(tokens.ids.begin(), front.begin(), front.end());
    // The front of a text whose beginning is given is given as well.
    if (given_bytes > 0) given += front.size();
  }
  const std::optional<int32_t> end = tokenizer.end_of_text();
  if (end.has_value() && (tokens.ids.empty() || tokens.ids.back() != *end)) {
    tokens.ids.push_back(*end);
  }
  tokens.trained.assign(tokens.ids.size(), 1);
  std::fill_n(tokens.trained.begin(), given, 0);
  return tokens;
}

}  // namespace

absl::StatusOr<ChatTokens> TokenizeChat(const Tokenizer& tokenizer, const ChatTemplate* chat,
                                        const ChatExample& example, TrainOn train_on) {
  if (const auto* const plain = std::get_if<PlainText>(&example)) {
    return TokenizePlain(tokenizer, plain->text, 0);
  }
  if (const auto* const pair = std::get_if<PromptCompletion>(&example)) {
    if (chat == nullptr) {
      return TokenizePlain(tokenizer, pair->prompt + pair->completion,
                           train_on == TrainOn::kAll ? 0 : pair->prompt.size());
    }
    const ChatMessage messages[] = {{"user", pair->prompt}, {"assistant", pair->completion}};
    return TokenizeConversation(tokenizer, *chat, messages, train_on);
  }
  if (chat == nullptr) {
    return absl::InvalidArgumentError(
        "a conversation needs a chat template; name one with --chat-template");
  }
  return TokenizeConversation(tokenizer, *chat, std::get<Conversation>(example).messages, train_on);
}

absl::StatusOr<std::vector<int32_t>> EncodeChatPrompt(const Tokenizer& tokenizer,
                                                      const ChatTemplate& chat,
                                                      absl::Span<const ChatMessage> messages) {
  ASSIGN_OR_RETURN(const ChatTemplate filled, WithStop(tokenizer, chat));
  ASSIGN_OR_RETURN(const RenderedChat rendered, RenderChat(filled, messages, true));
  ASSIGN_OR_RETURN(const BareEncoder encoder, BareEncoder::Create(tokenizer));
  return encoder.Encode(rendered.text);
}

}  // namespace stagecoach::engine
