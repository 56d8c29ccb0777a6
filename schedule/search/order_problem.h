#ifndef STAGECOACH_SCHEDULE_SEARCH_ORDER_PROBLEM_H_
#define STAGECOACH_SCHEDULE_SEARCH_ORDER_PROBLEM_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "schedule/ir/schedule.h"
#include "schedule/search/automatic.h"

namespace stagecoach::schedule {

// The form in which the searches of automatic.h see a request. Passes are small integers, and
// everything about one of them is an array element. Neither this header nor those that include it
// are part of the public interface.

// One pass of one micro-batch through one stage: (kind * stages + stage) * micro-batches +
// micro-batch, with kind 0 for F, 1 for B (or BW) and 2 for W.
using PassId = int32_t;
inline constexpr PassId kNoPass = -1;
enum class PassKind : int32_t { kForward = 0, kBackward = 1, kWeight = 2 };

// True for backward passes that are BW, with no W to follow. Index: stage * micro-batches +
// micro-batch.
using FusedPasses = std::vector<uint8_t>;

// The passes of each rank in order.
struct Order {
  std::vector<std::vector<PassId>> lists;
  FusedPasses fused;
};

// Lower is better in all three, which are compared in this order.
struct Score {
  int64_t objective_ns = 0;
  int64_t other_ns = 0;     // the objective that was not asked for
  int64_t sum_of_ends = 0;  // over the ranks: shows progress where the longest rank sees none

  friend auto operator<=>(const Score&, const Score&) = default;
};

// A request in the form above. Constant once made.
struct OrderProblem {
  // Pre-condition: the request is in range (Automatic checks it).
  explicit OrderProblem(const AutomaticRequest& request);

  PassId Pass(PassKind kind, int stage, int micro_batch) const {
    return (static_cast<int32_t>(kind) * stages + stage) * micro_batches + micro_batch;
  }
  PassKind KindOf(PassId pass) const {
    return static_cast<PassKind>(pass / (stages * micro_batches));
  }
  int StageOf(PassId pass) const { return pass / micro_batches % stages; }
  int MicroBatchOf(PassId pass) const { return pass % micro_batches; }
  int num_passes() const { return 3 * stages * micro_batches; }
  // Returns true if the backward pass of this pass's stage and micro-batch is a BW.
  bool IsFused(PassId pass, const FusedPasses& fused) const {
    return fused[static_cast<size_t>(pass % (stages * micro_batches))] != 0;
  }
  // Returns what the pass adds to its rank's stash.
  double StashChange(PassId pass, const FusedPasses& fused) const;
  // Returns how much more than now a rank keeps, at most, until a micro-batch has left it that has
  // passed F on the first `forwards` and B on the last `backwards` of its stages.
  double StashToFinish(int rank, int micro_batch, size_t forwards, size_t backwards,
                       const FusedPasses& fused) const;
  // Fuses the first `count` micro-batches of the stages that gain by it.
  FusedPasses FuseFirst(int count) const;
  // Returns the durations; index: pass.
  std::vector<int64_t> DurationsIf(const FusedPasses& fused) const;

  Schedule ToSchedule(const Order& order) const;

  int ranks;
  int stages;
  int micro_batches;
  OrderObjective objective;
  std::vector<int> rank_of_stage;
  std::vector<std::vector<int>> stages_of_rank;  // ascending
  std::vector<StageStash> stash;                 // index: stage; empty if there is no limit
  std::vector<double> limit;                     // index: rank; infinite if there is no limit
  // True if BW is shorter than B and W, or keeps less. Index: stage.
  std::vector<bool> gains_by_fusing;
  std::vector<int64_t> after_list;  // index: rank; duration of its optimizer steps
  // Index: pass.
  std::vector<int64_t> duration;        // of F, B, W
  std::vector<int64_t> fused_duration;  // of F, BW
  std::vector<PassId> producer;         // whose message it waits for, or kNoPass
  std::vector<int64_t> transfer;        // how long that message takes
  std::vector<PassId> consumer;         // which waits for its message, or kNoPass
  std::vector<int> rank_of;
};

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_SEARCH_ORDER_PROBLEM_H_
