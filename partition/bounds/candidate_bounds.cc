#include "partition/bounds/candidate_bounds.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <vector>

#include "base/status_macros.h"
#include "partition/cost/layer_cost.h"
#include "partition/exact/chain.h"

namespace stagecoach::partition {
namespace {

// Of all cuts with stage s on rank s: the least that the longest rank takes, for its layers and
// what comes before its first one. `start_ns`: of that layer. No less than `at_least_ns`.
absl::StatusOr<double> LeastLongestNs(const LayerTable& table, absl::Span<const double> speeds,
                                      const std::function<double(const LayerCost&)>& layer_ns,
                                      const std::function<double(size_t)>& start_ns,
                                      double at_least_ns = 0) {
  ChainProblem problem;
  problem.stages = static_cast<int>(speeds.size());
  problem.speeds.assign(speeds.begin(), speeds.end());
  const double most_speed = *std::max_element(speeds.begin(), speeds.end());
  for (size_t i = 0; i < table.layers.size(); ++i) {
    problem.layer_ns.push_back(layer_ns(table.layers[i]));
    problem.start_ns.push_back(start_ns(i) / most_speed);
  }
  return LeastBottleneckNs(problem, at_least_ns);
}

}  // namespace

std::vector<double> NeededNs(const LayerTable& table, absl::Span<const Edge> edges) {
  const auto layers = static_cast<size_t>(table.num_layers());
  std::vector<double> needed_ns(layers);
  const auto both_ns = [&](size_t i) {
    return table.layers[i].forward_ns + table.layers[i].backward_input_ns;
  };
  if (edges.empty()) {
    for (size_t i = 1; i < layers; ++i) needed_ns[i] = needed_ns[i - 1] + both_ns(i - 1);
    return needed_ns;
  }
  if (table.num_layers() > kMaxClosedLayers) return needed_ns;
  std::vector<std::vector<int>> inputs(layers);
  for (const Edge& edge : edges) {
    inputs[static_cast<size_t>(edge.consumer)].push_back(edge.producer);
  }
  const size_t words = (layers + 63) / 64;
  std::vector<uint64_t> needs(layers * words);  // a bit for each layer that another one needs
  for (size_t i = 0; i < layers; ++i) {
    uint64_t* const own = needs.data() + i * words;
    for (const int input : inputs[i]) {
      const uint64_t* const its = needs.data() + static_cast<size_t>(input) * words;
      for (size_t word = 0; word < words; ++word) own[word] |= its[word];
      own[input / 64] |= uint64_t{1} << (input % 64);
    }
    for (size_t other = 0; other < i; ++other) {
      if ((own[other / 64] >> (other % 64) & 1) != 0) needed_ns[i] += both_ns(other);
    }
  }
  return needed_ns;
}

double SimpleBoundNs(const LayerTable& table, absl::Span<const double> speeds, int micro_batches,
                     absl::Span<const double> needed_ns) {
  const double most_speed = *std::max_element(speeds.begin(), speeds.end());
  double all_ns = 0;
  double longest_ns = 0;  // on the fastest device
  std::vector<double> layers_ns;
  for (size_t i = 0; i < table.layers.size(); ++i) {
    const LayerCost& layer = table.layers[i];
    const double both_ns = layer.forward_ns + layer.backward_input_ns;
    const double before_ns = needed_ns.empty() ? 0 : needed_ns[i];
    layers_ns.push_back(layer.batch_ns(micro_batches));
    longest_ns = std::max({longest_ns, before_ns + micro_batches * both_ns, layers_ns.back()});
    all_ns += layers_ns.back();
  }
  // Some rank has k + 1 of the k P + 1 longest layers, which take no less than the shortest of
  // them.
  std::sort(layers_ns.begin(), layers_ns.end(), std::greater<>());
  for (size_t k = 1; k * speeds.size() < layers_ns.size(); ++k) {
    const auto end = layers_ns.begin() + static_cast<int64_t>(k * speeds.size()) + 1;
    longest_ns = std::max(longest_ns, std::accumulate(end - static_cast<int64_t>(k) - 1, end, 0.0));
  }
  // The longest time of a rank is at least the mean of all, weighted by their speeds.
  return std::max(longest_ns / most_speed,
                  all_ns / std::accumulate(speeds.begin(), speeds.end(), 0.0));
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
  return LeastLongestNs(
      table, speeds,
      [&](const LayerCost& layer) {
        return micro_batches * (layer.forward_ns + layer.backward_input_ns);
      },
      [&](size_t i) { return table.forward_ns[i] + table.backward_input_ns[i]; }, busy_ns);
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
               is_whole(layer.step_ns) && is_whole(layer.again_ns());
  }
  const double stages = chunks * static_cast<double>(speeds.size());
  return is_exact ? 0.0 : 2.0 * (chunks * micro_batches + stages);
}

}  // namespace stagecoach::partition
