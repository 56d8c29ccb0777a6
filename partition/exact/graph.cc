#include "partition/exact/graph.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "absl/numeric/bits.h"
#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "partition/exact/chain_terms.h"
#include "schedule/memory.h"

namespace stagecoach::partition {
namespace {

absl::Status CheckProblem(const GraphProblem& problem) {
  const size_t layers = static_cast<size_t>(problem.layers);
  if (problem.layers < 1 || problem.chain.layer_ns.size() != layers ||
      problem.output_bytes.size() != layers) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "a graph of %d layers with %d times and %d outputs: expected as many of each, at least 1",
        problem.layers, problem.chain.layer_ns.size(), problem.output_bytes.size()));
  }
  for (size_t i = 0; i < problem.edges.size(); ++i) {
    const Edge& edge = problem.edges[i];
    if (edge.producer >= 0 && edge.producer < edge.consumer && edge.consumer < problem.layers) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrFormat(
        "edge %d goes from layer %d to layer %d: expected 0 <= producer < consumer < %d", i,
        edge.producer, edge.consumer, problem.layers));
  }
  int64_t total_bytes = 0;
  for (size_t i = 0; i < layers; ++i) {
    const int64_t bytes = problem.output_bytes[i];
    if (bytes >= 0 && bytes <= schedule::kMaxSizeBytes - total_bytes) {
      total_bytes += bytes;
      continue;
    }
    return absl::InvalidArgumentError(absl::StrFormat(
        "output_bytes of layer %d is %d: expected 0 or more, and at most %d for all layers", i,
        bytes, schedule::kMaxSizeBytes));
  }
  return absl::OkStatus();
}

// For each layer, the last layer that reads its output; itself if none does.
std::vector<int> LastConsumers(const GraphProblem& problem) {
  std::vector<int> last(static_cast<size_t>(problem.layers));
  std::iota(last.begin(), last.end(), 0);
  for (const Edge& edge : problem.edges) {
    last[edge.producer] = std::max(last[edge.producer], edge.consumer);
  }
  return last;
}

// The graph as a chain in the order of its layers.
ChainProblem InGivenOrder(const GraphProblem& problem) {
  ChainProblem chain = problem.chain;
  chain.start_ns.clear();
  chain.extra_ns = nullptr;
  std::vector<int64_t> change(static_cast<size_t>(problem.layers) + 1, 0);
  const std::vector<int> last_consumers = LastConsumers(problem);
  for (size_t i = 0; i < last_consumers.size(); ++i) {  // it passes the boundaries (i, last]
    change[i + 1] += problem.output_bytes[i];
    change[static_cast<size_t>(last_consumers[i]) + 1] -= problem.output_bytes[i];
  }
  std::partial_sum(change.begin(), change.end(), change.begin());
  change.pop_back();
  chain.boundary_bytes = std::move(change);
  return chain;
}

absl::StatusOr<GraphCut> CutInGivenOrder(const ChainProblem& chain) {
  ASSIGN_OR_RETURN(ChainCut in_order, PartitionChain(chain));
  GraphCut cut;
  cut.order.resize(chain.layer_ns.size());
  std::iota(cut.order.begin(), cut.order.end(), 0);
  cut.first_layer = std::move(in_order.first_layer);
  cut.bottleneck_ns = in_order.bottleneck_ns;
  return cut;
}

// True if every layer needs the one before it, so that there is one order only.
bool IsChain(const GraphProblem& problem) {
  std::vector<bool> follows(static_cast<size_t>(problem.layers), false);
  for (const Edge& edge : problem.edges) {
    if (edge.producer + 1 == edge.consumer) follows[edge.consumer] = true;
  }
  return std::all_of(follows.begin() + 1, follows.end(), [](bool follow) { return follow; });
}

// Sets of layers that hold all predecessors of their members.
class ClosedSets {
 public:
  // Adds layers in ascending order, so that each set arises once. Stops above kMaxClosedSets.
  explicit ClosedSets(const GraphProblem& problem)
      : words_((static_cast<size_t>(problem.layers) + 63) / 64) {
    std::vector<std::vector<int>> producers(static_cast<size_t>(problem.layers));
    for (const Edge& edge : problem.edges) producers[edge.consumer].push_back(edge.producer);
    bits_.assign(words_, 0);
    parents_.push_back(0);
    added_.push_back(-1);
    for (int set = 0; set < size(); ++set) {
      for (int layer = added_[set] + 1; layer < problem.layers; ++layer) {
        const std::vector<int>& needed = producers[layer];
        if (!std::all_of(needed.begin(), needed.end(),
                         [&](int producer) { return Has(set, producer); })) {
          continue;
        }
        Add(set, layer);
        if (size() > kMaxClosedSets) return;
      }
    }
  }

