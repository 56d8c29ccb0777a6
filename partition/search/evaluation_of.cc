#include "partition/search/evaluation_of.h"

#include <vector>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "partition/search/cut_evaluator.h"
#include "partition/search/evaluate_plan.h"

namespace stagecoach::partition {
namespace {

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

absl::StatusOr<PlanEvaluation> EvaluationOf(const Plan& plan, const Profile& profile,
                                            const Cluster& cluster, PlanObjective objective) {
  RETURN_IF_ERROR(CheckProfile(profile));
  RETURN_IF_ERROR(CheckCluster(cluster));
  RETURN_IF_ERROR(CheckAgainst(plan, profile, cluster));
  ASSIGN_OR_RETURN(
      const CutEvaluator pipeline,
      CutEvaluator::Create(plan,
                           TableOf(profile, plan.micro_batch_rows, plan.schedule.num_micro_batches,
                                   plan.replication, plan.order),
                           cluster));
  return EvaluatePlan(pipeline, {plan.first_layer, plan.recomputed}, profile, cluster, objective);
}

}  // namespace stagecoach::partition
