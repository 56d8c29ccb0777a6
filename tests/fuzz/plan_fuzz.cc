#include <nlohmann/json.hpp>

#include "base/text/json.h"
#include "partition/io/plan_file.h"
#include "tests/fuzz/support/fuzz.h"
#include "tests/fuzz/support/large_plan.h"

namespace stagecoach::fuzz {

absl::Status Try(absl::string_view input) {
  const absl::StatusOr<nlohmann::json> json = base::ParseJson(input);
  if (json.ok() && IsLargePlan(*json)) return absl::OkStatus();
  return CheckRoundTrip<partition::PlanFile>(input, partition::ParsePlanJson,
                                             partition::ToPlanJson);
}

}  // namespace stagecoach::fuzz
