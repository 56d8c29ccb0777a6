#include "partition/receipt.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "partition/make_receipt.h"

namespace stagecoach::partition {
namespace {

using schedule::Rank;
using schedule::StageId;

// A trace has an entry per action; more than that nobody looks at.
constexpr int64_t kMaxTracedActions = 200'000;

absl::Status CheckAgainst(const Plan& plan, const Profile& profile, const Cluster& cluster) {
  RETURN_IF_ERROR(CheckPlan(plan));
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
  for (Rank rank(0); rank.value() < plan.num_ranks(); ++rank) {
    if (plan.micro_batch_rows % plan.replicas_of(rank) == 0) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("a micro-batch of %d rows cannot be divided evenly among %d replicas",
                        plan.micro_batch_rows, plan.replicas_of(rank)));
  }
  const std::vector<LayerCost>& layers = profile.sizes.front().layers;
  for (const int layer : plan.recomputed) {
    const int index = plan.order.empty() ? layer : plan.order[static_cast<size_t>(layer)];
    if (layers[static_cast<size_t>(index)].recompute_stash_bytes.has_value()) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("layer %d (%s) cannot do its forward pass again", layer,
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

std::shared_ptr<const LayerTable> TableOf(const Plan& plan, const Profile& profile, int replicas) {
  SizedLayers sized = LayersAt(profile, plan.micro_batch_rows / replicas);
  const LossMemory loss = sized.loss(plan.micro_batches());
  if (!plan.order.empty()) sized.layers = InOrder(sized.layers, profile.edges, plan.order);
  return std::make_shared<const LayerTable>(std::move(sized.layers), loss,
                                            profile.updates_in_backward);
}

absl::StatusOr<Pipeline> PipelineOf(const Plan& plan, const Profile& profile,
                                    const Cluster& cluster) {
  std::vector<RankGroup> groups;
  for (Rank rank(0); rank.value() < plan.num_ranks(); ++rank) {
    RankGroup& group =
        groups.emplace_back(GroupOf(cluster, plan.first_device_of(rank), plan.replicas_of(rank)));
    group.layers = TableOf(plan, profile, plan.replicas_of(rank));
  }
  return Pipeline::Create(plan.schedule, plan.micro_batch_rows, std::move(groups), cluster);
}

StageReceipt StageOf(const Pipeline& pipeline, const Pipeline::Cut& cut, int stage,
                     const schedule::Costs& costs, const schedule::Simulation& simulation) {
  const schedule::StageTimes& times = costs.stages[static_cast<size_t>(stage)];
  StageReceipt receipt = {.first_layer = cut.first_layer[static_cast<size_t>(stage)],
                          .last_layer = pipeline.Last(cut, stage),
                          .devices = pipeline.group_of_stage(stage).devices,
                          .forward_ns = times.forward_ns,
                          .backward_ns = times.backward_input_ns + times.backward_weight_ns,
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

std::string Counted(int64_t count, absl::string_view noun) {
  return absl::StrCat(count, " ", noun, count == 1 ? "" : "s");
}

std::string Choice::ToString() const {
  std::string text = absl::StrCat(schedule, schedule == "auto" ? " (searched order), " : ", ",
                                  micro_batches, " micro-batch", micro_batches == 1 ? "" : "es",
                                  " of ", Counted(micro_batch_rows, "row"), ", ",
                                  Counted(static_cast<int64_t>(replicas.size()), "rank"));
  if (chunks > 1) absl::StrAppend(&text, " of ", chunks, " stages");
  const bool is_even = std::all_of(replicas.begin(), replicas.end(),
                                   [&](int count) { return count == replicas.front(); });
  if (is_even && !replicas.empty() && replicas.front() > 1) {
    absl::StrAppend(&text, " on ", replicas.front(), " devices",
                    replicas.size() > 1 ? " each" : "");
  } else if (!is_even) {
    absl::StrAppend(&text, " on ", absl::StrJoin(replicas, " + "), " devices");
  }
  if (recomputed_layers > 0) {
    absl::StrAppend(&text, ", ", Counted(recomputed_layers, "layer"), " recomputed");
  }
  return text;
}

absl::StatusOr<Receipt> MakeReceipt(const Pipeline& pipeline, const Pipeline::Cut& cut,
                                    std::vector<int> order, const Profile& profile,
                                    const Cluster& cluster, PlanObjective objective) {
  Receipt receipt;
  receipt.plan = pipeline.PlanOf(cut);
  receipt.plan.order = std::move(order);
  receipt.model = profile.model;
  receipt.cluster = cluster;
  for (const LayerCost& layer : pipeline.group(0).layers->layers) {
    receipt.layer_names.push_back(layer.name);
  }
  ASSIGN_OR_RETURN(receipt.report, pipeline.Report(cut));
  receipt.costs = pipeline.CostsOf(cut);
  for (const StageReport& stage : receipt.report.stages) {
    receipt.costs.memory.push_back(stage.memory);
  }
  int64_t actions = 0;
  for (const auto& list : pipeline.training().actions) {
    actions += static_cast<int64_t>(list.size());
  }
  ASSIGN_OR_RETURN(
      receipt.simulation,
      schedule::Simulate(pipeline.training(), receipt.costs,
                         {.sends = pipeline.sends(), .keep_trace = actions <= kMaxTracedActions}));
  for (int stage = 0; stage < pipeline.num_stages(); ++stage) {
    receipt.stages.push_back(StageOf(pipeline, cut, stage, receipt.costs, receipt.simulation));
  }
  receipt.objective = objective;
  receipt.objective_ns = objective == PlanObjective::kStep
                             ? static_cast<double>(receipt.simulation.step_ns)
                             : pipeline.BottleneckNs(cut);
  receipt.lower_bound_ns = receipt.objective_ns;
  receipt.choice = {.schedule = receipt.plan.schedule.name,
                    .chunks = pipeline.num_stages() / pipeline.num_ranks(),
                    .micro_batches = pipeline.micro_batches(),
                    .micro_batch_rows = receipt.plan.micro_batch_rows,
                    .replicas = {},
                    .recomputed_layers = static_cast<int>(cut.recomputed.size()),
                    .objective_ns = receipt.objective_ns};
  for (Rank rank(0); rank.value() < pipeline.num_ranks(); ++rank) {
    receipt.choice.replicas.push_back(receipt.plan.replicas_of(rank));
  }
  return receipt;
}

absl::StatusOr<Receipt> ReceiptOf(const Plan& plan, const Profile& profile, const Cluster& cluster,
                                  PlanObjective objective) {
  RETURN_IF_ERROR(CheckProfile(profile));
  RETURN_IF_ERROR(CheckCluster(cluster));
  RETURN_IF_ERROR(CheckAgainst(plan, profile, cluster));
  ASSIGN_OR_RETURN(const Pipeline pipeline, PipelineOf(plan, profile, cluster));
  return MakeReceipt(pipeline, {plan.first_layer, plan.recomputed}, plan.order, profile, cluster,
                     objective);
}

std::string Excess(absl::string_view device, int64_t peak_bytes, int64_t memory_bytes) {
  return absl::StrFormat(
      "device %s needs %s, %s more than its memory of %s", device, base::FormatBytes(peak_bytes),
      base::FormatBytes(peak_bytes - memory_bytes), base::FormatBytes(memory_bytes));
}

absl::Status CheckFits(const Receipt& receipt) {
  int64_t most_excess_bytes = 0;
  absl::Status status;
  for (Rank rank(0); rank.value() < receipt.plan.num_ranks(); ++rank) {
    const int64_t peak_bytes = receipt.report.of(rank).peak_bytes();
    const int first = receipt.plan.first_device_of(rank);
    for (int i = 0; i < receipt.plan.replicas_of(rank); ++i) {
      const ClusterDevice& device = receipt.cluster.devices[static_cast<size_t>(first + i)];
      const int64_t excess_bytes = peak_bytes - device.memory_bytes;
      if (device.memory_bytes == 0 || excess_bytes <= most_excess_bytes) continue;
      most_excess_bytes = excess_bytes;
      status = absl::ResourceExhaustedError(Excess(device.name, peak_bytes, device.memory_bytes));
    }
  }
  return status;
}

}  // namespace stagecoach::partition
