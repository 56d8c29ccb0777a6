#ifndef STAGECOACH_SCHEDULE_AUTOMATIC_ORDER_PROBLEM_H_
#define STAGECOACH_SCHEDULE_AUTOMATIC_ORDER_PROBLEM_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "schedule/automatic.h"
#include "schedule/schedule.h"

namespace stagecoach::schedule {

// What the searches of automatic.h work on. Passes are small integers, and all that concerns one of
// them is an array element. Not part of the public interface, nor are the headers that include this
// one.

// One pass of one micro-batch through one stage: (kind * stages + stage) * micro-batches +
// micro-batch, with kind 0 for F, 1 for B (or BW) and 2 for W.
using PassId = int32_t;
inline constexpr PassId kNoPass = -1;
enum class PassKind : int32_t { kForward = 0, kBackward = 1, kWeight = 2 };

// Which backward passes are BW, with no W to follow. Index: stage * micro-batches + micro-batch.
using FusedPasses = std::vector<uint8_t>;

// For each rank the passes in its order.
struct Order {
  std::vector<std::vector<PassId>> lists;
  FusedPasses fused;
};

// Lower is better in all three, the first counting most.
struct Score {
  int64_t objective_ns = 0;
  int64_t other_ns = 0;     // the objective that was not asked for
  int64_t sum_of_ends = 0;  // over the ranks: tells progress where the longest rank sees none

  friend auto operator<=>(const Score&, const Score&) = default;
};

// A request in that form. Constant once made.
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
  // Whether the backward pass of this pass's stage and micro-batch is a BW.
  bool IsFused(PassId pass, const FusedPasses& fused) const {
    return fused[static_cast<size_t>(pass % (stages * micro_batches))] != 0;
  }
  // What the pass adds to its rank's stash.
  double StashChange(PassId pass, const FusedPasses& fused) const;
  // How much more than now a rank keeps, at most, until a micro-batch has left it that has been
  // through F on the first `forwards` and through B on the last `backwards` of its stages.
  double StashToFinish(int rank, int micro_batch, size_t forwards, size_t backwards,
                       const FusedPasses& fused) const;
  // The first micro-batches of the stages that gain by it.
  FusedPasses FuseFirst(int count) const;
  // Index: pass.
  std::vector<int64_t> DurationsIf(const FusedPasses& fused) const;

  Schedule ToSchedule(const Order& order) const;

  int ranks;
  int stages;
  int micro_batches;
  OrderObjective objective;
  std::vector<int> rank_of_stage;
  std::vector<std::vector<int>> stages_of_rank;  // ascending
  std::vector<StageStash> stash;                 // index: stage; nothing if there is no limit
  std::vector<double> limit;                     // index: rank; infinite if there is no limit
  // Whether BW is shorter than B and W, or keeps less. Index: stage.
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

#endif  // STAGECOACH_SCHEDULE_AUTOMATIC_ORDER_PROBLEM_H_
