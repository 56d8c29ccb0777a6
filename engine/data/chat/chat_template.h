#ifndef STAGECOACH_ENGINE_DATA_CHAT_CHAT_TEMPLATE_H_
#define STAGECOACH_ENGINE_DATA_CHAT_CHAT_TEMPLATE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace stagecoach::engine {

// One message of a conversation.
struct ChatMessage {
  std::string role;  // "system", "user" or "assistant"
  std::string content;
};

// How a conversation is written as one text: data in place of the program in Jinja that a model of
// Hugging Face's carries. Tools, images and thoughts that are kept apart have no place in it.
struct ChatTemplate {
  // What is written around the content of a message.
  struct Turn {
    std::string begin;
    std::string end;
    bool trims = false;  // the content's white space at both ends is dropped, as Python's strip()
  };
  enum class SystemPlace : uint8_t {
    kTurn,       // a turn of its own
    kFirstUser,  // in front of the content of the first user message, within its turn
    kLastUser,   // the same of the last
    kNone,       // a system message is refused
  };

  std::string name;
  std::string begin;  // begins the text
  Turn system;
  Turn user;
  Turn assistant;
  // Ends an answer and is part of it: the model has to say it. `assistant.end` follows. "": the
  // tokenizer's end-of-text token, which TokenizeChat fills in (engine/data/chat/chat_example.h).
  std::string stop;
  std::string answer_prompt;  // ends a text that asks for an answer
  std::string end;            // ends any other text
  // The system message of a conversation that has none. It may be empty and yet be written.
  std::optional<std::string> default_system;
  SystemPlace system_place = SystemPlace::kTurn;
  bool alternates = false;  // user and assistant must take turns, and the user begins
};

// The built-in templates:
//   chatml      <|im_start|>user\n…<|im_end|>\n, without a default system message
//   qwen2.5     the same with that of Qwen 2.5
//   llama3      Llama 3
//   llama3.1    Llama 3.1 to 3.3, whose system message begins with two dates. Llama 3.2's own
//               template writes the day on which it is called; this one always writes the one of
//               3.1, 26 Jul 2024
//   mistral     Mistral 7B Instruct 0.1 and 0.2
//   mistral-v3  Mistral 7B Instruct 0.3. The system message is in front of the last user message,
//               as Mistral's own library puts it, even if an answer follows; the published Jinja
//               template leaves it out then
//   gemma       Gemma 1 to 3, with Gemma 3's place for a system message, which 1 and 2 refuse
//   phi3        Phi 3 mini and 3.5 mini, which leaves an empty system message out; this writes it
//   alpaca      ### Instruction: and ### Response:, with the preamble of Stanford Alpaca as the
//               default system message and the tokenizer's end-of-text token as the stop
std::vector<std::string> ChatTemplateNames();

// InvalidArgument, of class kUsage: there is no such built-in template. The message lists them.
absl::StatusOr<ChatTemplate> FindChatTemplate(absl::string_view name);

// Reads a template from a TOML file. Its keys are the fields of ChatTemplate:
//   begin = "<s>"
//   stop = "</s>"
//   answer_prompt = "…"                # if absent, what begins the assistant's turn
//   end = ""
//   default_system = "Be brief."
//   system_place = "turn"              # or "first-user", "last-user"
//   alternates = false
//   [user]                             # the same keys in [assistant], and in [system], without
//   begin = "[INST] "                  # which a system message is refused
//   end = " [/INST]"
//   trim = false
// [user] and [assistant] are required; what else is absent is empty or false. NotFound: there is no
// such file. InvalidArgument: it is malformed or has an unknown key. Every error names the file.
absl::StatusOr<ChatTemplate> LoadChatTemplate(const std::string& path);

// Returns the template of a model in a Hugging Face folder: chat_template.jinja or, if there is
// none, "chat_template" of tokenizer_config.json, of several the one called "default". Programs in
// Jinja are not run, but recognized as a built-in template by the markers in them; "chatml" may get
// another default system message. NotFound: the folder has none. FailedPrecondition: it is not
// recognized. InvalidArgument: tokenizer_config.json is malformed.
absl::StatusOr<ChatTemplate> RecognizeChatTemplate(const std::string& folder);

// Bytes of a text, from `begin` up to but not including `end`.
struct ByteRange {
  size_t begin = 0;
  size_t end = 0;
};

struct RenderedChat {
  std::string text;
  // For each message of the assistant, in order, what the model has to say after answer_prompt,
  // including the stop.
  std::vector<ByteRange> answers;
};

// Writes a conversation as one text: what apply_chat_template(messages, tokenize=False,
// add_generation_prompt=for_answer) returns in the library transformers. InvalidArgument: the
// conversation is empty, has an unknown role, a system message that is not the first or has no
// place, or turns that do not alternate although they must; one line, which counts messages from 1.
absl::StatusOr<RenderedChat> RenderChat(const ChatTemplate& chat,
                                        absl::Span<const ChatMessage> messages, bool for_answer);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_CHAT_CHAT_TEMPLATE_H_
