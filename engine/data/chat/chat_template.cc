#include "engine/data/chat/chat_template.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "base/text/json.h"
#include "base/text/line.h"
#include "base/text/nearest.h"
#include "base/text/toml.h"
#include "engine/data/chat/chat_templates.h"

namespace stagecoach::engine {
namespace {

using base::ObjectReader;
using SystemPlace = ChatTemplate::SystemPlace;

constexpr int64_t kMaxTemplateBytes = int64_t{1} << 20;
constexpr char kSystem[] = "system";
constexpr char kUser[] = "user";
constexpr char kAssistant[] = "assistant";

std::string DidYouMean(absl::string_view word, absl::Span<const std::string> known) {
  const std::string nearest = base::Nearest(word, known);
  return nearest.empty() ? "" : absl::StrCat("; did you mean \"", nearest, "\"?");
}

// Drops what Python's str.strip() does: the characters of Unicode that are white space, and four
// separators of ASCII.
absl::string_view Trimmed(absl::string_view text) {
  static constexpr absl::string_view kSpaces[] = {
      "\t",     "\n",     "\v",     "\f",     "\r",     "\x1c",   "\x1d",   "\x1e",
      "\x1f",   " ",      "\u0085", "\u00a0", "\u1680", "\u2000", "\u2001", "\u2002",
      "\u2003", "\u2004", "\u2005", "\u2006", "\u2007", "\u2008", "\u2009", "\u200a",
      "\u2028", "\u2029", "\u202f", "\u205f", "\u3000"};
  const auto drops_from = [&](bool (*drop)(absl::string_view*, absl::string_view)) {
    return std::any_of(std::begin(kSpaces), std::end(kSpaces),
                       [&](absl::string_view space) { return drop(&text, space); });
  };
  while (drops_from(absl::ConsumePrefix)) continue;
  while (drops_from(absl::ConsumeSuffix)) continue;
  return text;
}

void AppendTurnBody(const ChatTemplate::Turn& turn, absl::string_view content, std::string& text) {
  absl::StrAppend(&text, turn.trims ? Trimmed(content) : content);
}

absl::Status CheckTurns(const ChatTemplate& chat, absl::Span<const ChatMessage> messages) {
  const size_t first = !messages.empty() && messages[0].role == kSystem ? 1 : 0;
  for (size_t i = first; chat.alternates && i < messages.size(); ++i) {
    const char* const expected = (i - first) % 2 == 0 ? kUser : kAssistant;
    if (messages[i].role == expected) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("message ", i + 1, " is of the ", messages[i].role, ", expected one of the ",
                     expected, ": in ", chat.name, ", user and assistant take turns"));
  }
  return absl::OkStatus();
}

absl::Status CheckMessages(const ChatTemplate& chat, absl::Span<const ChatMessage> messages) {
  if (messages.empty()) return absl::InvalidArgumentError("the conversation has no message");
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (role != kSystem && role != kUser && role != kAssistant) {
      return absl::InvalidArgumentError(absl::StrCat("message ", i + 1, " has the role \"",
                                                     absl::CHexEscape(role),
                                                     "\", expected system, user or assistant"));
    }
    if (role != kSystem) continue;
    if (i > 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("message ", i + 1, " is of the system, which only the first may be"));
    }
    if (chat.system_place == SystemPlace::kNone) {
      return absl::InvalidArgumentError(
          absl::StrCat("message 1 is of the system, which has no place in ", chat.name));
    }
  }
  return CheckTurns(chat, messages);
}

// Returns the index of the message that the system message is put into; nullopt: of none.
absl::StatusOr<std::optional<size_t>> UserWithSystem(const ChatTemplate& chat,
                                                     absl::Span<const ChatMessage> messages) {
  std::optional<size_t> found;
  if (chat.system_place == SystemPlace::kTurn) return found;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role != kUser) continue;
    found = i;
    if (chat.system_place == SystemPlace::kFirstUser) break;
  }
  if (found.has_value()) return found;
  return absl::InvalidArgumentError(absl::StrCat("a user message is missing, into which ",
                                                 chat.name, " puts the system message"));
}

absl::Status ReadTurn(absl::string_view key, ObjectReader& reader, ChatTemplate::Turn& turn) {
  ASSIGN_OR_RETURN(ObjectReader keys, reader.RequiredObject(key));
  ASSIGN_OR_RETURN(turn.begin, keys.OptionalString("begin", ""));
  ASSIGN_OR_RETURN(turn.end, keys.OptionalString("end", ""));
  ASSIGN_OR_RETURN(turn.trims, keys.OptionalBool("trim", false));
  return keys.Finish();
}

absl::StatusOr<SystemPlace> ReadPlace(ObjectReader& reader) {
  static const auto* const names =
      new std::vector<std::string>{"turn", "first-user", "last-user"};  // in the enum's order
  ASSIGN_OR_RETURN(const std::string name, reader.OptionalString("system_place", names->front()));
  const auto found = std::find(names->begin(), names->end(), name);
  if (found == names->end()) {
    return reader.Error("system_place",
                        absl::StrCat("\"", absl::CHexEscape(name), "\" is not known, expected one ",
                                     "of ", absl::StrJoin(*names, ", "), DidYouMean(name, *names)));
  }
  return static_cast<SystemPlace>(found - names->begin());
}

