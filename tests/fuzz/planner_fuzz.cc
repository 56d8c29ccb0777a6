#include <cstdint>

#include "partition/cluster.h"
#include "partition/files/profile_file.h"
#include "partition/plan/plan.h"
#include "partition/search/planner.h"
#include "tests/fuzz/fuzz.h"

namespace stagecoach::fuzz {

// Any profile that reads can be planned with, whatever its numbers: they cannot overflow.
void Try(absl::string_view input) {
  const absl::StatusOr<partition::Profile> profile = partition::ParseProfileJson(input);
  constexpr int kMaxLayers = 6;  // so that an input takes little time
  if (!profile.ok() || profile->num_layers() > kMaxLayers) return;
  for (const int64_t memory_bytes : {int64_t{0}, int64_t{1'000'000'000}}) {
    const absl::StatusOr<partition::Receipt> receipt =
        partition::PlanJointly({.profile = *profile,
                                .cluster = partition::UniformCluster(/*devices=*/2, memory_bytes),
                                .batch_rows = 4 * profile->sizes.front().micro_batch_rows,
                                .schedule = "1f1b",
                                .micro_batches = 4});
    if (receipt.ok()) {
      STAGECOACH_CHECK_OK(partition::CheckPerformable(receipt->plan));
    } else {
      CheckRefusal(receipt.status());
    }
  }
}

}  // namespace stagecoach::fuzz
