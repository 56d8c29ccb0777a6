#ifndef STAGECOACH_PARTITION_EXACT_RECOMPUTE_H_
#define STAGECOACH_PARTITION_EXACT_RECOMPUTE_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "partition/cost/layer_cost.h"

namespace stagecoach::partition {

// The layers [first, last], both inclusive, as stage `stage`.
struct StageRange {
  int first = 0;
  int last = 0;
  int stage = 0;

  friend bool operator==(const StageRange&, const StageRange&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const StageRange& range) {
    return H::combine(std::move(h), range.first, range.last, range.stage);
  }
};

// Tells whether layers fit, and which of them repeat F within B for that.
struct FitOfRange {
  bool fits = false;
  double again_ns = 0;          // time of those, per micro-batch
  std::vector<int> recomputed;  // ascending
  bool is_exact = true;         // no other choice could be better
};

// Returns the choice among the layers of a rank's stages that fits and takes least time; among
// equals, the one with fewer layers. `layers`: those of the model; `ranges`: those of the stages,
// ascending. `fits` judges a choice (ascending) and is asked in the order of time, first for none;
// it is not asked about choices that save less than `least_saved_bytes` (SavedBytes). Layers of one
// stage with the same costs count as one kind, of which the last ones are taken. Exact
// (FitOfRange::is_exact) if none is needed, or with at most kMaxRecomputedOneByOne layers that can
// repeat F, all of one stage: what a layer saves depends a little on its neighbors, and which stage
// of a rank should pay depends on the schedule. With more than kMaxChoices choices among the kinds,
// chooses greedily by saved bytes per time, and no single layer can be dropped from the choice.
FitOfRange LeastRecomputation(absl::Span<const LayerCost> layers,
                              absl::Span<const StageRange> ranges, int64_t least_saved_bytes,
                              absl::FunctionRef<bool(absl::Span<const int>)> fits);

// Returns the bytes per micro-batch that the layer itself no longer keeps from F until B if it
// repeats F, before any rounding; 0 if it cannot. Negative if it keeps more.
int64_t SavedBytes(const LayerCost& layer);

inline constexpr int kMaxRecomputedOneByOne = 8;
inline constexpr int kMaxChoices = 1024;

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_EXACT_RECOMPUTE_H_
