#include <cstddef>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/time/time.h"
#include "base/json.h"
#include "partition/report/receipt_parts.h"
#include "partition/report/receipt_report.h"

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

ordered_json StageJson(const Receipt& receipt, StageId id) {
  const StageReceipt& stage = receipt.stages[static_cast<size_t>(id.value())];
  const Rank rank = receipt.plan.schedule.rank_of(id);
  ordered_json layers = ordered_json::array();
  const int first = receipt.plan.first(id.value()), last = receipt.plan.last(id.value());
  for (int layer = first; layer <= last; ++layer) {
    layers.push_back(receipt.layer_names[static_cast<size_t>(layer)]);
  }
  return {{"stage", id.value()},
          {"first_layer", first},
          {"last_layer", last},
          {"devices", stage.devices},
          {"replicas", receipt.plan.replicas()},
          {"forward_ms", InMs(stage.forward_ns)},
          {"backward_ms", InMs(stage.backward_ns)},
          {"update_ms", InMs(stage.update_ns)},
          {"receive_ms", InMs(stage.receive_ns)},
          {"send_ms", InMs(stage.send_ns)},
          {"memory_bytes", MemoryJson(MemoryOf(receipt, rank))},
          {"in_flight", stage.in_flight},
          {"idle_share", stage.idle_share},
          {"layers", std::move(layers)}};
}

ordered_json RunnerUpJson(const Receipt& receipt) {
  if (!receipt.runner_up.has_value()) return nullptr;
  const Choice& other = *receipt.runner_up;
  ordered_json json = {{"objective_ms", InMs(other.objective_ns)},
                       {"schedule", other.schedule},
                       {"microbatches", other.micro_batches},
                       {"micro_batch_rows", other.micro_batch_rows},
                       {"chunks", other.chunks},
                       {"replicas", other.replicas},
                       {"recomputed_layers", other.recomputed_layers},
                       {"reason", receipt.runner_up_reason}};
  if (!other.option.empty()) json["option"] = other.option;
  return json;
}

ordered_json ComparedJson(absl::Span<const ComparedPlan> compared) {
  ordered_json all = ordered_json::array();
  for (const ComparedPlan& other : compared) {
    const Receipt& receipt = other.receipt;
    all.push_back({{"name", other.name},
                   {"objective_ms", InMs(receipt.objective_ns)},
                   {"step_ms", InMs(receipt.simulation.step_ns)},
                   {"peak_bytes", PeakBytes(receipt)},
                   {"fits", other.fits},
                   {"first_layers", receipt.plan.first_layer}});
  }
  return all;
}

}  // namespace

std::string ToJson(const Receipt& receipt, absl::Span<const ComparedPlan> compared) {
  ordered_json stages = ordered_json::array();
  for (StageId stage(0); stage.value() < receipt.plan.num_stages(); ++stage) {
    stages.push_back(StageJson(receipt, stage));
  }
  const bool has_bound = receipt.considered > 0;
  ordered_json json = {
      {"objective_ms", InMs(receipt.objective_ns)},
      {"lower_bound_ms", has_bound ? ordered_json(InMs(receipt.lower_bound_ns)) : ordered_json()},
      {"gap", has_bound ? ordered_json(receipt.gap()) : ordered_json()},
      {"schedule", receipt.choice.schedule},
      {"microbatches", receipt.plan.micro_batches()},
      {"stages", std::move(stages)},
      {"planning_ms", absl::ToDoubleMilliseconds(receipt.planning)},
      {"model", receipt.model},
      {"objective", receipt.objective == PlanObjective::kStep ? "step" : "bottleneck"},
      {"step_ms", InMs(receipt.simulation.step_ns)},
      {"chunks", receipt.choice.chunks},
      {"micro_batch_rows", receipt.plan.micro_batch_rows},
      {"recomputed_layers", receipt.plan.recomputed},
      {"transfers",
       receipt.cluster.transfers == schedule::Transfers::kGrouped ? "grouped" : "separate"},
      {"runner_up", RunnerUpJson(receipt)},
      {"changes", receipt.changes},
      {"considered", receipt.considered},
      {"simulated", receipt.simulated},
      {"cut_short", receipt.is_cut_short}};
  if (!receipt.choice.option.empty()) json["option"] = receipt.choice.option;
  if (!compared.empty()) json["compared"] = ComparedJson(compared);
  // Printing a string of invalid UTF-8 would throw.
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace stagecoach::partition
