#ifndef STAGECOACH_PARTITION_EVALUATE_STAGE_PEAKS_H_
#define STAGECOACH_PARTITION_EVALUATE_STAGE_PEAKS_H_

#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "partition/cost/stage_memory.h"
#include "partition/plan/plan.h"
#include "schedule/ir/schedule.h"
#include "schedule/memory/memory_plan.h"

namespace stagecoach::partition {

// Returns, for each stage, the most micro-batches that it has between F and B during an F, without
// those that are on the host.
std::vector<int> PeakStashes(const schedule::Schedule& training);

// The peaks of the stages that a plan could have under one schedule. A search asks for many of
// them, and packing the blocks of hundreds of micro-batches takes milliseconds: AtLeast is the
// cheap bound to search with, PeakBytes the answer to confirm with.
class StagePeaks {
 public:
  explicit StagePeaks(LoweredSchedules lowered);

  const std::shared_ptr<const LoweredSchedules>& lowered() const { return lowered_; }
  const StagePosition& position(int stage) const { return positions_[stage]; }
  // Returns PeakStashes.
  int in_flight(int stage) const { return in_flight_[stage]; }

  // Returns the peak of the stage's rank (RankReport) if this were the only one of its stages, and
  // caches it. If the rank has no other, that is its peak.
  absl::StatusOr<int64_t> PeakBytes(int stage, const schedule::StageMemory& memory);

  // Returns a lower bound of PeakBytes that grows with every size.
  int64_t Bound(int stage, const schedule::StageMemory& memory) const;

  // Returns PeakBytes if that is cached, else what lives at once: a lower bound of PeakBytes, above
  // Bound, that only packing can exceed.
  int64_t AtLeast(int stage, const schedule::StageMemory& memory);

  // Returns a lower bound of RankPeakBytes.
  int64_t RankAtLeast(schedule::Rank rank, absl::Span<const schedule::StageMemory> stages) const;

  // Returns the peak of a rank with all its stages, and caches it. `stages`: index stage; only
  // those of the rank are read.
  absl::StatusOr<int64_t> RankPeakBytes(schedule::Rank rank,
                                        absl::Span<const schedule::StageMemory> stages);

 private:
  // A rank, and the memory of its stages.
  using Key = std::pair<int, std::vector<schedule::StageMemory>>;

  // The micro-batches that a rank has between F and B, and not on the host, while it performs a
  // forward action; index: place in stages_of_.
  struct Moment {
    int acting = 0;
    std::vector<int> in_flight;
  };

  // The number of blocks of each kind that a stage has at once.
  using BlockCounts = std::array<int64_t, schedule::kNumBlockKinds>;

  // A stage, and when its input, output and output gradient are read last.
  using Uses = std::array<int, 4>;

  // Returns what a stage with such uses has at once, alone on its rank, while it trains or
  // evaluates; no entry exceeds another in everything.
  const std::vector<BlockCounts>& LiveCounts(int stage, const schedule::StageMemory& memory);
  int64_t LiveBytes(int stage, const schedule::StageMemory& memory);
  static void AddCounts(schedule::StageId stage, const std::vector<schedule::Block>& blocks,
                        std::vector<BlockCounts>& fullest);

  static std::vector<Moment> FullestMoments(const std::vector<schedule::Action>& list,
                                            const std::vector<schedule::StageId>& stages);
  Key KeyOf(schedule::Rank rank, absl::Span<const schedule::StageMemory> stages) const;

  std::shared_ptr<const LoweredSchedules> lowered_;
  std::vector<int> in_flight_;                             // index: stage
  std::vector<StagePosition> positions_;                   // index: stage
  std::vector<std::vector<schedule::StageId>> stages_of_;  // index: rank
  std::vector<std::vector<Moment>> moments_;  // index: rank; no entry exceeds another in everything
  absl::flat_hash_map<Key, int64_t> peak_bytes_;
  absl::flat_hash_map<Uses, std::vector<BlockCounts>> live_counts_;
};

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_EVALUATE_STAGE_PEAKS_H_
