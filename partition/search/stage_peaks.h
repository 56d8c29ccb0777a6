#ifndef STAGECOACH_PARTITION_SEARCH_STAGE_PEAKS_H_
#define STAGECOACH_PARTITION_SEARCH_STAGE_PEAKS_H_

#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "partition/plan/plan.h"
#include "partition/stage_memory.h"
#include "schedule/memory.h"
#include "schedule/schedule.h"

namespace stagecoach::partition {

// The peaks of the stages that a plan could have under one schedule. A search asks for many of
// them, and packing the blocks of hundreds of micro-batches takes milliseconds: AtLeast is the
// cheap bound to search with, PeakBytes the answer to confirm with.
class StagePeaks {
 public:
  explicit StagePeaks(LoweredPlan lowered);

  const std::shared_ptr<const LoweredPlan>& lowered() const { return lowered_; }
  const StagePosition& position(int stage) const { return positions_[stage]; }
  // The most micro-batches that the stage has between F and B at once.
  int in_flight(int stage) const { return in_flight_[stage]; }

  // The peak of the stage's rank (RankReport) if this were the only one of its stages, remembered.
  // Where the rank has no other, that is its peak.
  absl::StatusOr<int64_t> PeakBytes(int stage, const schedule::StageMemory& memory);

  // A lower bound of PeakBytes that grows with every size.
  int64_t Bound(int stage, const schedule::StageMemory& memory) const;

  // PeakBytes if that was asked before, else what lives at once: a lower bound of PeakBytes, above
  // Bound, that only packing can exceed.
  int64_t AtLeast(int stage, const schedule::StageMemory& memory);

  // A lower bound of RankPeakBytes.
  int64_t RankAtLeast(schedule::Rank rank, absl::Span<const schedule::StageMemory> stages) const;

  // The peak of a rank with all its stages, remembered. `stages`: index stage; only those of the
  // rank are read.
  absl::StatusOr<int64_t> RankPeakBytes(schedule::Rank rank,
                                        absl::Span<const schedule::StageMemory> stages);

 private:
  // A rank, and the memory of its stages.
  using Key = std::pair<int, std::vector<schedule::StageMemory>>;

  // What a rank has between F and B while it performs a forward action; index: place in
  // stages_of_.
  struct Moment {
    int acting = 0;
    std::vector<int> in_flight;
  };

  // How many blocks of each kind a stage has at once.
  using BlockCounts = std::array<int64_t, schedule::kNumBlockKinds>;

  // A stage, and when its input, output and output gradient are read last.
  using Uses = std::array<int, 4>;

  // What a stage with such uses has at once, alone on its rank, while it trains or evaluates; of no
  // two, one has more of everything.
  const std::vector<BlockCounts>& LiveCounts(int stage, const schedule::StageMemory& memory);
  int64_t LiveBytes(int stage, const schedule::StageMemory& memory);
  static void AddCounts(schedule::StageId stage, const std::vector<schedule::Block>& blocks,
                        std::vector<BlockCounts>& fullest);

  static std::vector<Moment> FullestMoments(const std::vector<schedule::Action>& list,
                                            const std::vector<schedule::StageId>& stages);
  Key KeyOf(schedule::Rank rank, absl::Span<const schedule::StageMemory> stages) const;

  std::shared_ptr<const LoweredPlan> lowered_;
  std::vector<int> in_flight_;                             // index: stage
  std::vector<StagePosition> positions_;                   // index: stage
  std::vector<std::vector<schedule::StageId>> stages_of_;  // index: rank
  std::vector<std::vector<Moment>> moments_;  // index: rank; of no two, one has more of everything
  absl::flat_hash_map<Key, int64_t> peak_bytes_;
  absl::flat_hash_map<Uses, std::vector<BlockCounts>> live_counts_;
};

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_SEARCH_STAGE_PEAKS_H_
