#include "partition/search/candidate_bounds.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "base/status_macros.h"
#include "partition/exact/chain.h"
#include "partition/layer_cost.h"

namespace stagecoach::partition {

double SimpleBoundNs(absl::Span<const RankDevices> groups, int micro_batches, bool is_in_turn) {
  const auto time_of = [&](const RankDevices& group, size_t layer) {
    return group.layers->layers[layer].batch_ns(micro_batches) / group.speed;
  };
  const auto layers = static_cast<size_t>(groups.front().layers->num_layers());
  // How many batches of the whole model each rank would do in a ns. The longest time of a rank is
  // at least any weighted mean of all; by these weights it is exact if ranks differ in speed alone.
  std::vector<double> rates;
  for (const RankDevices& group : groups) {
    double all_ns = 0;
    for (size_t i = 0; i < layers; ++i) all_ns += time_of(group, i);
    rates.push_back(all_ns > 0 ? 1 / all_ns : 1);
  }
  const double all_rates = std::accumulate(rates.begin(), rates.end(), 0.0);
  double divided_ns = 0;
  double before_ns = 0;  // F and B of the layers before, once
  double longest_ns = 0;
  for (size_t i = 0; i < layers; ++i) {
    double least_share_ns = std::numeric_limits<double>::infinity();
    double least_batch_ns = least_share_ns;
    double least_both_ns = least_share_ns;
    for (size_t rank = 0; rank < groups.size(); ++rank) {
      const LayerCost& layer = groups[rank].layers->layers[i];
      const double both_ns = (layer.forward_ns + layer.backward_input_ns) / groups[rank].speed;
      const double batch_ns = time_of(groups[rank], i);
      least_share_ns = std::min(least_share_ns, batch_ns * rates[rank] / all_rates);
      least_batch_ns = std::min(least_batch_ns, batch_ns);
      least_both_ns = std::min(least_both_ns, both_ns);
    }
    const double turn_ns = std::max(before_ns + micro_batches * least_both_ns, least_batch_ns);
    longest_ns = std::max(longest_ns, turn_ns);
    if (is_in_turn) before_ns += least_both_ns;
    divided_ns += least_share_ns;
  }
  return std::max(longest_ns, divided_ns);
}

absl::StatusOr<double> ChainBoundNs(absl::Span<const RankDevices> groups, int micro_batches,
                                    PlanObjective objective, bool is_fused) {
  const LayerTable& table = *groups.front().layers;
  double most_speed = 0;
  ChainProblem problem;
  problem.stages = static_cast<int>(groups.size());
  for (const RankDevices& group : groups) {
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

double RoundingNs(absl::Span<const RankDevices> groups, int chunks, int micro_batches) {
  const auto is_whole = [](double ns) { return ns == std::floor(ns); };
  bool is_exact = true;
  for (const RankDevices& group : groups) {
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
