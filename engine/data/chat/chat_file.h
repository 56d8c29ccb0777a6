#ifndef STAGECOACH_ENGINE_DATA_CHAT_CHAT_FILE_H_
#define STAGECOACH_ENGINE_DATA_CHAT_CHAT_FILE_H_

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "engine/data/chat/chat_template.h"

namespace stagecoach::engine {

// The three kinds of examples for fine-tuning.
struct Conversation {
  std::vector<ChatMessage> messages;  // at least one
};
struct PromptCompletion {
  std::string prompt;
  std::string completion;
};
struct PlainText {
  std::string text;
};
using ChatExample = std::variant<Conversation, PromptCompletion, PlainText>;

// Reads a file of JSON lines, each of them one example, and passes them one by one, with the number
// of the line (from 1), to `take`. An error from `take` ends the call. The file may be larger than
// memory; a line may have 64 MiB.
//
// A line is an object of one of these kinds, and all lines are of the same:
//   {"messages": [{"role": "system", "content": "…"}, …]}     roles: system, user, assistant
//   {"conversations": [{"from": "human", "value": "…"}, …]}   ShareGPT's spelling of the same;
//   from:
//                                                             human, gpt, system, or a role
//   {"prompt": "…", "completion": "…"}
//   {"text": "…"}
// Other keys are ignored, and so are these if they are null, and a prompt or a completion without
// the other beside one of the other kinds. Blank lines, a byte order mark at the start, and
// carriage returns at the ends of lines are skipped.
//
// NotFound: there is no such file. InvalidArgument: a line is not as described, such as one whose
// content is a list of parts, or there is no example. An error about a line, including those from
// `take`, begins with "path:line: ", or with "path:line:column: " if the line is not JSON.
absl::Status ReadChatFile(
    const std::string& path,
    absl::FunctionRef<absl::Status(int64_t line, const ChatExample& example)> take);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_CHAT_CHAT_FILE_H_
