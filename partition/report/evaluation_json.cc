#include <cstddef>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/time/time.h"
#include "base/text/json.h"
#include "partition/report/evaluation_parts.h"
#include "partition/report/evaluation_report.h"

namespace stagecoach::partition {
namespace {

using nlohmann::ordered_json;
using schedule::Rank;
using schedule::StageId;

double InMs(double ns) { return ns / 1e6; }
double InMs(int64_t ns) { return static_cast<double>(ns) / 1e6; }

ordered_json MemoryJson(const RankMemory& memory) {
  return {{"parameters", memory.parameters},
          {"gradients", memory.gradients},
          {"optimizer", memory.optimizer},
          {"stash", memory.stash},
          {"buffers", memory.buffers},
          {"peak", memory.peak},
          {"limit", memory.limit > 0 ? ordered_json(memory.limit) : ordered_json()}};
}

ordered_json StageJson(const PlanEvaluation& evaluation, StageId id) {
  const StageCost& stage = evaluation.stages[static_cast<size_t>(id.value())];
  const Rank rank = evaluation.plan().schedule.rank_of(id);
  ordered_json layers = ordered_json::array();
  const int first = evaluation.plan().first(id.value()), last = evaluation.plan().last(id.value());
  for (int layer = first; layer <= last; ++layer) {
    layers.push_back(evaluation.layer_names[static_cast<size_t>(layer)]);
  }
  return {{"stage", id.value()},
          {"first_layer", first},
          {"last_layer", last},
          {"devices", stage.devices},
          {"replicas", evaluation.plan().replicas()},
          {"forward_ms", InMs(stage.forward_ns)},
          {"backward_ms", InMs(stage.backward_ns)},
          {"update_ms", InMs(stage.update_ns)},
          {"receive_ms", InMs(stage.receive_ns)},
          {"send_ms", InMs(stage.send_ns)},
          {"memory_bytes", MemoryJson(MemoryOf(evaluation, rank))},
          {"in_flight", stage.in_flight},
          {"idle_share", stage.idle_share},
          {"layers", std::move(layers)}};
}

ordered_json RunnerUpJson(const PlanEvaluation& evaluation) {
  if (!evaluation.runner_up.has_value()) return nullptr;
  const Choice& other = *evaluation.runner_up;
  ordered_json choice = {{"objective_ms", InMs(other.objective_ns)},
                         {"schedule", other.schedule},
                         {"micro_batches", other.micro_batches},
                         {"micro_batch_rows", other.micro_batch_rows},
                         {"chunks", other.chunks},
                         {"replicas", other.replicas},
                         {"recomputed_layers", other.recomputed_layers},
                         {"reason", evaluation.runner_up_reason}};
  if (!other.option.empty()) choice["option"] = other.option;
  return choice;
}

ordered_json ComparedJson(absl::Span<const ComparedPlan> compared) {
  ordered_json all = ordered_json::array();
  for (const ComparedPlan& other : compared) {
    const PlanEvaluation& evaluation = other.evaluation;
    all.push_back({{"name", other.name},
                   {"objective_ms", InMs(evaluation.objective_ns)},
                   {"step_ms", InMs(evaluation.simulation.step_ns)},
                   {"peak_bytes", PeakBytes(evaluation)},
                   {"fits", other.fits},
                   {"first_layers", evaluation.plan().first_layer}});
  }
  return all;
}

}  // namespace

std::string ToJson(const PlanEvaluation& evaluation, absl::Span<const ComparedPlan> compared) {
  ordered_json stages = ordered_json::array();
  for (StageId stage(0); stage.value() < evaluation.plan().num_stages(); ++stage) {
    stages.push_back(StageJson(evaluation, stage));
  }
  const bool has_bound = evaluation.considered > 0;
  ordered_json json = {
      {"objective_ms", InMs(evaluation.objective_ns)},
      {"lower_bound_ms",
       has_bound ? ordered_json(InMs(evaluation.lower_bound_ns)) : ordered_json()},
      {"gap", has_bound ? ordered_json(evaluation.gap()) : ordered_json()},
      {"schedule", evaluation.choice.schedule},
      {"micro_batches", evaluation.plan().micro_batches()},
      {"stages", std::move(stages)},
      {"planning_ms", absl::ToDoubleMilliseconds(evaluation.planning)},
      {"model", evaluation.model},
      {"objective", evaluation.objective == PlanObjective::kStep ? "step" : "bottleneck"},
      {"step_ms", InMs(evaluation.simulation.step_ns)},
      {"chunks", evaluation.choice.chunks},
      {"micro_batch_rows", evaluation.plan().micro_batch_rows},
      {"tensor_parallel", evaluation.tensor_parts},
      {"recomputed_layers", evaluation.plan().recomputed},
      {"offload", evaluation.plan().offload},
      {"offload_optimizer", evaluation.plan().replication.offloads_optimizer},
      {"host_bytes", MostHostBytes(evaluation.compiled)},
      {"transfers",
       evaluation.cluster.transfers == schedule::Transfers::kGrouped ? "grouped" : "separate"},
      {"runner_up", RunnerUpJson(evaluation)},
      {"changes", evaluation.changes},
      {"considered", evaluation.considered},
      {"simulated", evaluation.simulated},
      {"start", evaluation.start.has_value() ? ordered_json(*evaluation.start) : ordered_json()},
      {"cut_short", evaluation.is_cut_short},
      {"rounds", evaluation.rounds.count},
      {"rounds_cut_short", evaluation.rounds.are_cut_short}};
  if (!evaluation.choice.option.empty()) json["option"] = evaluation.choice.option;
  if (!evaluation.left_out.empty()) json["left_out"] = evaluation.left_out;
  if (!compared.empty()) json["compared"] = ComparedJson(compared);
  // Invalid UTF-8 is replaced, since printing such a string would throw.
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace stagecoach::partition
