#ifndef STAGECOACH_PARTITION_EXACT_GRAPH_REACH_H_
#define STAGECOACH_PARTITION_EXACT_GRAPH_REACH_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "partition/exact/chain_terms.h"
#include "partition/exact/closed_sets.h"

namespace stagecoach::partition {

// The core of PartitionGraph: tests whether a growing chain of closed sets has no difference slower
// than a limit, by a dynamic program over (stage, set). docs/planner.md has the proof.
class GraphReach {
 public:
  // All arguments must outlive this. `is_over`: see PartitionGraph.
  GraphReach(const ChainTerms& terms, const ClosedSets& sets, const std::function<bool()>& is_over);

  // Returns true if some cut along these sets has no stage slower than `limit`. False if it is
  // over.
  bool Probe(int64_t limit);
  bool is_over() const { return was_over_; }
  // After a failed probe: every probe up to this limit fails; kNever if all do.
  int64_t needed() const { return needed_; }
  // After a successful probe: what is done after each stage, and the slowest one's time.
  const std::vector<int>& done() const { return done_; }
  int64_t bottleneck() const { return bottleneck_; }

 private:
  // A set that the previous stages reached, for a stage that begins there.
  struct Begin {
    int set = 0;
    int64_t before = 0;  // the part of the stage's time that this decides
    int64_t bytes = 0;
  };
  // A set that a stage ends with, and the one with which it begins.
  struct Reached {
    int place = 0;
    int begin = 0;
  };

  void Need(int64_t units) { needed_ = std::min(needed_, units); }
  void StartStage(int stage);
  bool Advance(int stage);
  void DropSlowOrLarge(int set);
  void EndStage(int set);
  bool CanRestFit(int set);
  void BeginStage(int set);
  void Offer(const Begin& begin, int set);
  int64_t ReceiveUnits(int set) const;
  int64_t SendUnits(int set) const;
  void FindCut();

  const ChainTerms& terms_;
  const ClosedSets& sets_;
  const std::function<bool()>& is_over_;
  bool was_over_ = false;
  // Time on the fastest stage; index: set.
  std::vector<int64_t> least_units_;
  std::vector<int> order_;   // the sets by least_units_, then by number; index: place
  std::vector<int> places_;  // index: set

  int64_t limit_ = 0;
  int64_t needed_ = ChainTerms::kNever;
  std::vector<std::vector<Reached>> reached_;  // index: stage that begins there; ascending places
  std::vector<int> done_;                      // index: stage
  int64_t bottleneck_ = 0;

  // State of the current stage; index: set.
  int stage_ = -1;
  std::vector<int64_t> units_, bytes_;
  // The sets with which a stage that ends with the set could begin: none is better than another in
  // both time and memory.
  std::vector<absl::InlinedVector<Begin, 1>> begins_;
};

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_EXACT_GRAPH_REACH_H_
