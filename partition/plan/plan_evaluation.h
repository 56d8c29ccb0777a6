#ifndef STAGECOACH_PARTITION_PLAN_PLAN_EVALUATION_H_
#define STAGECOACH_PARTITION_PLAN_PLAN_EVALUATION_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "partition/cost/cluster.h"
#include "partition/cost/profile.h"
#include "partition/plan/compiled_plan.h"
#include "schedule/simulate/costs.h"
#include "schedule/simulate/simulate.h"

namespace stagecoach::partition {

enum class PlanObjective : uint8_t {
  kStep,        // the time of one step, from the first action to the last
  kBottleneck,  // what the busiest rank takes for one step, if steps overlap endlessly
};

// The work of one stage in the simulated step, in each replica; its layers and memory are in
// CompiledPlan::stages. Times are per micro-batch, except the update.
struct StageCost {
  std::vector<int> devices;  // those of its rank in the cluster
  int64_t forward_ns = 0;
  int64_t backward_ns = 0;  // B and W, and F once more in layers that recompute
  int64_t update_ns = 0;    // once per step: its parameters' update, and the sum over replicas
  int64_t receive_ns = 0;   // its input, and the gradient of its output
  int64_t send_ns = 0;      // its output, and the gradient of its input
  int in_flight = 0;        // the most micro-batches between F and B at once
  double idle_share = 0;    // idle share of its rank over the step
};

// A combination that was considered.
struct Choice {
  std::string schedule;
  int chunks = 1;
  int micro_batches = 1;  // of all replicas
  int64_t micro_batch_rows = 1;
  int ranks = 1;
  int replicas = 1;
  int recomputed_layers = 0;
  double objective_ns = 0;
  std::string option =
      {};  // among several ways to compute the model (ModelOption::name); "": the only

  // Returns "zb-h1, 8 micro-batches of 16 rows, 4 ranks", with chunks, replicas, recomputation and
  // option if there are any.
  std::string ToString() const;
};

// A plan, its costs, and the reasons for choosing it.
struct PlanEvaluation {
  const Plan& plan() const { return compiled.plan; }

  CompiledPlan compiled;
  std::string model;
  int64_t parameter_bytes = 0;           // of its layers
  Cluster cluster;                       // the devices of the plan
  std::vector<std::string> left_out;     // names of other devices, without which it is faster
  std::vector<std::string> layer_names;  // in the order of the plan
  schedule::Costs costs;
  schedule::Simulation simulation;  // of one step, with its trace, unless that would be too large
  std::vector<StageCost> stages;    // index: stage

  PlanObjective objective = PlanObjective::kStep;
  double objective_ns = 0;
  // No plan that the request allows can do better. gap() is the remaining share.
  double lower_bound_ns = 0;
  double gap() const { return objective_ns > 0 ? 1 - lower_bound_ns / objective_ns : 0; }

  Choice choice;
  size_t option_index = 0;  // among the ways to compute the model that were searched
  int tensor_parts = 1;     // its ModelOption::tensor_parts
  // The best combination with another schedule, micro-batch size or replicas, and why it lost.
  std::optional<Choice> runner_up;
  std::string runner_up_reason;
  // Changes that would alter the choice, one sentence each: "with 2.0 GB more on device 3: zb-h2,
  // -6.1 %".
  std::vector<std::string> changes;

  // Which of the request's starts it is: no better plan was found.
  std::optional<size_t> start;
  // For each of the request's starts: OK, or why it is no answer.
  std::vector<absl::Status> starts;

  int considered = 0;  // combinations
  int simulated = 0;   // plans among them
  // The search had to end early: another plan may be better, as far as the bound allows, and some
  // `changes` may be missing.
  bool is_cut_short = false;
  // The rounds that improved the best plans after all combinations had been considered.
  struct Rounds {
    int count = 0;
    bool are_cut_short = false;  // more time might gain more
  };
  Rounds rounds;
  absl::Duration planning;
};

// Returns true if the plan's devices need more cores than there are: each needs one, and another
// one to sum gradients over replicas concurrently with its passes.
bool SharesCores(const PlanEvaluation& evaluation, double cores);
// Returns the simulated step if the plan's devices share `cores` cores, > 0: that of the
// evaluation, unless SharesCores. Then messages take no time, and sums over replicas take that of
// their device (schedule/simulate/shared_cores.h).
double StepNsOnCores(const PlanEvaluation& evaluation, double cores);

// Returns OK, or ResourceExhausted with the device that exceeds its memory most, its need and
// limit. Pre-condition: the cluster has the devices of the plan.
absl::Status CheckFits(const CompiledPlan& compiled, const Cluster& cluster);
absl::Status CheckFits(const PlanEvaluation& evaluation);

// Returns "device gpu2 needs 3.1 GB, 1.1 GB more than its memory of 2.0 GB".
std::string Excess(absl::string_view device, int64_t peak_bytes, int64_t memory_bytes);

// Returns "1 stage" or "2 stages".
std::string Counted(int64_t count, absl::string_view noun);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_PLAN_PLAN_EVALUATION_H_
