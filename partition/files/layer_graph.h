#ifndef STAGECOACH_PARTITION_FILES_LAYER_GRAPH_H_
#define STAGECOACH_PARTITION_FILES_LAYER_GRAPH_H_

#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "partition/profile.h"

namespace stagecoach::partition {

// For readers of profiles whose layers come in any order.

struct TopologicalOrder {
  std::vector<int> layers;      // all of them, unless there is a cycle
  std::optional<int> on_cycle;  // a layer of one
};

// Of the layers 0 to `layers` - 1: each after all that it reads, and of those that may come next
// the one with the least number. `edges`: in any direction, none twice.
TopologicalOrder SortLayers(int layers, absl::Span<const Edge> edges);

// Puts the layers of every size into that order, which has all of them. Edges are renumbered and
// sorted by consumer, then producer; those of a chain are left out.
void ReorderLayers(absl::Span<const int> order, Profile& profile);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_FILES_LAYER_GRAPH_H_
