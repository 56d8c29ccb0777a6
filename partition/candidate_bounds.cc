#include "partition/candidate_bounds.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>

#include "base/status_macros.h"
#include "partition/chain.h"
#include "partition/layer_cost.h"

namespace stagecoach::partition {

double SimpleBoundNs(absl::Span<const RankGroup> groups, int micro_batches, bool is_in_turn) {
  double batch_ns = 0;   // on devices of the least time for each layer
  double before_ns = 0;  // F and B of the layers before, once
  double longest_ns = 0;
  const int layers = groups.front().layers->num_layers();
  for (int index = 0; index < layers; ++index) {
    double least_batch_ns = 0, least_turn_ns = 0, least_both_ns = 0;
    for (const RankGroup& group : groups) {
      const LayerCost& layer = group.layers->layers[static_cast<size_t>(index)];
      const double both_ns = (layer.forward_ns + layer.backward_input_ns) / group.speed;
      const double own_batch_ns = layer.batch_ns(micro_batches) / group.speed;
      const bool is_first = &group == &groups.front();
      least_batch_ns = is_first ? own_batch_ns : std::min(least_batch_ns, own_batch_ns);
      least_both_ns = is_first ? both_ns : std::min(least_both_ns, both_ns);
    }
    least_turn_ns = std::max(before_ns + micro_batches * least_both_ns, least_batch_ns);
    longest_ns = std::max(longest_ns, least_turn_ns);
    if (is_in_turn) before_ns += least_both_ns;
    batch_ns += least_batch_ns;
  }
  return std::max(longest_ns, batch_ns / static_cast<double>(groups.size()));
}

absl::StatusOr<double> ChainBoundNs(absl::Span<const RankGroup> groups, int micro_batches,
                                    PlanObjective objective, bool is_fused) {
  const LayerTable& table = *groups.front().layers;
  double most_speed = 0;
  ChainProblem problem;
  problem.stages = static_cast<int>(groups.size());
  for (const RankGroup& group : groups) {
    problem.speeds.push_back(group.speed);
    most_speed = std::max(most_speed, group.speed);
  }
  const auto solve = [&](const std::function<double(const LayerCost&)>& layer_ns,
                         const std::function<double(size_t)>& start_ns) -> absl::StatusOr<double> {
    problem.layer_ns.clear();
    problem.start_ns.clear();
    for (size_t i = 0; i < table.layers.size(); ++i) {
      problem.layer_ns.push_back(layer_ns(table.layers[i]));
      problem.start_ns.push_back(start_ns(i) / most_speed);
    }
    ASSIGN_OR_RETURN(const ChainCut cut, PartitionChain(problem));
    return cut.bottleneck_ns;
  };
  const auto all_ns = [&](const LayerCost& layer) { return layer.batch_ns(micro_batches); };
  if (objective == PlanObjective::kBottleneck) return solve(all_ns, [](size_t) { return 0.0; });
  ASSIGN_OR_RETURN(const double busy_ns,
                   solve(all_ns, [&](size_t i) { return table.forward_ns[i]; }));
  if (is_fused) {
    // A rank's update delays those before it only if it is part of its last backward pass.
    const bool updates_in_backward =
        table.updates_in_backward && groups.front().devices.size() == 1;
    ASSIGN_OR_RETURN(
        const double fused_ns,
        solve(
            [&](const LayerCost& layer) {
              return layer.batch_ns(micro_batches) - (updates_in_backward ? 0 : layer.step_ns);
            },
            [&](size_t i) {
              return table.forward_ns[i] + table.backward_input_ns[i] + table.backward_weight_ns[i];
            }));
    return std::max(busy_ns, fused_ns);
  }
  ASSIGN_OR_RETURN(const double turn_ns,
                   solve(
                       [&](const LayerCost& layer) {
                         return micro_batches * (layer.forward_ns + layer.backward_input_ns);
                       },
                       [&](size_t i) { return table.forward_ns[i] + table.backward_input_ns[i]; }));
  return std::max(busy_ns, turn_ns);
}

double RoundingNs(absl::Span<const RankGroup> groups, int chunks, int micro_batches) {
  const auto is_whole = [](double ns) { return ns == std::floor(ns); };
  bool is_exact = true;
  for (const RankGroup& group : groups) {
    is_exact = is_exact && group.speed == 1.0;
    for (const LayerCost& layer : group.layers->layers) {
      is_exact = is_exact && is_whole(layer.forward_ns) && is_whole(layer.backward_input_ns) &&
                 is_whole(layer.backward_weight_ns) && is_whole(layer.step_ns);
    }
  }
  const double stages = chunks * static_cast<double>(groups.size());
  return is_exact ? 0.0 : 2.0 * (chunks * micro_batches + stages);
}

}  // namespace stagecoach::partition
