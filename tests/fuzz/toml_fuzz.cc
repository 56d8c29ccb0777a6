#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "base/text/json.h"
#include "base/text/line.h"
#include "base/text/toml.h"
#include "tests/fuzz/support/fuzz.h"

namespace stagecoach::fuzz {

// There is no writer, but what parses is a JSON value. Its lines can be found.
absl::Status Try(absl::string_view input) {
  const absl::StatusOr<nlohmann::json> value = base::ParseToml(input);
  if (!value.ok()) return value.status();
  const std::string text = value->dump();
  const absl::StatusOr<nlohmann::json> again = base::ParseJson(text);
  STAGECOACH_CHECK(again.ok(), absl::StrCat(again.status().ToString(), " in\n", text));
  STAGECOACH_CHECK(*again == *value, absl::StrCat("reads back as another value:\n", text));
  for (const auto& [key, member] : value->items()) {
    const std::string path = absl::StrCat("$.", key, member.is_array() ? "[0]" : "", ": wrong");
    const absl::Status located = base::WithTomlPlace(absl::InvalidArgumentError(path), input);
    STAGECOACH_CHECK(absl::StrContains(located.message(), path), located.ToString());
  }
  return absl::OkStatus();
}

}  // namespace stagecoach::fuzz
