#include "tools/stagecoach/terminal/json_line.h"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_format.h"

namespace stagecoach::tools {

std::string JsonLine(const nlohmann::ordered_json& object) {
  using Handler = nlohmann::ordered_json::error_handler_t;
  return object.dump(/*indent=*/-1, ' ', /*ensure_ascii=*/false, Handler::replace) + "\n";
}

void PrintJsonLine(const nlohmann::ordered_json& object) {
  absl::PrintF("%s", JsonLine(object));
  std::fflush(stdout);
}

}  // namespace stagecoach::tools
