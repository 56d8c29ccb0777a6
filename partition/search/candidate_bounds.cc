#include "partition/search/candidate_bounds.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <numeric>
#include <vector>

#include "base/status_macros.h"
#include "partition/exact/chain.h"
#include "partition/layer_cost.h"

namespace stagecoach::partition {
namespace {

// Of all cuts with stage s on rank s: the least that the longest rank takes, for its layers and
// what comes before its first one. `start_ns`: of that layer.
absl::StatusOr<double> LeastLongestNs(const LayerTable& table, absl::Span<const double> speeds,
                                      const std::function<double(const LayerCost&)>& layer_ns,
                                      const std::function<double(size_t)>& start_ns) {
  ChainProblem problem;
  problem.stages = static_cast<int>(speeds.size());
  problem.speeds.assign(speeds.begin(), speeds.end());
  const double most_speed = *std::max_element(speeds.begin(), speeds.end());
  for (size_t i = 0; i < table.layers.size(); ++i) {
    problem.layer_ns.push_back(layer_ns(table.layers[i]));
    problem.start_ns.push_back(start_ns(i) / most_speed);
  }
  ASSIGN_OR_RETURN(const ChainCut cut, PartitionChain(problem));
  return cut.bottleneck_ns;
}

}  // namespace

double SimpleBoundNs(const LayerTable& table, absl::Span<const double> speeds, int micro_batches,
                     bool is_in_turn) {
  const double most_speed = *std::max_element(speeds.begin(), speeds.end());
  double all_ns = 0;
  double before_ns = 0;  // F and B of the layers before, once
  double longest_ns = 0;
  for (const LayerCost& layer : table.layers) {
    const double both_ns = (layer.forward_ns + layer.backward_input_ns) / most_speed;
    const double batch_ns = layer.batch_ns(micro_batches);
    longest_ns = std::max({longest_ns, before_ns + micro_batches * both_ns, batch_ns / most_speed});
    if (is_in_turn) before_ns += both_ns;
    all_ns += batch_ns;
  }
  // The longest time of a rank is at least the mean of all, weighted by their speeds.
  return std::max(longest_ns, all_ns / std::accumulate(speeds.begin(), speeds.end(), 0.0));
}

absl::StatusOr<double> ChainBoundNs(const LayerTable& table, absl::Span<const double> speeds,
                                    int micro_batches, PlanObjective objective) {
  const auto all_ns = [&](const LayerCost& layer) { return layer.batch_ns(micro_batches); };
  if (objective == PlanObjective::kBottleneck) {
    return LeastLongestNs(table, speeds, all_ns, [](size_t) { return 0.0; });
  }
  ASSIGN_OR_RETURN(const double busy_ns, LeastLongestNs(table, speeds, all_ns, [&](size_t i) {
                     return table.forward_ns[i];
                   }));
  ASSIGN_OR_RETURN(const double turn_ns,
                   LeastLongestNs(
                       table, speeds,
                       [&](const LayerCost& layer) {
                         return micro_batches * (layer.forward_ns + layer.backward_input_ns);
                       },
                       [&](size_t i) { return table.forward_ns[i] + table.backward_input_ns[i]; }));
  return std::max(busy_ns, turn_ns);
}

absl::StatusOr<double> FusedChainBoundNs(const LayerTable& table, absl::Span<const double> speeds,
                                         int micro_batches) {
  // A rank's update delays those before it only if it is part of its last backward pass.
  return LeastLongestNs(
      table, speeds,
      [&](const LayerCost& layer) {
        return layer.batch_ns(micro_batches) - (table.updates_in_backward ? 0 : layer.step_ns);
      },
      [&](size_t i) {
        return table.forward_ns[i] + table.backward_input_ns[i] + table.backward_weight_ns[i] -
               table.shared_backward_ns[i];
      });
}

double RoundingNs(const LayerTable& table, absl::Span<const double> speeds, int chunks,
                  int micro_batches) {
  const auto is_whole = [](double ns) { return ns == std::floor(ns); };
  bool is_exact = std::all_of(speeds.begin(), speeds.end(), [](double own) { return own == 1.0; });
  for (const LayerCost& layer : table.layers) {
    is_exact = is_exact && is_whole(layer.forward_ns) && is_whole(layer.backward_input_ns) &&
               is_whole(layer.backward_weight_ns) && is_whole(layer.shared_backward_ns) &&
               is_whole(layer.step_ns);
  }
  const double stages = chunks * static_cast<double>(speeds.size());
  return is_exact ? 0.0 : 2.0 * (chunks * micro_batches + stages);
}

}  // namespace stagecoach::partition
