#include "partition/plan/rank_report.h"

#include "base/status_macros.h"

namespace stagecoach::partition {

absl::StatusOr<RankReport> ReportRank(const schedule::Schedule& training,
                                      const schedule::Schedule& evaluation, schedule::Rank rank,
                                      absl::Span<const schedule::StageMemory> stages,
                                      const schedule::CollectiveMemory& collectives) {
  RankReport report;
  report.stages = training.StagesOf(rank);
  ASSIGN_OR_RETURN(report.training, schedule::PlanMemory(training, rank, stages, collectives));
  ASSIGN_OR_RETURN(report.evaluation, schedule::PlanMemory(evaluation, rank, stages, collectives));
  return report;
}

}  // namespace stagecoach::partition