  int size() const { return static_cast<int>(added_.size()); }
  bool is_complete() const { return size() <= kMaxClosedSets; }
  // A set is its parent, which comes before it, and the layer that was added to that.
  int parent(int set) const { return parents_[set]; }
  int added(int set) const { return added_[set]; }

  bool Has(int set, int layer) const {
    return ((bits_[Word(set) + static_cast<size_t>(layer / 64)] >> (layer % 64)) & 1) != 0;
  }
  bool Includes(int set, int other) const {
    for (size_t word = 0; word < words_; ++word) {
      if ((bits_[Word(other) + word] & ~bits_[Word(set) + word]) != 0) return false;
    }
    return true;
  }
  int CountLayers(int set) const {
    int count = 0;
    for (size_t word = 0; word < words_; ++word) count += absl::popcount(bits_[Word(set) + word]);
    return count;
  }

 private:
  size_t Word(int set) const { return static_cast<size_t>(set) * words_; }

  void Add(int set, int layer) {
    const size_t end = bits_.size();
    bits_.resize(end + words_);
    std::copy_n(bits_.begin() + static_cast<ptrdiff_t>(Word(set)), words_,
                bits_.begin() + static_cast<ptrdiff_t>(end));
    bits_[end + static_cast<size_t>(layer / 64)] |= uint64_t{1} << (layer % 64);
    parents_.push_back(set);
    added_.push_back(layer);
  }

  const size_t words_;
  std::vector<uint64_t> bits_;
  std::vector<int> parents_;
  std::vector<int> added_;
};

// A dynamic program over the closed sets: after each stage one of them is done.
class GraphSolver {
 public:
  // All must outlive the solver. Cuts slower than `limit` units are not looked for.
  GraphSolver(const GraphProblem& problem, const ChainTerms& terms, const ClosedSets& sets,
              int64_t limit)
      : problem_(problem), terms_(terms), sets_(sets) {
    FindCutBytes();
    FindParts(limit);
  }

  // Nothing if there is none.
  std::optional<GraphCut> Solve() {
    std::vector<int64_t> slowest(static_cast<size_t>(sets_.size()), ChainTerms::kNever);
    slowest[0] = 0;
    for (int stage = 0; stage < terms_.stages(); ++stage) slowest = Advance(slowest, stage);
    if (slowest[full_set_] == ChainTerms::kNever) return std::nullopt;
    return CutAt(terms_.ToNs(slowest[full_set_]));
  }

 private:
  // What is produced in a set and read outside it.
  void FindCutBytes() {
    std::vector<std::vector<int>> consumers(static_cast<size_t>(problem_.layers));
    for (const Edge& edge : problem_.edges) consumers[edge.producer].push_back(edge.consumer);
    for (int set = 0; set < sets_.size(); ++set) {
      int64_t& bytes = cut_bytes_.emplace_back(0);
      for (int layer = 0; layer < problem_.layers; ++layer) {
        const std::vector<int>& readers = consumers[layer];
        const bool passes = sets_.Has(set, layer) &&
                            std::any_of(readers.begin(), readers.end(),
                                        [&](int reader) { return !sets_.Has(set, reader); });
        if (passes) bytes += problem_.output_bytes[layer];
      }
      if (sets_.CountLayers(set) == problem_.layers) full_set_ = set;
    }
  }

  std::vector<int64_t> UnitsOfSets(int stage) const {
    std::vector<int64_t> units = {0};
    for (int set = 1; set < sets_.size(); ++set) {
      units.push_back(units[sets_.parent(set)] + terms_.LayerUnits(sets_.added(set), stage));
    }
    return units;
  }

  std::vector<int64_t> BytesOfSets(int stage) const {
    std::vector<int64_t> bytes = {0};
    for (int set = 1; set < sets_.size(); ++set) {
      const int layer = sets_.added(set);
      bytes.push_back(bytes[sets_.parent(set)] + terms_.BytesBefore(layer + 1, stage) -
                      terms_.BytesBefore(layer, stage));
    }
    return bytes;
  }

  // For each set those that it includes, unless even the fastest stage would exceed the limit.
  void FindParts(int64_t limit) {
    const std::vector<double>& speeds = problem_.chain.speeds;
    const auto fastest = std::max_element(speeds.begin(), speeds.end());
    const std::vector<int64_t> units = UnitsOfSets(static_cast<int>(fastest - speeds.begin()));
    for (int set = 0; set < sets_.size(); ++set) {
      first_part_.push_back(parts_.size());
      for (int part = 0; part < sets_.size(); ++part) {
        const int64_t difference = units[set] - units[part];
        if (part == set || difference < 0 || difference > limit) continue;
        if (sets_.Includes(set, part)) parts_.push_back(part);
      }
    }
    first_part_.push_back(parts_.size());
  }

