#ifndef STAGECOACH_PARTITION_BOUNDS_BOUNDARIES_H_
#define STAGECOACH_PARTITION_BOUNDS_BOUNDARIES_H_

#include <array>
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "absl/types/span.h"
#include "partition/cost/profile.h"
#include "partition/cost/replication.h"
#include "partition/evaluate/cut_evaluator.h"

namespace stagecoach::partition {

// Sums over the layers before a boundary.
enum BoundarySum : uint8_t {
  kWorkNs,           // LayerCost::batch_ns of all micro-batches of a replica
  kForwardNs,        // F, per micro-batch
  kTurnNs,           // F and B, per micro-batch
  kFusedTurnNs,      // F and BW, per micro-batch
  kBackwardNs,       // B, per micro-batch
  kFusedBackwardNs,  // BW, per micro-batch
  kResidentBytes,    // kept by a device all the time
  kStashBytes,       // of one micro-batch, from F until B
};
using BoundarySums = std::array<double, kStashBytes + 1>;

// One or several places in which a model can be divided: closed sets of layers that are done
// (exact/graph.h). For several, the least and the most of each sum, and the least of messages.
struct Boundary {
  BoundarySums least = {}, most = {};
  int64_t forward_bytes = 0;   // of the activation that passes, per micro-batch
  int64_t backward_bytes = 0;  // of its gradient
  bool is_single = true;
};

// Returns boundaries such that every place in which the layers can be divided, in whatever order
// they are cut, belongs to one of them, ascending by work; the first is before all layers, the last
// behind all. At most kMostBoundaries: neighbors are merged, and if a graph has more closed sets
// than kMostListedSets, a boundary stands for all sets of about the same work. `micro_batches`: of
// each replica. `edges`: of a graph; none: a chain. For a graph of more than kMostBoundedLayers
// layers only the first and the last.
std::vector<Boundary> BoundariesOf(const LayerTable& table, absl::Span<const Edge> edges,
                                   int micro_batches, const Replication& replication,
                                   bool may_recompute);

// The boundaries of a profile computed so far, by micro-batch size, micro-batches of each replica,
// and replicas.
struct KnownBoundaries {
  std::map<std::tuple<int64_t, int, int>, std::vector<Boundary>> of;
  std::map<int64_t, std::vector<double>> needed_ns;  // NeededNs by micro-batch size
};

inline constexpr int kMostBoundaries = 640;
inline constexpr int kMostListedSets = 1 << 13;
inline constexpr int kMostBoundedLayers = 1 << 12;

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_BOUNDS_BOUNDARIES_H_
