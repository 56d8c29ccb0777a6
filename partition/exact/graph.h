#ifndef STAGECOACH_PARTITION_EXACT_GRAPH_H_
#define STAGECOACH_PARTITION_EXACT_GRAPH_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "partition/exact/chain.h"
#include "partition/profile.h"

namespace stagecoach::partition {

// Cut a directed acyclic graph into stages: a chain of sets of layers, each closed under
// predecessors (its maximal layers are an antichain), so that every edge goes within a stage or to
// a later one. What is produced before a cut and read after it passes it, each output once, also
// through stages that do not read it.
struct GraphProblem {
  int layers = 1;
  // producer < consumer. None: every layer can go anywhere (unlike in a Profile).
  absl::Span<const Edge> edges;
  std::vector<int64_t> output_bytes;  // of each layer
  // Times, speeds, links, memory as in a chain, per layer; its boundary_bytes are not read (they
  // follow from output_bytes), nor its start_ns and extra_ns.
  ChainProblem chain;
};

struct GraphCut {
  std::vector<int> order;        // a topological order of the layers in which stages are contiguous
  std::vector<int> first_layer;  // of each stage, places in `order`
  double bottleneck_ns = 0;
  // Whether no cut is faster. If not, the graph has more than kMaxClosedSets closed sets, and only
  // those near some orders were tried; or the search was over too early.
  bool is_optimal = true;
};

inline constexpr int kMaxClosedSets = 1 << 18;

// Exact (but see is_optimal): bisection over the bottleneck, as in PartitionChain; for each value a
// dynamic program over (stage, closed set). O(stages * sets * width) time per value asked, less
// where stages are about equally full; O(sets * width) memory. `is_over`, if not empty, is asked
// often; once it says yes, the best cut so far is returned. Deterministic if it does not. Errors:
// those of PartitionChain.
absl::StatusOr<GraphCut> PartitionGraph(const GraphProblem& problem,
                                        const std::function<bool()>& is_over = nullptr);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_EXACT_GRAPH_H_
