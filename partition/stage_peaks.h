#ifndef STAGECOACH_PARTITION_STAGE_PEAKS_H_
#define STAGECOACH_PARTITION_STAGE_PEAKS_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "partition/layer_cost.h"
#include "partition/stage_memory.h"
#include "schedule/memory.h"
#include "schedule/schedule.h"

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

// The memory of every stage that a plan could have under one schedule. A search asks for many of
// them, and packing the blocks of hundreds of micro-batches takes milliseconds: AtLeast is the
// cheap bound to search with, PeakBytes the answer to confirm with.
class StagePeaks {
 public:
  // `layers`: of the whole model, must outlive this object. `training`, `evaluation`: the lowered
  // schedules of a plan, valid.
  StagePeaks(absl::Span<const LayerCost> layers, const LossMemory& loss,
             schedule::Schedule training, schedule::Schedule evaluation);

  const schedule::Schedule& schedule() const { return training_; }

  // AggregateStage of the range, remembered.
  const schedule::StageMemory& Memory(const StageRange& range);

  // The peak of the stage's device (RankReport) if this were the only one of its stages,
  // remembered. Where the device has no other, that is its peak.
  absl::StatusOr<int64_t> PeakBytes(const StageRange& range);

  // PeakBytes if that was asked before, else a lower bound of it.
  int64_t AtLeast(const StageRange& range);

  // The largest peak of a device under a cut, all its stages counted. `ranges`: index stage.
  absl::StatusOr<int64_t> LargestPeakBytes(absl::Span<const StageRange> ranges);

 private:
  absl::Span<const LayerCost> layers_;
  LossMemory loss_;
  schedule::Schedule training_, evaluation_;
  std::vector<int> peak_stash_;           // micro-batches between F and B at once, per stage
  std::vector<StagePosition> positions_;  // per stage
  absl::flat_hash_map<StageRange, schedule::StageMemory> memory_;
  absl::flat_hash_map<StageRange, int64_t> peak_bytes_;
};

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_STAGE_PEAKS_H_
