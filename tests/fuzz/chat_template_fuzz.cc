#include "engine/data/chat/chat_template.h"
#include "tests/fuzz/support/fuzz.h"
#include "tests/fuzz/support/memory_file.h"

namespace stagecoach::fuzz {

// The input is a template in TOML. Each writes a conversation of a user and an assistant.
absl::Status Try(absl::string_view input) {
  static const MemoryFile file;
  file.Write(input);
  const absl::StatusOr<engine::ChatTemplate> chat = engine::LoadChatTemplate(file.path());
  if (!chat.ok()) return chat.status();
  const engine::ChatMessage messages[] = {{"user", " one "}, {"assistant", " two "}};
  for (const bool for_answer : {false, true}) {
    const auto rendered = engine::RenderChat(*chat, messages, for_answer);
    STAGECOACH_CHECK(rendered.ok(), rendered.status().ToString());
    STAGECOACH_CHECK(rendered->answers.size() == 1, rendered->text);
    const engine::ByteRange answer = rendered->answers[0];
    const std::string said = rendered->text.substr(answer.begin, answer.end - answer.begin);
    const std::string content = chat->assistant.trims ? "two" : " two ";
    STAGECOACH_CHECK(said.find(content + chat->stop) != std::string::npos, rendered->text);
  }
  return absl::OkStatus();
}

}  // namespace stagecoach::fuzz
