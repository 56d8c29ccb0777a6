#include "partition/exact/graph.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "partition/exact/chain_terms.h"
#include "partition/exact/closed_sets.h"
#include "partition/exact/graph_reach.h"
#include "schedule/memory/memory_plan.h"

namespace stagecoach::partition {
namespace {

constexpr int kMaxNearSets = kMaxClosedSets / 4;
constexpr int kMaxArcsPerSet = 16;

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

// Returns, for each layer, the last layer that reads its output; itself if none does.
std::vector<int> LastConsumers(const GraphProblem& problem) {
  std::vector<int> last(static_cast<size_t>(problem.layers));
  std::iota(last.begin(), last.end(), 0);
  for (const Edge& edge : problem.edges) {
    last[edge.producer] = std::max(last[edge.producer], edge.consumer);
  }
  return last;
}

// Returns the graph as a chain in the order of its layers.
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

// Returns true if every layer needs the one before it, so that there is only one order.
bool IsChain(const GraphProblem& problem) {
  std::vector<bool> follows(static_cast<size_t>(problem.layers), false);
  for (const Edge& edge : problem.edges) {
    if (edge.producer + 1 == edge.consumer) follows[edge.consumer] = true;
  }
  return std::all_of(follows.begin() + 1, follows.end(), [](bool follow) { return follow; });
}

// The same graph with its layers in another topological order.
class Reordered {
 public:
  Reordered(const GraphProblem& problem, absl::Span<const int> order) {
    std::vector<int> place(order.size());
    for (size_t i = 0; i < order.size(); ++i) place[order[i]] = static_cast<int>(i);
    for (const Edge& edge : problem.edges) {
      edges_.push_back({place[edge.producer], place[edge.consumer]});
    }
    const auto reorder = [&](auto& values) {
      if (values.empty()) return;
      const auto given = values;
      for (size_t i = 0; i < order.size(); ++i) values[i] = given[order[i]];
    };
    problem_ = problem;
    problem_.edges = edges_;
    problem_.chain.start_ns.clear();
    problem_.chain.extra_ns = nullptr;
    // It is unknown whether some set passes less.
    problem_.chain.boundary_bytes.assign(order.size(), 0);
    for (auto* const values :
         {&problem_.output_bytes, &problem_.chain.layer_bytes, &problem_.chain.layer_stash_bytes}) {
      reorder(*values);
    }
    reorder(problem_.chain.layer_ns);
  }
  // problem_ refers to edges_.
  Reordered(const Reordered&) = delete;
  Reordered& operator=(const Reordered&) = delete;

  const GraphProblem& problem() const { return problem_; }

 private:
  std::vector<Edge> edges_;
  GraphProblem problem_;
};

std::optional<ClosedSets> ListClosedSets(const GraphProblem& problem, int reach, int max_sets) {
  ClosedSets sets(problem.edges, problem.output_bytes,
                  {.reach = reach, .sets = max_sets, .arcs = kMaxArcsPerSet * max_sets});
  if (sets.is_too_large()) return std::nullopt;
  return sets;
}

// Lists the sets near the order of the layers, about as many as can be tried for each of many
// orders. Returns nothing if even the nearest ones are too many.
std::optional<ClosedSets> ListNearSets(const GraphProblem& problem) {
  std::optional<ClosedSets> sets;
  for (int reach = 2;; reach += reach / 2) {
    std::optional<ClosedSets> more = ListClosedSets(problem, reach, kMaxNearSets);
    if (!more.has_value()) return sets;
    sets = std::move(more);
  }
}

// Returns the layers of each stage, in the given order of all: `done` are sets in the order of
// `order`.
GraphCut CutAt(const ClosedSets& sets, absl::Span<const int> done, absl::Span<const int> order) {
  std::vector<int> stage_of(order.size());
  for (size_t stage = done.size(); stage-- > 0;) {
    for (int set = done[stage]; set != 0; set = sets.parent(set)) {
      stage_of[order[sets.added(set)]] = static_cast<int>(stage);
    }
  }
  GraphCut cut;
  cut.order.resize(order.size());
  std::iota(cut.order.begin(), cut.order.end(), 0);
  std::stable_sort(cut.order.begin(), cut.order.end(),
                   [&](int a, int b) { return stage_of[a] < stage_of[b]; });
  for (size_t place = 0; place < order.size(); ++place) {
    const bool is_first =
        place == 0 || stage_of[cut.order[place]] != stage_of[cut.order[place - 1]];
    if (is_first) cut.first_layer.push_back(static_cast<int>(place));
  }
  return cut;
}

// Finds the fastest cut along the closed sets of a graph in some order, if it is faster than the
// best one so far.
class GraphSearch {
 public:
  // All arguments must outlive the search.
  GraphSearch(const ChainTerms& terms, const ClosedSets& sets, const std::function<bool()>& is_over)
      : terms_(terms), sets_(sets), reach_(terms, sets, is_over) {}

  // Bisects the bottleneck below `units`. Returns false if it was stopped early.
  bool Run(int64_t units) {
    int64_t low = terms_.LowerBound();
    while (low < units && !reach_.is_over()) {
      if (reach_.Probe(low + (units - low) / 2)) {
        done_ = reach_.done();
        units = bottleneck_ = reach_.bottleneck();
      } else {
        low = reach_.needed();
      }
    }
    return !reach_.is_over();
  }

  bool has_cut() const { return !done_.empty(); }
  GraphCut Cut(absl::Span<const int> order) const {
    GraphCut cut = CutAt(sets_, done_, order);
    cut.bottleneck_ns = terms_.ToNs(bottleneck_);
    return cut;
  }

 private:
  const ChainTerms& terms_;
  const ClosedSets& sets_;
  GraphReach reach_;
  std::vector<int> done_;
  int64_t bottleneck_ = 0;
};

}  // namespace

absl::StatusOr<GraphCut> PartitionGraph(const GraphProblem& problem,
                                        const std::function<bool()>& is_over) {
  RETURN_IF_ERROR(CheckProblem(problem));
  absl::StatusOr<GraphCut> best = CutInGivenOrder(InGivenOrder(problem));
  const bool is_refused = !best.ok() && !absl::IsResourceExhausted(best.status());
  if (is_refused || IsChain(problem)) return best;
  const int64_t total_bytes =
      std::accumulate(problem.output_bytes.begin(), problem.output_bytes.end(), int64_t{0});
  std::vector<int> order(static_cast<size_t>(problem.layers));
  std::iota(order.begin(), order.end(), 0);
  bool are_too_many = false;  // to list them all
  while (true) {
    const Reordered reordered(problem, order);
    const GraphProblem& graph = reordered.problem();
    ASSIGN_OR_RETURN(const ChainTerms terms, ChainTerms::Create(graph.chain, total_bytes));
    const int64_t units = best.ok() ? terms.ToUnits(best->bottleneck_ns) : terms.max_units() + 1;
    if (units <= terms.LowerBound()) return best;
    if (best.ok()) best->is_optimal = false;
    std::optional<ClosedSets> sets;
    if (!are_too_many) sets = ListClosedSets(graph, problem.layers, kMaxClosedSets);
    are_too_many = !sets.has_value();
    if (are_too_many) sets = ListNearSets(graph);
    if (!sets.has_value()) return best;
    GraphSearch search(terms, *sets, is_over);
    const bool is_done = search.Run(units);
    if (search.has_cut()) best = search.Cut(order);
    if (best.ok()) best->is_optimal = is_done && sets->is_complete();
    if (!is_done || sets->is_complete() || !search.has_cut()) return best;
    order = best->order;
  }
}

}  // namespace stagecoach::partition
