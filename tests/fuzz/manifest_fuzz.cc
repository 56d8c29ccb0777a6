#include <nlohmann/json.hpp>

#include "base/text/json.h"
#include "engine/checkpoint/manifest.h"
#include "tests/fuzz/support/fuzz.h"
#include "tests/fuzz/support/large_plan.h"

namespace stagecoach::fuzz {

// Manifests are compared as texts, since a loss may be NaN.
absl::Status Try(absl::string_view input) {
  const absl::StatusOr<nlohmann::json> json = base::ParseJson(input);
  if (json.ok() && json->is_object() && json->contains("plan") && IsLargePlan((*json)["plan"])) {
    return absl::OkStatus();
  }
  const absl::StatusOr<engine::Manifest> manifest = engine::ParseManifest(input);
  if (!manifest.ok()) return manifest.status();
  const std::string text = engine::ToJson(*manifest);
  const absl::StatusOr<engine::Manifest> again = engine::ParseManifest(text);
  STAGECOACH_CHECK(again.ok(), absl::StrCat(again.status().ToString(), " in\n", text));
  STAGECOACH_CHECK(engine::ToJson(*again) == text, text);
  return absl::OkStatus();
}

}  // namespace stagecoach::fuzz
