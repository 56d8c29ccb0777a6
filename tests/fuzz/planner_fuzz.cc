#include <cstdint>

#include "partition/cost/cluster.h"
#include "partition/io/profile_file.h"
#include "partition/plan/plan.h"
#include "partition/search/planner.h"
#include "tests/fuzz/support/fuzz.h"

namespace stagecoach::fuzz {
namespace {

absl::Status PlanWith(const partition::Profile& profile, int64_t memory_bytes) {
  const absl::StatusOr<partition::PlanEvaluation> evaluation =
      partition::FindPlan({.profile = profile,
                           .cluster = partition::UniformCluster(/*devices=*/2, memory_bytes),
                           .batch_rows = 4 * profile.sizes.front().micro_batch_rows,
                           .schedule = "1f1b",
                           .micro_batches = 4});
  if (evaluation.ok()) STAGECOACH_CHECK_OK(partition::CheckPerformable(evaluation->plan()));
  return evaluation.status();
}

}  // namespace

// Any profile that can be read is planned with or refused, whatever its numbers: none overflows.
absl::Status Try(absl::string_view input) {
  const absl::StatusOr<partition::Profile> profile = partition::ParseProfileJson(input);
  if (!profile.ok()) return profile.status();
  // The limits keep the time for an input short. Rows are micro-batch sizes that it tries if memory
  // is short.
  constexpr int kMaxLayers = 6;
  constexpr int64_t kMaxRows = 1024;
  if (profile->num_layers() > kMaxLayers || profile->sizes.back().micro_batch_rows > kMaxRows) {
    return absl::OkStatus();
  }
  const absl::Status without_limit = PlanWith(*profile, 0);
  if (!without_limit.ok()) return without_limit;
  const absl::Status limited = PlanWith(*profile, 1'000'000'000);
  const bool blames_input = absl::IsResourceExhausted(limited) || absl::IsInvalidArgument(limited);
  STAGECOACH_CHECK(limited.ok() || blames_input, limited.ToString());
  return absl::OkStatus();
}

}  // namespace stagecoach::fuzz
