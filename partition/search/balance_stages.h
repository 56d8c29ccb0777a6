#ifndef STAGECOACH_PARTITION_SEARCH_BALANCE_STAGES_H_
#define STAGECOACH_PARTITION_SEARCH_BALANCE_STAGES_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "partition/cost/cluster.h"
#include "partition/cost/layer_cost.h"
#include "partition/cost/stage_memory.h"
#include "partition/plan/compiled_plan.h"
#include "schedule/ir/schedule.h"

namespace stagecoach::partition {

// Returns the schedule for a number of devices; InvalidArgument if it refuses that number.
using ScheduleMaker = std::function<absl::StatusOr<schedule::Schedule>(int devices)>;

// Makes the generated schedule of that name (generators.h) with `chunks` stages per device (0: its
// own number). An unknown name is an InvalidArgument that lists the known ones.
ScheduleMaker GeneratedSchedule(std::string name, int micro_batches, int chunks = 0);

// Makes one that only predicts: F alone, each device with one stage.
ScheduleMaker ForwardSchedule(int micro_batches);

struct BalanceRequest {
  std::vector<LayerCost> layers;
  EndMemory ends;
  // The devices of each rank in a row, one per replica, as in Plan; how they perform transfers is
  // as in LowerPlan.
  Cluster cluster = UniformCluster(1);
  Replication replication = {};
  ScheduleMaker schedule;  // of each replica
  // The schedule has only F, and stages are balanced by its time. Otherwise it must train.
  bool predicts = false;
  int64_t micro_batch_rows = 1;
  double offload = 0.0;                         // Plan::offload
  schedule::CollectiveMemory collectives = {};  // as in LowerPlan

  int devices() const { return cluster.size() / replication.replicas; }  // of each replica
};

// Cuts the layers for the given schedule, so that the slowest stage is fastest (PartitionChain over
// LayerCost::batch_ns, at the speeds and links of the cluster) and the predicted peak of every
// device fits. FindPlan chooses a schedule.
// With replicas, stages are divided further if that fits (partition/plan/split_plan.h). Exact if
// every device has one stage. With several, a cut that exceeds the budget is repaired by bounding
// what each stage may take, and a cut that would fit can be missed. InvalidArgument: more stages
// than layers (names both), the schedule's refusal, a schedule that cannot train, non-positive
// counts, negative times or bytes, those of CheckCluster, devices that are no multiple of the
// replicas. ResourceExhausted: no cut was found to fit. The first line of the message names the
// stage, or the device and its stages, that exceeds its memory most on the roomiest cut (the one
// whose largest peak, as a share of the memory, is least) and, of equal devices, the smallest
// number that fits, or says that none does; the table of that cut follows.
absl::StatusOr<CompiledPlan> BalanceStages(const BalanceRequest& request);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_SEARCH_BALANCE_STAGES_H_
