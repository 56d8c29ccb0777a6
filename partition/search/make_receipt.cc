#include "partition/search/make_receipt.h"

#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"

namespace stagecoach::partition {
namespace {

// A trace has an entry per action; a larger one is of no use to a reader.
constexpr int64_t kMaxTracedActions = 200'000;

StageReceipt StageOf(const Pipeline& pipeline, int stage, const schedule::Costs& costs,
                     const schedule::Simulation& simulation) {
  const schedule::StageTimes& times = costs.stages[static_cast<size_t>(stage)];
  const bool splits_backward = pipeline.training().SplitsBackward(schedule::StageId(stage));
  StageReceipt receipt = {.devices = pipeline.devices_of_stage(stage).devices,
                          .forward_ns = times.forward_ns,
                          .backward_ns = splits_backward
                                             ? times.backward_input_ns + times.backward_weight_ns
                                             : times.backward_ns,
                          .update_ns = times.step_ns + times.reduce_ns};
  if (stage > 0) {
    const schedule::StageTimes& before = costs.stages[static_cast<size_t>(stage) - 1];
    receipt.receive_ns += pipeline.LinkBetween(stage - 1, stage).TransferNs(before.output_bytes);
    receipt.send_ns +=
        pipeline.LinkBetween(stage, stage - 1).TransferNs(times.input_gradient_bytes);
  }
  if (stage + 1 < pipeline.num_stages()) {
    const schedule::StageTimes& after = costs.stages[static_cast<size_t>(stage) + 1];
    receipt.send_ns += pipeline.LinkBetween(stage, stage + 1).TransferNs(times.output_bytes);
    receipt.receive_ns +=
        pipeline.LinkBetween(stage + 1, stage).TransferNs(after.input_gradient_bytes);
  }
  receipt.in_flight = pipeline.in_flight(stage);
  const schedule::RankTimes& rank = simulation.ranks[static_cast<size_t>(pipeline.rank_of(stage))];
  receipt.idle_share = simulation.step_ns > 0 ? static_cast<double>(rank.idle_ns()) /
                                                    static_cast<double>(simulation.step_ns)
                                              : 0.0;
  return receipt;
}

}  // namespace

absl::StatusOr<Receipt> MakeReceipt(const Pipeline& pipeline, const Pipeline::Cut& cut,
                                    const Profile& profile, const Cluster& cluster,
                                    PlanObjective objective) {
  Receipt receipt;
  ASSIGN_OR_RETURN(static_cast<PreparedPlan&>(receipt), pipeline.Prepare(cut));
  receipt.model = profile.model;
  receipt.cluster = cluster;
  for (const LayerCost& layer : pipeline.layers().layers) {
    receipt.layer_names.push_back(layer.name);
    receipt.parameter_bytes += layer.memory.parameter_bytes;
  }
  receipt.costs = pipeline.CostsOf(cut);
  std::vector<schedule::StageMemory> memory;
  for (const StageReport& stage : receipt.report.stages) memory.push_back(stage.memory);
  const bool keeps_trace = pipeline.training().num_actions() <= kMaxTracedActions;
  // Peaks are in the report; only a trace says what is stashed when.
  if (keeps_trace) receipt.costs.memory = memory;
  ASSIGN_OR_RETURN(receipt.simulation,
                   schedule::Simulate(pipeline.training(), receipt.costs,
                                      {.sends = pipeline.sends(), .keep_trace = keeps_trace}));
  receipt.costs.memory = std::move(memory);
  for (int stage = 0; stage < pipeline.num_stages(); ++stage) {
    receipt.stages.push_back(StageOf(pipeline, stage, receipt.costs, receipt.simulation));
  }
  receipt.objective = objective;
  receipt.objective_ns = objective == PlanObjective::kStep
                             ? static_cast<double>(receipt.simulation.step_ns)
                             : pipeline.BottleneckNs(cut);
  receipt.lower_bound_ns = receipt.objective_ns;
  receipt.choice = {.schedule = receipt.plan.schedule.name,
                    .chunks = pipeline.num_stages() / pipeline.num_ranks(),
                    .micro_batches = receipt.plan.micro_batches(),
                    .micro_batch_rows = receipt.plan.micro_batch_rows,
                    .ranks = receipt.plan.num_ranks(),
                    .replicas = receipt.plan.replicas(),
                    .recomputed_layers = static_cast<int>(cut.recomputed.size()),
                    .objective_ns = receipt.objective_ns};
  return receipt;
}

}  // namespace stagecoach::partition
