#ifndef STAGECOACH_PARTITION_EXACT_GRAPH_H_
#define STAGECOACH_PARTITION_EXACT_GRAPH_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "partition/cost/profile.h"
#include "partition/exact/chain.h"

namespace stagecoach::partition {

// The problem of cutting a directed acyclic graph into stages: a chain of sets of layers, each
// closed under predecessors (its maximal layers are an antichain), so that every edge stays within
// a stage or leads to a later one. What is produced before a cut and read after it passes the cut,
// each output once, also through stages that do not read it.
struct GraphProblem {
  int layers = 1;
  // producer < consumer. None: every layer can be anywhere (unlike in a Profile).
  absl::Span<const Edge> edges;
  std::vector<int64_t> output_bytes;  // of each layer
  // Times, speeds, links and memory as in a chain, per layer; ignores its boundary_bytes (they
  // follow from output_bytes), start_ns and extra_ns.
  ChainProblem chain;
};

struct GraphCut {
  std::vector<int> order;        // a topological order of the layers in which stages are contiguous
  std::vector<int> first_layer;  // of each stage, places in `order`
  double bottleneck_ns = 0;
  // True if no cut is faster. If not, the graph has more than kMaxClosedSets closed sets, and only
  // those near some orders were tried; or the search was stopped too early.
  bool is_optimal = true;
};

inline constexpr int kMaxClosedSets = 1 << 18;

// Finds the exact optimum (but see is_optimal): bisection over the bottleneck, as in
// PartitionChain; for each value a dynamic program over (stage, closed set). O(stages * sets *
// width) time per value, less if stages are about equally full; O(sets * width) memory. `is_over`,
// if not empty, is called often; once it returns true, the best cut so far is returned.
// Deterministic if it does not. Errors: those of PartitionChain.
absl::StatusOr<GraphCut> PartitionGraph(const GraphProblem& problem,
                                        const std::function<bool()>& is_over = nullptr);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_EXACT_GRAPH_H_
