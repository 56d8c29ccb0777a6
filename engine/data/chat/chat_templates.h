#ifndef STAGECOACH_ENGINE_DATA_CHAT_CHAT_TEMPLATES_H_
#define STAGECOACH_ENGINE_DATA_CHAT_CHAT_TEMPLATES_H_

#include <vector>

#include "absl/types/span.h"
#include "engine/data/chat/chat_template.h"

namespace stagecoach::engine {

// A row of the table of chat templates: what it writes, and by what a program in Jinja that writes
// the same is recognized. Quotes in markers are single; those of the program may be double.
struct BuiltInChatTemplate {
  ChatTemplate chat;
  std::vector<const char*> has;
  std::vector<const char*> lacks;
};

absl::Span<const BuiltInChatTemplate> BuiltInChatTemplates();

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_CHAT_CHAT_TEMPLATES_H_
