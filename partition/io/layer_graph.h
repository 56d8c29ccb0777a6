#ifndef STAGECOACH_PARTITION_IO_LAYER_GRAPH_H_
#define STAGECOACH_PARTITION_IO_LAYER_GRAPH_H_

#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "partition/cost/profile.h"

namespace stagecoach::partition {

// Helpers for readers of profiles whose layers come in any order.

struct TopologicalOrder {
  std::vector<int> layers;      // all of them, unless there is a cycle
  std::optional<int> on_cycle;  // a layer of one
};

// Sorts the layers 0 to `layers` - 1: each after everything that it reads, and the lowest number
// first among those that may come next. `edges`: in any direction, without duplicates.
TopologicalOrder SortLayers(int layers, absl::Span<const Edge> edges);

// Puts the layers of every size into that order, which contains all of them. Edges are renumbered
// and sorted by consumer, then producer; those of a chain are removed.
void ReorderLayers(absl::Span<const int> order, Profile& profile);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_IO_LAYER_GRAPH_H_
