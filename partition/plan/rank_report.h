#ifndef STAGECOACH_PARTITION_PLAN_RANK_REPORT_H_
#define STAGECOACH_PARTITION_PLAN_RANK_REPORT_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "schedule/ir/schedule.h"
#include "schedule/memory/memory_plan.h"

namespace stagecoach::partition {

// The memory of one device, for all its stages together, and where everything lies in it.
struct RankReport {
  std::vector<schedule::StageId> stages;  // ascending
  // Both have the same resident memory and workspace.
  schedule::MemoryPlan training, evaluation;

  int64_t peak_bytes() const { return std::max(training.peak_bytes(), evaluation.peak_bytes()); }
};

// Plans the memory of `rank` under a plan's two lowered schedules, with the tables of collectives.
// `stages`: those of the whole plan; only those on the rank are read. Errors: those of PlanMemory.
absl::StatusOr<RankReport> ReportRank(const schedule::Schedule& training,
                                      const schedule::Schedule& evaluation, schedule::Rank rank,
                                      absl::Span<const schedule::StageMemory> stages,
                                      const schedule::CollectiveMemory& collectives);

// Does the same for every rank; index: rank. Ranks that do the same with stages of the same sizes
// share the work.
absl::StatusOr<std::vector<RankReport>> ReportRanks(const schedule::Schedule& training,
                                                    const schedule::Schedule& evaluation,
                                                    absl::Span<const schedule::StageMemory> stages,
                                                    const schedule::CollectiveMemory& collectives);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_PLAN_RANK_REPORT_H_
