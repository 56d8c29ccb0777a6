#include <nlohmann/json.hpp>

#include "base/text/json.h"
#include "tests/fuzz/support/fuzz.h"

namespace stagecoach::fuzz {

absl::Status Try(absl::string_view input) {
  return CheckRoundTrip<nlohmann::json>(
      input, [](absl::string_view text) { return base::ParseJson(text); },
      [](const nlohmann::json& value) { return value.dump(); });
}

}  // namespace stagecoach::fuzz
