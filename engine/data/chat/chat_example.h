#ifndef STAGECOACH_ENGINE_DATA_CHAT_CHAT_EXAMPLE_H_
#define STAGECOACH_ENGINE_DATA_CHAT_CHAT_EXAMPLE_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/data/chat/chat_file.h"
#include "engine/data/chat/chat_template.h"
#include "engine/data/tokenizer/tokenizer.h"

namespace stagecoach::engine {

enum class TrainOn : uint8_t {
  kAll,      // every token
  kAnswers,  // those that the model has to say: answers of the assistant, completions
};

struct ChatTokens {
  std::vector<int32_t> ids;
  std::vector<uint8_t> trained;  // for each id: 1 if the model must learn to say it, 0 if not
};

// Turns an example into ids.
//
// A conversation needs a template (`chat`), and its ids are those of the rendered text as the
// library tokenizers encodes it with add_special_tokens=False: what the tokenizer's post-processor
// puts around a text is left out, and a token that begins or ends texts is there if and only if the
// template writes it. With kAnswers, the tokens of answers are trained, including the stop, and
// none if there is no answer. A stop that the template leaves to the tokenizer is its end-of-text
// token.
//
// With a template, a prompt is a user message and its completion the answer. Without one, both are
// joined as they are. Such a text, and a plain text, which needs no template, gets what the
// post-processor puts in front, unless the text begins with it already, and ends in the end-of-text
// token, if the tokenizer has one. With kAnswers, the completion and the end of the text are
// trained, and all of a plain text.
//
// A token belongs to an answer if it is not in the longest common prefix of the ids of the text and
// of those of the text up to the answer: one that begins before it and ends in it is trained.
//
// Models of SentencePiece (".model") take the markers of templates for text, unless they are
// symbols that their users defined. The time is the length of the text times the number of answers.
//
// InvalidArgument: a conversation without a template, or one that RenderChat refuses.
// FailedPrecondition: the template leaves the stop to the tokenizer, which has no end-of-text token
// that can be written. Errors of Tokenizer::Encode.
absl::StatusOr<ChatTokens> TokenizeChat(const Tokenizer& tokenizer, const ChatTemplate* chat,
                                        const ChatExample& example, TrainOn train_on);

// Returns the ids of a conversation that asks for an answer, encoded in the same way, for
// generation. Errors as above.
absl::StatusOr<std::vector<int32_t>> EncodeChatPrompt(const Tokenizer& tokenizer,
                                                      const ChatTemplate& chat,
                                                      absl::Span<const ChatMessage> messages);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_CHAT_CHAT_EXAMPLE_H_
