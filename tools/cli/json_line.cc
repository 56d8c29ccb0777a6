#include "tools/cli/json_line.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"

namespace stagecoach::tools {

void PrintJsonLine(const nlohmann::ordered_json& object) {
  using Handler = nlohmann::ordered_json::error_handler_t;
  absl::PrintF("%s\n", object.dump(/*indent=*/-1, ' ', /*ensure_ascii=*/false, Handler::replace));
  std::fflush(stdout);
}

}  // namespace stagecoach::tools
