#ifndef STAGECOACH_PARTITION_EXACT_CHAIN_REACH_H_
#define STAGECOACH_PARTITION_EXACT_CHAIN_REACH_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "partition/exact/chain_terms.h"

namespace stagecoach::partition {

// The core of PartitionChain: tests whether some cut has no stage slower than a limit, by a dynamic
// program over (stage, boundary). docs/planner.md has the proof.
class ChainReach {
 public:
  // The boundaries at which a stage may begin.
  struct Band {
    int low = 0;
    int high = 0;       // inclusive
    size_t offset = 0;  // of `low` among the states
  };

  // The terms must outlive this.
  explicit ChainReach(const ChainTerms& terms);

  // Returns true if some cut has no stage slower than `limit`. The states are then those that the
  // cuts of the layers before a boundary into the stages before a stage can reach.
  bool Probe(int64_t limit);
  // After a failed probe: every probe up to this limit fails; kNever if all do.
  int64_t needed() const { return needed_; }

  // After a successful probe: only limits up to this one will be tried from now on, so that
  // whatever no cut within it can pass is skipped. The limit must have a cut.
  void Prune(int64_t limit);

  // Index: stage, and one more for the end.
  const Band& band(int stage) const { return bands_[stage]; }
  // Pre-condition: the boundary is in the stage's band.
  bool IsReached(int boundary, int stage) const { return is_reached_[Index(boundary, stage)] != 0; }
  size_t Index(int boundary, int stage) const {
    return bands_[stage].offset + static_cast<size_t>(boundary - bands_[stage].low);
  }
  size_t num_states() const { return is_reached_.size(); }

 private:
  int64_t After(int end) const {
    return elapsed_[end] + (terms_.overlaps_messages() ? 0 : send_[end]);
  }
  bool IsUseful(int boundary, int stage) const {
    if (is_useful_.empty()) return true;
    const Band& band = useful_[stage];
    return is_useful_[band.offset + static_cast<size_t>(boundary - band.low)] != 0;
  }
  void Need(int64_t units) { needed_ = std::min(needed_, units); }

  bool FindEarliest();
  bool Advance(int stage);
  void OfferBegin(int begin);
  bool IsReachedFromBefore(int end, int stage);
  bool IsReachedFromAny(int end, int stage);
  bool PassesWithExtra(int begin, int end, int stage);
  void PruneStage(int stage);

  const ChainTerms& terms_;
  std::vector<int64_t> least_messages_;  // index: stage
  int64_t limit_ = 0;
  int64_t needed_ = ChainTerms::kNever;
  std::vector<Band> bands_;
  std::vector<uint8_t> is_reached_;  // index: state

  // The boundaries at which a stage may begin in a cut within the limits still to be tried, as far
  // as is known: in a band, and once something was pruned, in these states of it.
  std::vector<Band> useful_;
  std::vector<uint8_t> is_useful_;

  // State of the current stage; index: boundary.
  ElapsedRow elapsed_;
  std::vector<int64_t> receive_;
  std::vector<int64_t> send_;
  std::vector<int64_t> before_;  // part of a range's time that its begin decides; kNever: too slow
  // Begins, each with a smaller before_ than all later ones: those that can be the best of a window
  // that starts at or after the begin in front. (For PruneStage: ends, likewise.)
  std::vector<int> window_;
  size_t window_front_ = 0;
  size_t window_end_ = 0;
};

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_EXACT_CHAIN_REACH_H_
