#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "base/text/json.h"
#include "base/text/line.h"
#include "engine/data/chat/chat_template.h"
#include "engine/data/chat/chat_templates.h"

namespace stagecoach::engine {
namespace {

constexpr int64_t kMaxChatConfigBytes = int64_t{16} << 20;

// A program in Jinja, and where it is.
struct Program {
  std::string place;
  std::string text;
};

// Finds the program among those of tokenizer_config.json; nullopt: it has none.
absl::StatusOr<std::optional<std::string>> ProgramIn(const nlohmann::json& config) {
  if (!config.is_object()) return absl::InvalidArgumentError("expected an object");
  const auto found = config.find("chat_template");
  if (found == config.end() || found->is_null()) return std::nullopt;
  if (found->is_string()) return found->get<std::string>();
  if (!found->is_array()) {
    return absl::InvalidArgumentError("$.chat_template: expected a string or a list");
  }
  for (const nlohmann::json& one : *found) {
    if (!one.is_object() || one.value("name", nlohmann::json()) != "default") continue;
    const auto text = one.find("template");
    if (text != one.end() && text->is_string()) return text->get<std::string>();
  }
  return absl::FailedPreconditionError(
      "none of its chat templates is called \"default\"; name one with --chat-template");
}

absl::StatusOr<Program> FindProgram(const std::string& folder) {
  const std::string jinja = folder + "/chat_template.jinja";
  if (base::Exists(jinja)) {
    ASSIGN_OR_RETURN(std::string text, base::ReadFile(jinja, kMaxChatConfigBytes));
    return Program{jinja, std::move(text)};
  }
  const std::string path = folder + "/tokenizer_config.json";
  if (base::Exists(path)) {
    ASSIGN_OR_RETURN(const std::string text, base::ReadFile(path, kMaxChatConfigBytes));
    const auto parse = [&]() -> absl::StatusOr<std::optional<std::string>> {
      ASSIGN_OR_RETURN(const nlohmann::json config, base::ParseJson(text));
      return ProgramIn(config);
    };
    absl::StatusOr<std::optional<std::string>> program = parse();
    RETURN_IF_ERROR(base::InFile(program.status(), path));
    if (program->has_value()) return Program{path, **std::move(program)};
  }
  return base::DataError(
      absl::StrCat(folder, " has no chat template, neither chat_template.jinja nor \"",
                   "chat_template\" in tokenizer_config.json; name one with --chat-template"),
      absl::StatusCode::kNotFound);
}

// Gives ChatML the default system message that the program writes. Returns false if it writes one
// that is not plain text.
bool FindDefaultSystem(absl::string_view program, ChatTemplate& chat) {
  constexpr absl::string_view kBegin = "<|im_start|>system", kEnd = "<|im_end|>";
  constexpr auto kNowhere = absl::string_view::npos;
  for (size_t at = program.find(kBegin); at != kNowhere; at = program.find(kBegin, at + 1)) {
    absl::string_view rest = program.substr(at + kBegin.size());
    // A string of Jinja spells the line's end, and text outside of strings has it.
    if (!absl::ConsumePrefix(&rest, "\\n") && !absl::ConsumePrefix(&rest, "\n")) continue;
    if (absl::StartsWith(rest, "'") || absl::StartsWith(rest, "{")) continue;
    const size_t end = rest.find(kEnd);
    const absl::string_view text = rest.substr(0, end);
    if (end == kNowhere || text.find_first_of("'{}\\") != kNowhere) return false;
    chat.default_system = std::string(text);
  }
  // Other ways to write a default are not understood.
  return chat.default_system.has_value() || !absl::StrContains(program, "You are");
}

absl::StatusOr<ChatTemplate> Recognize(const Program& program) {
  const std::string text = absl::StrReplaceAll(program.text, {{"\"", "'"}});
  const auto is_in = [&](const char* marker) { return absl::StrContains(text, marker); };
  for (const BuiltInChatTemplate& row : BuiltInChatTemplates()) {
    if (row.has.empty() || !std::all_of(row.has.begin(), row.has.end(), is_in) ||
        std::any_of(row.lacks.begin(), row.lacks.end(), is_in)) {
      continue;
    }
    ChatTemplate chat = row.chat;
    if (chat.name != "chatml") return chat;
    if (!FindDefaultSystem(text, chat)) break;
    ASSIGN_OR_RETURN(ChatTemplate qwen, FindChatTemplate("qwen2.5"));
    return chat.default_system == qwen.default_system ? std::move(qwen) : std::move(chat);
  }
  return base::DataError(
      absl::StrCat(program.place, ": the chat template is none of those known (",
                   absl::StrJoin(ChatTemplateNames(), ", "), "); name one with --chat-template"),
      absl::StatusCode::kFailedPrecondition);
}

}  // namespace

absl::StatusOr<ChatTemplate> RecognizeChatTemplate(const std::string& folder) {
  ASSIGN_OR_RETURN(const Program program, FindProgram(folder));
  return Recognize(program);
}

}  // namespace stagecoach::engine