absl::StatusOr<ChatTemplate> ReadTemplate(const nlohmann::json& document) {
  ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Create(document));
  ChatTemplate chat;
  ASSIGN_OR_RETURN(chat.begin, reader.OptionalString("begin", ""));
  ASSIGN_OR_RETURN(chat.stop, reader.OptionalString("stop", ""));
  ASSIGN_OR_RETURN(chat.end, reader.OptionalString("end", ""));
  ASSIGN_OR_RETURN(chat.alternates, reader.OptionalBool("alternates", false));
  RETURN_IF_ERROR(ReadTurn(kUser, reader, chat.user));
  RETURN_IF_ERROR(ReadTurn(kAssistant, reader, chat.assistant));
  ASSIGN_OR_RETURN(chat.answer_prompt,
                   reader.OptionalString("answer_prompt", chat.assistant.begin));
  ASSIGN_OR_RETURN(chat.system_place, ReadPlace(reader));
  if (reader.Has("default_system")) {
    ASSIGN_OR_RETURN(chat.default_system, reader.RequiredString("default_system"));
  }
  if (reader.Has(kSystem)) {
    RETURN_IF_ERROR(ReadTurn(kSystem, reader, chat.system));
  } else if (chat.default_system.has_value()) {
    return reader.Error("default_system", "has no place, since there is no [system]");
  } else {
    chat.system_place = SystemPlace::kNone;
  }
  RETURN_IF_ERROR(reader.Finish());
  return chat;
}

}  // namespace

std::vector<std::string> ChatTemplateNames() {
  std::vector<std::string> names;
  for (const BuiltInChatTemplate& row : BuiltInChatTemplates()) names.push_back(row.chat.name);
  return names;
}

absl::StatusOr<ChatTemplate> FindChatTemplate(absl::string_view name) {
  for (const BuiltInChatTemplate& row : BuiltInChatTemplates()) {
    if (row.chat.name == name) return row.chat;
  }
  const std::vector<std::string> names = ChatTemplateNames();
  return base::UsageError(absl::StrCat("there is no chat template \"", absl::CHexEscape(name),
                                       "\", expected one of ", absl::StrJoin(names, ", "),
                                       DidYouMean(name, names)));
}

absl::StatusOr<ChatTemplate> LoadChatTemplate(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, base::ReadFile(path, kMaxTemplateBytes));
  const auto parse = [&]() -> absl::StatusOr<ChatTemplate> {
    ASSIGN_OR_RETURN(const nlohmann::json document, base::ParseToml(text));
    absl::StatusOr<ChatTemplate> chat = ReadTemplate(document);
    RETURN_IF_ERROR(base::WithTomlPlace(chat.status(), text));
    return chat;
  };
  absl::StatusOr<ChatTemplate> chat = parse();
  RETURN_IF_ERROR(base::InFile(chat.status(), path));
  chat->name = path;
  return chat;
}

absl::StatusOr<RenderedChat> RenderChat(const ChatTemplate& chat,
                                        absl::Span<const ChatMessage> messages, bool for_answer) {
  RETURN_IF_ERROR(CheckMessages(chat, messages));
  std::optional<std::string> system = chat.default_system;
  if (messages[0].role == kSystem) {
    system = messages[0].content;
    messages.remove_prefix(1);
  }
  std::string system_text;
  std::optional<size_t> user_with_system;
  if (system.has_value()) {
    ASSIGN_OR_RETURN(user_with_system, UserWithSystem(chat, messages));
    system_text = chat.system.begin;
    AppendTurnBody(chat.system, *system, system_text);
    absl::StrAppend(&system_text, chat.system.end);
  }
  RenderedChat rendered{.text = chat.begin};
  std::string& text = rendered.text;
  if (!user_with_system.has_value()) absl::StrAppend(&text, system_text);
  // Some templates begin an answer with a space that is not in the prompt: the model says it.
  const size_t prompt_bytes = absl::StartsWith(chat.assistant.begin, chat.answer_prompt)
                                  ? chat.answer_prompt.size()
                                  : chat.assistant.begin.size();
  for (size_t i = 0; i < messages.size(); ++i) {
    const bool is_answer = messages[i].role == kAssistant;
    const ChatTemplate::Turn& turn = is_answer ? chat.assistant : chat.user;
    const size_t turn_begin = text.size();
    absl::StrAppend(&text, turn.begin, user_with_system == i ? system_text : "");
    AppendTurnBody(turn, messages[i].content, text);
    if (is_answer) {
      absl::StrAppend(&text, chat.stop);
      rendered.answers.push_back({turn_begin + prompt_bytes, text.size()});
    }
    absl::StrAppend(&text, turn.end);
  }
  absl::StrAppend(&text, for_answer ? chat.answer_prompt : chat.end);
  return rendered;
}

}  // namespace stagecoach::engine
