#include "engine/data/chat/chat_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "base/system/mapped_file.h"
#include "base/text/json.h"
#include "base/text/line.h"
#include "base/text/nearest.h"
#include "engine/data/file_name.h"

namespace stagecoach::engine {
namespace {

using nlohmann::json;

// How the two spellings of a conversation name things.
struct Spelling {
  const char* messages;
  const char* role;
  const char* content;
  std::vector<std::pair<std::string, const char*>> roles;  // as spelled, and ours
};

const Spelling& OpenAiSpelling() {
  static const auto* const spelling =
      new Spelling{"messages",
                   "role",
                   "content",
                   {{"system", "system"}, {"user", "user"}, {"assistant", "assistant"}}};
  return *spelling;
}

const Spelling& ShareGptSpelling() {
  static const auto* const spelling = new Spelling{"conversations",
                                                   "from",
                                                   "value",
                                                   {{"human", "user"},
                                                    {"gpt", "assistant"},
                                                    {"system", "system"},
                                                    {"user", "user"},
                                                    {"assistant", "assistant"}}};
  return *spelling;
}

bool HasValue(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && !found->is_null();
}

absl::StatusOr<const char*> RoleOf(const Spelling& spelling, const std::string& name,
                                   const base::ObjectReader& reader) {
  std::vector<std::string> known;
  for (const auto& [spelled, role] : spelling.roles) {
    if (spelled == name) return role;
    known.push_back(spelled);
  }
  const std::string nearest = base::Nearest(name, known);
  return reader.Error(
      spelling.role,
      absl::StrCat("\"", absl::CHexEscape(name), "\" is not known, expected one of ",
                   absl::StrJoin(known, ", "),
                   nearest.empty() ? "" : absl::StrCat("; did you mean \"", nearest, "\"?")));
}

absl::StatusOr<ChatMessage> ReadMessage(const Spelling& spelling, const json& value,
                                        const std::string& path) {
  ASSIGN_OR_RETURN(base::ObjectReader reader, base::ObjectReader::Create(value, path));
  ASSIGN_OR_RETURN(const std::string name, reader.RequiredString(spelling.role));
  ASSIGN_OR_RETURN(const char* const role, RoleOf(spelling, name, reader));
  // What is called would be missing in the text that the model learns.
  if (HasValue(value, "tool_calls") && !value["tool_calls"].empty()) {
    return reader.Error("tool_calls", "calls of tools are not supported");
  }
  const auto content = value.find(spelling.content);
  if (content != value.end() && content->is_array()) {
    return reader.Error(spelling.content,
                        "is a list of parts, which is not supported; expected a string");
  }
  ASSIGN_OR_RETURN(std::string text, reader.RequiredString(spelling.content));
  return ChatMessage{role, std::move(text)};
}

absl::StatusOr<ChatExample> ReadConversation(const Spelling& spelling, const json& line) {
  const std::string path = absl::StrCat("$.", spelling.messages);
  const json& messages = line[spelling.messages];
  ASSIGN_OR_RETURN(const base::ArrayReader list, base::ArrayReader::Create(messages, path));
  if (list.size() == 0) return absl::InvalidArgumentError(absl::StrCat(path, ": has no message"));
  Conversation conversation;
  for (size_t i = 0; i < list.size(); ++i) {
    ASSIGN_OR_RETURN(ChatMessage message,
                     ReadMessage(spelling, messages[i], absl::StrCat(path, "[", i, "]")));
    conversation.messages.push_back(std::move(message));
  }
  return conversation;
}

// Returns the keys of the kinds that a line has, as they are named in messages.
std::vector<absl::string_view> KindsOf(const json& line) {
  std::vector<absl::string_view> kinds;
  for (const char* const key : {"messages", "conversations", "text"}) {
    if (HasValue(line, key)) kinds.emplace_back(key);
  }
  if (HasValue(line, "prompt") && HasValue(line, "completion")) kinds.emplace_back("prompt");
  return kinds;
}

absl::StatusOr<ChatExample> ReadExample(absl::string_view text) {
  ASSIGN_OR_RETURN(const json line, base::ParseJson(text));
  ASSIGN_OR_RETURN(base::ObjectReader reader, base::ObjectReader::Create(line));
  const std::vector<absl::string_view> kinds = KindsOf(line);
  if (kinds.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("is of more than one kind: has \"", absl::StrJoin(kinds, "\" and \""), "\""));
  }
  const bool has_prompt = HasValue(line, "prompt");
  if (kinds.empty() && has_prompt != HasValue(line, "completion")) {
    return absl::InvalidArgumentError(has_prompt ? "has a \"prompt\" but no \"completion\""
                                                 : "has a \"completion\" but no \"prompt\"");
  }
  if (kinds.empty()) {
    return absl::InvalidArgumentError(
        "is no example: expected \"messages\", \"conversations\", \"prompt\" and \"completion\", "
        "or \"text\"");
  }
  if (kinds[0] == "messages") return ReadConversation(OpenAiSpelling(), line);
  if (kinds[0] == "conversations") return ReadConversation(ShareGptSpelling(), line);
  if (kinds[0] == "text") {
    ASSIGN_OR_RETURN(std::string all, reader.RequiredString("text"));
    return PlainText{std::move(all)};
  }
  PromptCompletion pair;
  ASSIGN_OR_RETURN(pair.prompt, reader.RequiredString("prompt"));
  ASSIGN_OR_RETURN(pair.completion, reader.RequiredString("completion"));
  return pair;
}

// Returns the error of a line of the file. Those of the JSON parser begin with a position in the
// line, whose number there is 1.
absl::Status InLine(const absl::Status& status, int64_t line, const std::string& path) {
  absl::string_view message = status.message();
  const bool has_column = absl::ConsumePrefix(&message, "1:");
  return base::InFile(
      base::WithMessage(status, absl::StrCat(line, has_column ? ":" : ": ", message)), path);
}

const char* KindName(const ChatExample& example) {
  constexpr const char* kNames[] = {"a conversation", "a prompt with its completion", "a text"};
  return kNames[example.index()];
}

}  // namespace

