#include <cstdint>
#include <variant>
#include <vector>

#include "engine/data/chat/chat_file.h"
#include "engine/data/chat/chat_template.h"
#include "tests/fuzz/support/fuzz.h"
#include "tests/fuzz/support/memory_file.h"

namespace stagecoach::fuzz {
namespace {

// Answers are in the text, in order, and hold at least the stop.
void CheckAnswers(const engine::ChatTemplate& chat, const engine::RenderedChat& rendered) {
  size_t done = 0;
  for (const engine::ByteRange& answer : rendered.answers) {
    STAGECOACH_CHECK(done <= answer.begin && answer.begin + chat.stop.size() <= answer.end &&
                         answer.end <= rendered.text.size(),
                     absl::StrCat(answer.begin, " to ", answer.end));
    done = answer.end;
  }
}

}  // namespace

// The input is a file of JSON lines.
absl::Status Try(absl::string_view input) {
  static const MemoryFile file;
  file.Write(input);
  int64_t last_line = 0;
  return engine::ReadChatFile(
      file.path(), [&](int64_t line, const engine::ChatExample& example) -> absl::Status {
        STAGECOACH_CHECK(line > last_line, line);
        last_line = line;
        const auto* const conversation = std::get_if<engine::Conversation>(&example);
        if (conversation == nullptr) return absl::OkStatus();
        STAGECOACH_CHECK(!conversation->messages.empty(), line);
        for (const std::string& name : engine::ChatTemplateNames()) {
          const engine::ChatTemplate chat = engine::FindChatTemplate(name).value();
          const auto rendered = engine::RenderChat(chat, conversation->messages, line % 2 == 0);
          if (rendered.ok()) CheckAnswers(chat, *rendered);
        }
        return absl::OkStatus();
      });
}

}  // namespace stagecoach::fuzz
