#include "partition/evaluate/evaluate_plan.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "partition/evaluate/cut_evaluator.h"

namespace stagecoach::partition {
namespace {

// A trace has an entry per action; a larger one is of no use to a reader.
constexpr int64_t kMaxTracedActions = 200'000;

StageCost StageOf(const CutEvaluator& pipeline, int stage, const schedule::Costs& costs,
                  const schedule::Simulation& simulation) {
  const schedule::StageTimes& times = costs.stages[static_cast<size_t>(stage)];
  const bool splits_backward = pipeline.training().SplitsBackward(schedule::StageId(stage));
  StageCost evaluation = {.devices = pipeline.devices_of_stage(stage).devices,
                          .forward_ns = times.forward_ns,
                          .backward_ns = splits_backward
                                             ? times.backward_input_ns + times.backward_weight_ns
                                             : times.backward_ns,
                          .update_ns = times.step_ns + times.reduce_ns};
  if (stage > 0) {
    const schedule::StageTimes& before = costs.stages[static_cast<size_t>(stage) - 1];
    evaluation.receive_ns += pipeline.LinkBetween(stage - 1, stage).TransferNs(before.output_bytes);
    evaluation.send_ns +=
        pipeline.LinkBetween(stage, stage - 1).TransferNs(times.input_gradient_bytes);
  }
  if (stage + 1 < pipeline.num_stages()) {
    const schedule::StageTimes& after = costs.stages[static_cast<size_t>(stage) + 1];
    evaluation.send_ns += pipeline.LinkBetween(stage, stage + 1).TransferNs(times.output_bytes);
    evaluation.receive_ns +=
        pipeline.LinkBetween(stage + 1, stage).TransferNs(after.input_gradient_bytes);
  }
  evaluation.in_flight = pipeline.in_flight(stage);
  const schedule::RankTimes& rank = simulation.ranks[static_cast<size_t>(pipeline.rank_of(stage))];
  evaluation.idle_share = simulation.step_ns > 0 ? static_cast<double>(rank.idle_ns()) /
                                                       static_cast<double>(simulation.step_ns)
                                                 : 0.0;
  return evaluation;
}

absl::Status CheckAgainst(const Plan& plan, const Profile& profile, const Cluster& cluster) {
  RETURN_IF_ERROR(CheckPlan(plan));
  RETURN_IF_ERROR(CheckTrains(plan.schedule));
  if (plan.num_layers != profile.num_layers()) {
    return absl::InvalidArgumentError(absl::StrFormat("the plan is for %d layers, the model has %d",
                                                      plan.num_layers, profile.num_layers()));
  }
  if (plan.num_devices() != cluster.size()) {
    return absl::InvalidArgumentError(absl::StrFormat("the plan is for %d devices, there are %d",
                                                      plan.num_devices(), cluster.size()));
  }
  if (plan.order.empty() && !profile.is_chain()) {
    return absl::InvalidArgumentError(
        "the model is a graph: the plan needs the order of its layers");
  }
  const std::vector<LayerCost>& layers = profile.sizes.front().layers;
  for (const int layer : plan.recomputed) {
    const int index = plan.order.empty() ? layer : plan.order[static_cast<size_t>(layer)];
    if (layers[static_cast<size_t>(index)].recompute_stash_bytes.has_value()) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("layer %d (%s) cannot repeat its forward pass", layer,
                        layers[static_cast<size_t>(index)].name));
  }
  // An order of a graph must be topological.
  std::vector<int> place(layers.size());
  for (size_t i = 0; i < plan.order.size(); ++i) {
    place[static_cast<size_t>(plan.order[i])] = static_cast<int>(i);
  }
  for (const Edge& edge : profile.edges) {
    if (place[static_cast<size_t>(edge.producer)] < place[static_cast<size_t>(edge.consumer)]) {
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrFormat("in the order of the plan, layer %s comes before %s, whose output it reads",
                        layers[static_cast<size_t>(edge.consumer)].name,
                        layers[static_cast<size_t>(edge.producer)].name));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PlanEvaluation> EvaluateCut(const CutEvaluator& pipeline,
                                           const CutEvaluator::Cut& cut, const Profile& profile,
                                           const Cluster& cluster, PlanObjective objective) {
  PlanEvaluation evaluation;
  ASSIGN_OR_RETURN(evaluation.compiled, pipeline.Compile(cut));
  evaluation.model = profile.model;
  evaluation.cluster = cluster;
  for (const LayerCost& layer : pipeline.layers().layers) {
    evaluation.layer_names.push_back(layer.name);
    evaluation.parameter_bytes += layer.memory.parameter_bytes;
  }
  evaluation.costs = pipeline.CostsOf(cut);
  std::vector<schedule::StageMemory> memory = evaluation.compiled.memory_of_stages();
  const bool keeps_trace = pipeline.training().num_actions() <= kMaxTracedActions;
  // Peaks are in the report; only a trace says what is stashed when.
  if (keeps_trace) evaluation.costs.memory = memory;
  ASSIGN_OR_RETURN(evaluation.simulation,
                   schedule::Simulate(pipeline.training(), evaluation.costs,
                                      {.sends = pipeline.sends(), .keep_trace = keeps_trace}));
  evaluation.costs.memory = std::move(memory);
  for (int stage = 0; stage < pipeline.num_stages(); ++stage) {
    evaluation.stages.push_back(StageOf(pipeline, stage, evaluation.costs, evaluation.simulation));
  }
  evaluation.objective = objective;
  evaluation.objective_ns = objective == PlanObjective::kStep
                                ? static_cast<double>(evaluation.simulation.step_ns)
                                : pipeline.BottleneckNs(cut);
  evaluation.lower_bound_ns = evaluation.objective_ns;
  evaluation.choice = {.schedule = evaluation.plan().schedule.name,
                       .chunks = pipeline.num_stages() / pipeline.num_ranks(),
                       .micro_batches = evaluation.plan().micro_batches(),
                       .micro_batch_rows = evaluation.plan().micro_batch_rows,
                       .ranks = evaluation.plan().num_ranks(),
                       .replicas = evaluation.plan().replicas(),
                       .recomputed_layers = static_cast<int>(cut.recomputed.size()),
                       .objective_ns = evaluation.objective_ns};
  return evaluation;
}

absl::StatusOr<PlanEvaluation> EvaluatePlan(const Plan& plan, const Profile& profile,
                                            const Cluster& cluster, PlanObjective objective) {
  RETURN_IF_ERROR(CheckProfile(profile));
  RETURN_IF_ERROR(CheckCluster(cluster));
  RETURN_IF_ERROR(CheckAgainst(plan, profile, cluster));
  if (plan.tensor_parts > 1) {
    // The profile is that of one device of a group, which are all at the same.
    ASSIGN_OR_RETURN(const GroupedCluster groups,
                     GroupDevices(cluster, plan.tensor_parts, /*message_parts=*/1));
    Plan of_groups = plan;
    of_groups.tensor_parts = 1;
    return EvaluatePlan(of_groups, WithExchangeTimes(profile, plan.tensor_parts, groups.within),
                        groups.cluster, objective);
  }
  ASSIGN_OR_RETURN(
      const CutEvaluator pipeline,
      CutEvaluator::Create(plan,
                           TableOf(profile, plan.micro_batch_rows, plan.schedule.num_micro_batches,
                                   plan.replication, plan.order),
                           cluster));
  return EvaluateCut(pipeline, {plan.first_layer, plan.recomputed}, profile, cluster, objective);
}

}  // namespace stagecoach::partition
