#ifndef STAGECOACH_PARTITION_EXACT_GRAPH_H_
#define STAGECOACH_PARTITION_EXACT_GRAPH_H_

#include <cstdint>
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
  // False if the graph has more than kMaxClosedSets closed sets: then only the prefixes of one
  // order were tried, and a faster cut may exist.
  bool is_optimal = true;
};

inline constexpr int kMaxClosedSets = 4096;

// Exact (but see is_optimal), by dynamic programming over the closed sets: O(stages * sets^2).
// Where they form a chain it is PartitionChain. Deterministic. Errors: those of PartitionChain.
absl::StatusOr<GraphCut> PartitionGraph(const GraphProblem& problem);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_EXACT_GRAPH_H_
