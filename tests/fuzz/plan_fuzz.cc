#include <cstdint>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "partition/files/plan_file.h"
#include "schedule/generators.h"
#include "tests/fuzz/fuzz.h"

namespace stagecoach::fuzz {
namespace {

// A plan may name a schedule of millions of passes, with which this would take a minute.
bool IsLarge(absl::string_view input) {
  constexpr uint64_t kMaxMicroBatches = 1024;
  const absl::StatusOr<nlohmann::json> plan = base::ParseJson(input);
  if (!plan.ok() || !plan->is_object()) return false;
  const auto found = plan->find("micro_batches");
  if (found == plan->end() || !found->is_number_unsigned()) return false;
  const uint64_t micro_batches = found->get<uint64_t>();
  return micro_batches > kMaxMicroBatches && micro_batches <= schedule::kMaxPasses;
}

}  // namespace

absl::Status Try(absl::string_view input) {
  if (IsLarge(input)) return absl::OkStatus();
  return CheckRoundTrip<partition::PlanFile>(input, partition::ParsePlanJson,
                                             partition::ToPlanJson);
}

}  // namespace stagecoach::fuzz