absl::Status ReadChatFile(
    const std::string& path,
    absl::FunctionRef<absl::Status(int64_t line, const ChatExample& example)> take) {
  ASSIGN_OR_RETURN(const base::MappedFile file,
                   base::MappedFile::OpenUncompressed(path, kMaxUncompressedBytes));
  absl::string_view rest = file.contents();
  absl::ConsumePrefix(&rest, "\xEF\xBB\xBF");
  const char* kind = nullptr;  // of the first example
  int64_t first_line = 0;
  for (int64_t line = 1; !rest.empty(); ++line) {
    const size_t length = std::min(rest.find('\n'), rest.size());
    const absl::string_view text = absl::StripAsciiWhitespace(rest.substr(0, length));
    const size_t indent = text.empty() ? 0 : static_cast<size_t>(text.data() - rest.data());
    const absl::string_view with_indent = rest.substr(0, indent + text.size());
    rest.remove_prefix(std::min(length + 1, rest.size()));
    if (text.empty()) continue;
    absl::StatusOr<ChatExample> example = ReadExample(with_indent);
    RETURN_IF_ERROR(InLine(example.status(), line, path));
    const char* const own_kind = KindName(*example);
    if (kind == nullptr) {
      kind = own_kind;
      first_line = line;
    }
    if (kind != own_kind) {
      return InLine(absl::InvalidArgumentError(
                        absl::StrCat("is ", own_kind, ", but line ", first_line, " is ", kind)),
                    line, path);
    }
    RETURN_IF_ERROR(InLine(take(line, *example), line, path));
  }
  if (kind != nullptr) return absl::OkStatus();
  return base::InFile(absl::InvalidArgumentError("has no example"), path);
}

}  // namespace stagecoach::engine