  std::vector<int64_t> MessagesAt(int link) const {
    std::vector<int64_t> units(static_cast<size_t>(sets_.size()), 0);
    if (!terms_.has_messages() || link < 0 || link + 1 == terms_.stages()) return units;
    for (int set = 0; set < sets_.size(); ++set) {
      units[set] = terms_.MessageUnits(link, cut_bytes_[set]);
    }
    return units;
  }

  // From the least bottleneck with which each set is done before a stage to those behind it.
  std::vector<int64_t> Advance(const std::vector<int64_t>& slowest, int stage) {
    const std::vector<int64_t> units = UnitsOfSets(stage);
    const std::vector<int64_t> receive = MessagesAt(stage - 1);
    const std::vector<int64_t> send = MessagesAt(stage);
    const bool limits_memory = terms_.limits_memory();
    const std::vector<int64_t> bytes = BytesOfSets(stage);
    std::vector<int64_t> next(slowest.size(), ChainTerms::kNever);
    std::vector<int>& before = before_.emplace_back(slowest.size(), 0);
    for (int set = 0; set < sets_.size(); ++set) {
      for (size_t i = first_part_[set]; i < first_part_[set + 1]; ++i) {
        const int part = parts_[i];
        if (slowest[part] >= next[set]) continue;
        if (limits_memory && bytes[set] - bytes[part] > terms_.BudgetBytes(stage)) continue;
        const int64_t stage_units =
            terms_.StageUnits(units[set] - units[part], receive[part], send[set]);
        const int64_t bottleneck = std::max(slowest[part], stage_units);
        if (bottleneck >= next[set]) continue;
        next[set] = bottleneck;
        before[set] = part;
      }
    }
    return next;
  }

  GraphCut CutAt(double bottleneck_ns) const {
    std::vector<int> done(static_cast<size_t>(terms_.stages()) + 1, full_set_);
    for (int stage = terms_.stages() - 1; stage >= 0; --stage) {
      done[stage] = before_[stage][done[stage + 1]];
    }
    GraphCut cut;
    cut.bottleneck_ns = bottleneck_ns;
    for (int stage = 0; stage < terms_.stages(); ++stage) {
      cut.first_layer.push_back(static_cast<int>(cut.order.size()));
      for (int layer = 0; layer < problem_.layers; ++layer) {
        if (sets_.Has(done[stage + 1], layer) && !sets_.Has(done[stage], layer)) {
          cut.order.push_back(layer);
        }
      }
    }
    return cut;
  }

  const GraphProblem& problem_;
  const ChainTerms& terms_;
  const ClosedSets& sets_;
  int full_set_ = 0;
  std::vector<int64_t> cut_bytes_;        // index: set
  std::vector<size_t> first_part_;        // index: set; of parts_
  std::vector<int> parts_;                // sets
  std::vector<std::vector<int>> before_;  // [stage][set]: which was done before the stage
};

}  // namespace

absl::StatusOr<GraphCut> PartitionGraph(const GraphProblem& problem) {
  RETURN_IF_ERROR(CheckProblem(problem));
  const ChainProblem chain = InGivenOrder(problem);
  absl::StatusOr<GraphCut> in_order = CutInGivenOrder(chain);
  const bool is_refused = !in_order.ok() && !absl::IsResourceExhausted(in_order.status());
  if (is_refused || IsChain(problem)) return in_order;
  const ClosedSets sets(problem);
  if (!sets.is_complete()) {
    if (in_order.ok()) in_order->is_optimal = false;
    return in_order;
  }
  const int64_t total_bytes =
      std::accumulate(problem.output_bytes.begin(), problem.output_bytes.end(), int64_t{0});
  ASSIGN_OR_RETURN(const ChainTerms terms, ChainTerms::Create(chain, total_bytes));
  const int64_t limit = in_order.ok() ? terms.ToUnits(in_order->bottleneck_ns) : ChainTerms::kNever;
  std::optional<GraphCut> best = GraphSolver(problem, terms, sets, limit).Solve();
  const bool is_faster = best && (!in_order.ok() || best->bottleneck_ns < in_order->bottleneck_ns);
  if (is_faster) return *std::move(best);
  return in_order;
}

}  // namespace stagecoach::partition
