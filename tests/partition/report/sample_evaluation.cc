#include "tests/partition/report/sample_evaluation.h"

#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "schedule/generators/generators.h"
#include "schedule/memory/stash.h"
#include "schedule/simulate/simulate.h"

namespace stagecoach::partition {
namespace {

using schedule::Rank;
using schedule::StageId;

LayerCost SampleLayer(std::string name, double forward_ns, int64_t parameters) {
  constexpr int64_t kActivationBytes = int64_t{16} << 20;
  LayerCost layer = {.name = std::move(name),
                     .parameters = parameters,
                     .forward_ns = forward_ns,
                     .backward_input_ns = 1.1 * forward_ns,
                     .backward_weight_ns = 0.9 * forward_ns,
                     .step_ns = 0.2 * forward_ns};
  layer.memory = {.parameter_bytes = AlignTensor(4 * parameters),
                  .optimizer_bytes = AlignTensor(8 * parameters),
                  .input_bytes = kActivationBytes,
                  .output_bytes = kActivationBytes,
                  .stash_bytes = 3 * kActivationBytes,
                  .weight_stash_bytes = 2 * kActivationBytes,
                  .gradient_stash_bytes = kActivationBytes,
                  .workspace_bytes = 2 * kActivationBytes};
  return layer;
}

std::vector<LayerCost> SampleLayers(int count) {
  std::vector<LayerCost> layers;
  for (int i = 0; i < count; ++i) {
    layers.push_back(SampleLayer(absl::StrCat("block.", i - 1), 1.3e6, 12'600'000));
  }
  layers.front() = SampleLayer("embedding", 0.4e6, 52'000'000);
  layers.back() = SampleLayer("head", 2.9e6, 52'000'000);
  return layers;
}

Plan SamplePlan(const SampleShape& shape) {
  Plan plan;
  plan.schedule =
      schedule::Generate(shape.schedule, {.ranks = shape.devices / shape.replicas,
                                          .micro_batches = shape.micro_batches / shape.replicas})
          .value();
  plan.micro_batch_rows = 16;
  for (int stage = 0; stage < plan.schedule.num_stages(); ++stage) {
    plan.first_layer.push_back(stage * shape.layers_per_stage);
  }
  plan.num_layers = plan.num_stages() * shape.layers_per_stage;
  plan.replication = {shape.replicas, shape.replicas};
  return plan;
}

schedule::Costs SampleCosts(const CompiledPlan& report, const std::vector<LayerCost>& layers) {
  schedule::Costs costs = {.updates_in_backward = true};
  for (const StageReport& stage : report.stages) {
    LayerCost sum;
    for (int i = stage.first_layer; i <= stage.last_layer; ++i) {
      const LayerCost& layer = layers[static_cast<size_t>(i)];
      sum.forward_ns += layer.forward_ns;
      sum.backward_input_ns += layer.backward_input_ns;
      sum.backward_weight_ns += layer.backward_weight_ns;
      sum.step_ns += layer.step_ns;
    }
    costs.stages.push_back(
        {.forward_ns = std::llround(sum.forward_ns),
         .backward_input_ns = std::llround(sum.backward_input_ns),
         .backward_weight_ns = std::llround(sum.backward_weight_ns),
         .backward_ns = std::llround(sum.backward_input_ns + sum.backward_weight_ns),
         .step_ns = std::llround(sum.step_ns),
         .output_bytes = stage.memory.output_bytes,
         .input_gradient_bytes = stage.memory.input_gradient_bytes});
    costs.memory.push_back(stage.memory);
  }
  return costs;
}

std::vector<StageCost> SampleStages(const PlanEvaluation& evaluation) {
  const Plan& plan = evaluation.plan();
  std::vector<StageCost> stages;
  for (int index = 0; index < plan.num_stages(); ++index) {
    const StageId id(index);
    const Rank rank = plan.schedule.rank_of(id);
    const schedule::StageTimes& times = evaluation.costs.of(id);
    const schedule::RankTimes& busy =
        evaluation.simulation.ranks[static_cast<size_t>(rank.value())];
    StageCost stage = {.forward_ns = times.forward_ns,
                       .backward_ns = times.backward_input_ns + times.backward_weight_ns,
                       .receive_ns = (plan.schedule.receives_from_previous(id) ? 90'000 : 0) +
                                     (plan.schedule.sends_to_next(id) ? 90'000 : 0),
                       .send_ns = (plan.schedule.sends_to_next(id) ? 90'000 : 0) +
                                  (plan.schedule.receives_from_previous(id) ? 90'000 : 0),
                       .idle_share = static_cast<double>(busy.idle_ns()) /
                                     static_cast<double>(evaluation.simulation.step_ns)};
    // The peak of a rank that has only this stage's micro-batches.
    std::vector<schedule::StageStash> stash(plan.first_layer.size(), {.forward = 0, .weight = 0});
    stash[static_cast<size_t>(index)].forward = 1;
    stage.in_flight = static_cast<int>(
        std::lround(schedule::PeakStash(plan.schedule, stash)[static_cast<size_t>(rank.value())]));
    for (int i = 0; i < plan.replicas(); ++i) {
      stage.devices.push_back(plan.first_device_of(rank) + i);
    }
    stages.push_back(std::move(stage));
  }
  return stages;
}

}  // namespace

PlanEvaluation SampleEvaluation(const SampleShape& shape) {
  PlanEvaluation evaluation;
  const Plan plan = SamplePlan(shape);
  const std::vector<LayerCost> layers = SampleLayers(plan.num_layers);
  evaluation.compiled = CompilePlan(plan, layers, {.loss_workspace_bytes = 1 << 20}).value();
  evaluation.model = "gpt-small";
  for (const LayerCost& layer : layers) evaluation.layer_names.push_back(layer.name);
  for (int device = 0; device < shape.devices; ++device) {
    evaluation.cluster.devices.push_back(
        {.name = absl::StrCat("gpu", device), .memory_bytes = shape.memory_bytes});
  }
  evaluation.cluster.within_host = {.latency_ns = 5'000, .bytes_per_second = 2e11};
  evaluation.costs = SampleCosts(evaluation.compiled, layers);
  evaluation.costs.links = {evaluation.cluster.within_host};
  evaluation.simulation =
      schedule::Simulate(evaluation.compiled.lowered->training, evaluation.costs,
                         {.sends = schedule::Sends::kRendezvous, .keep_trace = true})
          .value();
  evaluation.stages = SampleStages(evaluation);

  evaluation.objective_ns = static_cast<double>(evaluation.simulation.step_ns);
  evaluation.lower_bound_ns = 0.97 * evaluation.objective_ns;
  evaluation.choice = {.schedule = plan.schedule.name,
                       .chunks = plan.num_stages() / plan.num_ranks(),
                       .micro_batches = plan.micro_batches(),
                       .micro_batch_rows = plan.micro_batch_rows,
                       .ranks = plan.num_ranks(),
                       .replicas = shape.replicas,
                       .objective_ns = evaluation.objective_ns};
  evaluation.runner_up = evaluation.choice;
  evaluation.runner_up->schedule = "1f1b";
  evaluation.runner_up->objective_ns = 1.061 * evaluation.objective_ns;
  evaluation.runner_up_reason = "every device waits longer for the gradients of the last stage";
  evaluation.changes = {"with 2.0 GB more on device gpu0: zb-h2, -6.1 %",
                        "with links twice as fast: the same plan, -0.4 %"};
  evaluation.considered = 96;
  evaluation.simulated = 14;
  evaluation.planning = absl::Milliseconds(120);
  return evaluation;
}

}  // namespace stagecoach::partition
