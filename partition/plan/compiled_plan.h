#ifndef STAGECOACH_PARTITION_PLAN_COMPILED_PLAN_H_
#define STAGECOACH_PARTITION_PLAN_COMPILED_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "partition/cost/layer_cost.h"
#include "partition/cost/stage_memory.h"
#include "partition/plan/plan.h"
#include "partition/plan/rank_report.h"
#include "schedule/ir/schedule.h"
#include "schedule/memory/memory_plan.h"

namespace stagecoach::partition {

// One stage of a plan.
struct StageReport {
  schedule::Rank rank;
  int first_layer = 0;
  int last_layer = 0;
  int64_t parameters = 0;
  double time_share = 0;  // of the whole batch's computing time; the shares sum to 1
  schedule::StageMemory memory;
};

// A plan with everything that follows from it and the model's layers, so that nothing is lowered,
// proved or sized again. The peak of a device covers training and evaluation.
struct CompiledPlan {
  Plan plan;
  // Shared, since they can be large; null only before it is compiled.
  std::shared_ptr<const LoweredSchedules> lowered;
  std::vector<StageReport> stages;  // index: stage
  std::vector<RankReport> ranks;    // index: rank; of one device of each

  const StageReport& of(schedule::StageId stage) const {
    return stages[static_cast<size_t>(stage.value())];
  }
  const RankReport& of(schedule::Rank rank) const {
    return ranks[static_cast<size_t>(rank.value())];
  }
  std::vector<schedule::StageMemory> memory_of_stages() const;
};

// Compiles a plan. `layers`: those of the whole model. Errors: those of LowerPlan; InvalidArgument
// if the plan is for another number of layers, recomputes one that cannot repeat F, or a size is
// negative.
absl::StatusOr<CompiledPlan> CompilePlan(
    Plan plan, const std::vector<LayerCost>& layers, const EndMemory& ends,
    schedule::Transfers transfers = schedule::Transfers::kSeparate,
    const schedule::CollectiveMemory& collectives = {});
// Does the same for a plan that is lowered, and whose stages take that memory. Errors: those of
// PlanMemory.
absl::StatusOr<CompiledPlan> CompileLowered(Plan plan,
                                            std::shared_ptr<const LoweredSchedules> lowered,
                                            absl::Span<const LayerCost> layers,
                                            absl::Span<const schedule::StageMemory> memory);

// Returns the part of a device's peak that is neither stash nor weights, gradients or optimizer
// state of its stages.
int64_t BufferBytes(const CompiledPlan& plan, schedule::Rank rank);

// Returns the most host memory that a device needs for what the plan has there.
int64_t MostHostBytes(const CompiledPlan& plan);
// Returns what that is: "stashes", "the optimizer's state", or both.
std::string DescribeHostContents(const Plan& plan);

// Returns a table of 80 columns, unless its numbers need more. A row for each stage, grouped by
// device: device, stage, layers, share of the time, and bytes of weights, gradients and optimizer
// state. The device's first row has what its stages share: stash (peak), buffers (BufferBytes),
// peak.
std::string PlanTable(const CompiledPlan& plan);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_PLAN_COMPILED_PLAN_H_
