#include "partition/bounds/boundaries.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>

#include "partition/bounds/layer_bounds.h"
#include "partition/exact/closed_sets.h"

namespace stagecoach::partition {
namespace {

using schedule::LastUse;

BoundarySums Plus(BoundarySums a, const BoundarySums& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

// The outputs that a stage keeps whose layers are in it, or whose first reader is: each at most
// once in each stage, however the layers are divided.
std::vector<double> KeptOutputs(const LayerTable& table, absl::Span<const Edge> edges) {
  std::vector<double> kept_bytes(table.layers.size());
  std::vector<bool> is_kept(table.layers.size());
  const auto keep = [&](size_t producer, size_t keeper, int64_t bytes) {
    if (is_kept[producer]) return;
    is_kept[producer] = true;
    kept_bytes[keeper] += static_cast<double>(bytes);
  };
  const auto memory = [&](size_t layer) -> const LayerMemory& {
    return table.layers[layer].memory;
  };
  for (size_t i = 0; i < table.layers.size(); ++i) {
    if (memory(i).output_last_use != LastUse::kForward) keep(i, i, memory(i).output_bytes);
  }
  const auto read = [&](size_t producer, size_t consumer) {
    if (memory(consumer).input_last_use == LastUse::kForward) return;
    keep(producer, consumer, std::min(memory(producer).output_bytes, memory(consumer).input_bytes));
  };
  for (size_t i = 1; edges.empty() && i < table.layers.size(); ++i) read(i - 1, i);
  for (const Edge& edge : edges) {
    read(static_cast<size_t>(edge.producer), static_cast<size_t>(edge.consumer));
  }
  return kept_bytes;
}

std::vector<BoundarySums> SumsOfLayers(const LayerTable& table, absl::Span<const Edge> edges,
                                       int micro_batches, const Replication& replication,
                                       bool may_recompute) {
  const std::vector<double> kept_bytes = KeptOutputs(table, edges);
  std::vector<BoundarySums> sums;
  for (size_t i = 0; i < table.layers.size(); ++i) {
    const LayerCost& layer = table.layers[i];
    const int64_t own_bytes = LeastOwnStashBytes(layer, may_recompute);
    sums.push_back({layer.batch_ns(micro_batches), layer.forward_ns,
                    layer.forward_ns + layer.backward_input_ns,
                    layer.forward_ns + layer.fused_backward_ns(), layer.backward_input_ns,
                    layer.fused_backward_ns(),
                    static_cast<double>(TrainedBytes(layer, replication)),
                    kept_bytes[i] + static_cast<double>(own_bytes)});
  }
  return sums;
}

Boundary SingleAt(const BoundarySums& sums, int64_t forward_bytes, int64_t backward_bytes) {
  return {.least = sums,
          .most = sums,
          .forward_bytes = forward_bytes,
          .backward_bytes = backward_bytes};
}

std::vector<Boundary> OfChain(const LayerTable& table, absl::Span<const BoundarySums> of_layer) {
  std::vector<Boundary> boundaries = {Boundary()};
  BoundarySums before = {};
  for (size_t i = 0; i < of_layer.size(); ++i) {
    before = Plus(before, of_layer[i]);
    const LayerMemory& last = table.layers[i].memory;
    const bool is_end = i + 1 == of_layer.size();
    boundaries.push_back(SingleAt(before, is_end ? 0 : last.output_bytes + last.passing_bytes,
                                  is_end ? 0 : table.layers[i + 1].memory.input_bytes));
  }
  return boundaries;
}

std::vector<Boundary> OfSets(const ClosedSets& sets, absl::Span<const BoundarySums> of_layer) {
  std::vector<Boundary> boundaries = {Boundary()};
  for (int set = 1; set < sets.size(); ++set) {
    const BoundarySums before = Plus(boundaries[static_cast<size_t>(sets.parent(set))].least,
                                     of_layer[static_cast<size_t>(sets.added(set))]);
    boundaries.push_back(SingleAt(before, sets.cut_bytes(set), sets.cut_bytes(set)));
  }
  // Both ends stay where they are; layers that take no time are there before others.
  std::stable_sort(
      boundaries.begin() + 1, boundaries.end() - 1,
      [](const Boundary& a, const Boundary& b) { return a.least[kWorkNs] < b.least[kWorkNs]; });
  return boundaries;
}

// Boundaries of a graph by their work alone: a set of that work certainly holds some layers and
// certainly lacks others.
class ByWork {
 public:
  ByWork(const LayerTable& table, absl::Span<const Edge> edges,
         absl::Span<const BoundarySums> of_layer)
      : table_(table), edges_(edges), of_layer_(of_layer), all_({}) {
    for (const BoundarySums& sums : of_layer) all_ = Plus(all_, sums);
    slack_ns_ = 1e-9 * all_[kWorkNs];
    FindLeastAndMost();
    SetRatios();
  }

  std::vector<Boundary> List() const {
    std::vector<double> work_ns = {0, all_[kWorkNs]};
    work_ns.insert(work_ns.end(), needed_ns_.begin(), needed_ns_.end());
    work_ns.insert(work_ns.end(), possible_ns_.begin(), possible_ns_.end());
    std::sort(work_ns.begin(), work_ns.end());
    const double least_ns = all_[kWorkNs] / kMostBoundaries;
    std::vector<Boundary> boundaries = {Boundary()};
    double begin_ns = 0;
    for (size_t i = 0; i < work_ns.size(); ++i) {
      const bool is_end = i + 1 == work_ns.size();
      if (!is_end && work_ns[i] - begin_ns < least_ns) continue;
      boundaries.push_back(Between(begin_ns, work_ns[i]));
      begin_ns = work_ns[i];
    }
    boundaries.push_back(SingleAt(all_, 0, 0));
    return boundaries;
  }

 private:
  // For each layer, the work of a set with it at least, and of one without it at most.
  void FindLeastAndMost() {
    const size_t count = of_layer_.size();
    const size_t words = (count + 63) / 64;
    std::vector<uint64_t> before(count * words);  // a bit for each layer that another one needs
    std::vector<std::vector<size_t>> inputs(count);
    for (const Edge& edge : edges_) {
      inputs[static_cast<size_t>(edge.consumer)].push_back(static_cast<size_t>(edge.producer));
    }
    needed_ns_.resize(count);
    possible_ns_.assign(count, all_[kWorkNs]);
    for (size_t i = 0; i < count; ++i) {
      uint64_t* const own = before.data() + i * words;
      own[i / 64] |= uint64_t{1} << (i % 64);
      for (const size_t input : inputs[i]) {
        for (size_t word = 0; word < words; ++word) own[word] |= before[input * words + word];
      }
      for (size_t other = 0; other <= i; ++other) {
        if ((own[other / 64] >> (other % 64) & 1) == 0) continue;
        needed_ns_[i] += of_layer_[other][kWorkNs];
        possible_ns_[other] -= of_layer_[i][kWorkNs];
      }
    }
  }

  Boundary Between(double least_ns, double most_ns) const {
    enum Place : uint8_t { kBefore, kOpen, kAfter };
    std::vector<Place> places;
    std::vector<size_t> open;
    BoundarySums before = {};
    for (size_t i = 0; i < of_layer_.size(); ++i) {
      const bool is_before = possible_ns_[i] < least_ns - slack_ns_;
      const bool is_after = needed_ns_[i] > most_ns + slack_ns_;
      places.push_back(is_before ? kBefore : is_after ? kAfter : kOpen);
      if (is_before) before = Plus(before, of_layer_[i]);
      if (places.back() == kOpen) open.push_back(i);
    }
    Boundary boundary = {.least = before, .most = before, .is_single = false};
    const double least_open_ns = least_ns - slack_ns_ - before[kWorkNs];
    const double most_open_ns = most_ns + slack_ns_ - before[kWorkNs];
    for (size_t sum = 0; sum < before.size(); ++sum) {
      std::sort(open.begin(), open.end(),
                [&](size_t a, size_t b) { return ratios_[a][sum] < ratios_[b][sum]; });
      boundary.least[sum] += Share(open.begin(), open.end(), sum, least_open_ns, true);
      boundary.most[sum] += Share(open.rbegin(), open.rend(), sum, most_open_ns, false);
    }
    boundary.least[kWorkNs] = least_ns;
    boundary.most[kWorkNs] = most_ns;
    boundary.forward_bytes = boundary.backward_bytes =
        PassingBytes([&](int l) { return places[static_cast<size_t>(l)] == kBefore; },
                     [&](int l) { return places[static_cast<size_t>(l)] == kAfter; });
    return boundary;
  }

  // The least, or the most, that layers have of a sum if those of them that are taken, perhaps in
  // part, work for so long. They come in the order in which they are taken.
  template <typename Iterator>
  double Share(Iterator layer, Iterator end, size_t sum, double work_ns, bool is_least) const {
    double share = 0;
    for (; layer != end; ++layer) {
      const BoundarySums& own = of_layer_[*layer];
      if (own[kWorkNs] == 0) {
        share += is_least ? 0 : own[sum];
      } else if (work_ns > 0) {
        share += own[sum] * std::min(1.0, work_ns / own[kWorkNs]);
        work_ns -= own[kWorkNs];
      }
    }
    return share;
  }

  void SetRatios() {
    ratios_.assign(of_layer_.begin(), of_layer_.end());
    for (BoundarySums& ratios : ratios_) {
      const double own_ns = ratios[kWorkNs];
      for (double& ratio : ratios) {
        ratio = own_ns > 0 ? ratio / own_ns : std::numeric_limits<double>::infinity();
      }
    }
  }

  // Outputs of layers before that layers after read.
  template <typename IsBefore, typename IsAfter>
  int64_t PassingBytes(IsBefore is_before, IsAfter is_after) const {
    std::vector<bool> passes(of_layer_.size());
    int64_t bytes = 0;
    for (const Edge& edge : edges_) {
      const auto producer = static_cast<size_t>(edge.producer);
      if (passes[producer] || !is_before(edge.producer) || !is_after(edge.consumer)) continue;
      passes[producer] = true;
      bytes += table_.layers[producer].memory.output_bytes;
    }
    return bytes;
  }

  const LayerTable& table_;
  const absl::Span<const Edge> edges_;
  const absl::Span<const BoundarySums> of_layer_;
  BoundarySums all_;
  double slack_ns_ = 0;               // that sums in different orders may differ
  std::vector<double> needed_ns_;     // index: layer; of it and all layers that it needs
  std::vector<double> possible_ns_;   // of all but it and the layers that need it
  std::vector<BoundarySums> ratios_;  // of sums to work
};

// Merges neighbors, except for the two ends, until at most kMostBoundaries remain between them.
std::vector<Boundary> Fewer(std::vector<Boundary> boundaries) {
  const size_t between = boundaries.size() - 2;
  const size_t together = (between + kMostBoundaries - 1) / kMostBoundaries;
  if (together < 2) return boundaries;
  std::vector<Boundary> fewer = {boundaries.front()};
  for (size_t i = 0; i < between; ++i) {
    const Boundary& own = boundaries[i + 1];
    if (i % together == 0) {
      fewer.push_back(own);
      continue;
    }
    Boundary& all = fewer.back();
    for (size_t sum = 0; sum < all.least.size(); ++sum) {
      all.least[sum] = std::min(all.least[sum], own.least[sum]);
      all.most[sum] = std::max(all.most[sum], own.most[sum]);
    }
    all.forward_bytes = std::min(all.forward_bytes, own.forward_bytes);
    all.backward_bytes = std::min(all.backward_bytes, own.backward_bytes);
    all.is_single = false;
  }
  fewer.push_back(boundaries.back());
  return fewer;
}

}  // namespace

std::vector<Boundary> BoundariesOf(const LayerTable& table, absl::Span<const Edge> edges,
                                   int micro_batches, const Replication& replication,
                                   bool may_recompute) {
  const std::vector<BoundarySums> of_layer =
      SumsOfLayers(table, edges, micro_batches, replication, may_recompute);
  if (edges.empty()) return Fewer(OfChain(table, of_layer));
  if (table.num_layers() > kMostBoundedLayers) {
    const BoundarySums all =
        std::accumulate(of_layer.begin(), of_layer.end(), BoundarySums(), Plus);
    return {Boundary(), {.least = {}, .most = all, .is_single = false}, SingleAt(all, 0, 0)};
  }
  std::vector<int64_t> output_bytes;
  for (const LayerCost& layer : table.layers) output_bytes.push_back(layer.memory.output_bytes);
  const ClosedSets sets(
      edges, output_bytes,
      {.reach = table.num_layers(), .sets = kMostListedSets, .arcs = 16 * kMostListedSets});
  if (sets.is_complete()) return Fewer(OfSets(sets, of_layer));
  return Fewer(ByWork(table, edges, of_layer).List());
}

}  // namespace stagecoach::partition
