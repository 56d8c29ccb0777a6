#ifndef STAGECOACH_PARTITION_EXACT_CLOSED_SETS_H_
#define STAGECOACH_PARTITION_EXACT_CLOSED_SETS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "partition/cost/profile.h"

namespace stagecoach::partition {

// Sets of layers that contain all predecessors of their members, and the arcs from each set to
// those with one more layer: all such sets, or those near a given order.
class ClosedSets {
 public:
  struct Limits {
    // A set may contain a layer at most this many places behind the first one that it lacks.
    int reach = 0;
    // The listing ends before there are more.
    int sets = 0;
    int arcs = 0;
  };

  // Lists the sets of layers in a topological order. `output_bytes`: of each layer.
  ClosedSets(absl::Span<const Edge> edges, absl::Span<const int64_t> output_bytes,
             const Limits& limits);

  // Returns true if every closed set is listed.
  bool is_complete() const { return is_complete_; }
  // Returns true if the listing ended too early; the sets are then useless.
  bool is_too_large() const { return is_too_large_; }

  // Set 0 is empty, and the last one has all layers. A set comes after those it includes.
  int size() const { return static_cast<int>(added_.size()); }
  // A set is its parent plus one added layer, which comes after all others of the set.
  int parent(int set) const { return parents_[static_cast<size_t>(set)]; }
  int added(int set) const { return added_[static_cast<size_t>(set)]; }
  // Returns the bytes that are produced in the set and read outside it, each output once.
  int64_t cut_bytes(int set) const { return cut_bytes_[static_cast<size_t>(set)]; }
  // Returns the sets with one more layer.
  absl::Span<const int> next(int set) const {
    const size_t first = first_arc_[static_cast<size_t>(set)];
    const size_t end = first_arc_[static_cast<size_t>(set) + 1];
    return absl::MakeConstSpan(arcs_).subspan(first, end - first);
  }

 private:
  friend class ClosedSetLister;

  bool is_complete_ = true;
  bool is_too_large_ = false;
  std::vector<int> parents_, added_;  // index: set
  std::vector<int64_t> cut_bytes_;    // index: set
  std::vector<size_t> first_arc_;     // index: set, and one more for the end
  std::vector<int> arcs_;             // those of each set, in the order of the layers added
};

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_EXACT_CLOSED_SETS_H_
