#ifndef STAGECOACH_TOOLS_STAGECOACH_TERMINAL_JSON_LINE_H_
#define STAGECOACH_TOOLS_STAGECOACH_TERMINAL_JSON_LINE_H_

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace stagecoach::tools {

// What `--json` prints: an object on one line of standard output, at once, so that a reader at the
// other end of a pipe follows. Bytes of strings that are not UTF-8 become U+FFFD.
std::string JsonLine(const nlohmann::ordered_json& object);
void PrintJsonLine(const nlohmann::ordered_json& object);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_TERMINAL_JSON_LINE_H_
