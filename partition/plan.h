#ifndef STAGECOACH_PARTITION_PLAN_H_
#define STAGECOACH_PARTITION_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "partition/layer_cost.h"
#include "partition/stage_memory.h"
#include "schedule/memory.h"
#include "schedule/schedule.h"

namespace stagecoach::partition {

// How a model is spread over devices. Stage i runs on device i.
struct Plan {
  std::vector<int> first_layer;  // of each stage; ascending, starts with 0
  int num_layers = 0;
  std::string schedule = "1f1b";  // a name of schedule::Generators()
  int micro_batches = 1;
  int64_t micro_batch_rows = 1;

  int num_stages() const { return static_cast<int>(first_layer.size()); }
  int first(int stage) const { return first_layer[static_cast<size_t>(stage)]; }
  int last(int stage) const {
    return stage + 1 < num_stages() ? first(stage + 1) - 1 : num_layers - 1;
  }
  int64_t batch_rows() const { return micro_batches * micro_batch_rows; }

  friend bool operator==(const Plan&, const Plan&) = default;
};

// InvalidArgument unless the stages are non-empty, ascending and cover `num_layers` layers, and the
// counts are positive.
absl::Status CheckPlan(const Plan& plan);

struct PlanRequest {
  std::vector<LayerCost> layers;
  LossMemory loss;
  int stages = 1;
  std::string schedule = "1f1b";
  int micro_batches = 1;
  int64_t micro_batch_rows = 1;
  int64_t device_memory_bytes = 0;  // budget of every device; 0: unlimited
};

// The cut with the fastest slowest stage (PartitionChain over LayerCost::batch_ns) whose predicted
// peak fits every device; the peaks are those of ReportPlan.
// InvalidArgument: more stages than layers (names both), unknown schedule, non-positive counts,
// negative times or bytes. ResourceExhausted: no cut fits. The first line of the message names the
// stage that needs most on the roomiest cut (the one whose largest peak is least) and the smallest
// number of stages that fits, or says that none does; the table of that cut follows.
absl::StatusOr<Plan> MakePlan(const PlanRequest& request);

// What one stage of a plan takes.
struct StageReport {
  int first_layer = 0;
  int last_layer = 0;
  int64_t parameters = 0;
  double time_share = 0;  // of the whole batch's computing time; the shares sum to 1
  schedule::StageMemory memory;
  schedule::MemoryPlan memory_plan;
};

// The lowered training schedule of a plan, validated. Errors: those of CheckPlan; InvalidArgument
// for an unknown schedule or one that refuses the plan's shape.
absl::StatusOr<schedule::Schedule> LoweredSchedule(const Plan& plan);

// One report per stage. `layers`: of the whole model. Errors: those of LoweredSchedule;
// InvalidArgument if the plan is for another number of layers, or a size is negative.
absl::StatusOr<std::vector<StageReport>> ReportPlan(const Plan& plan,
                                                    const std::vector<LayerCost>& layers,
                                                    const LossMemory& loss);

// The reports as a table: stage, layers, parameters, share of the time, and bytes of parameters,
// gradients, optimiser, stash (peak), buffers and scratch (all that is not named elsewhere), peak.
std::string PlanTable(const std::vector<StageReport>& reports);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_PLAN_H_
