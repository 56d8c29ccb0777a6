#ifndef STAGECOACH_SCHEDULE_IR_ACTION_H_
#define STAGECOACH_SCHEDULE_IR_ACTION_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/strong_id.h"

namespace stagecoach::schedule {

// A contiguous range of layers, counted from the input of the network.
using StageId = base::StrongId<struct StageIdTag>;
// One executor with one device. A rank runs one stage or several ("chunks").
using Rank = base::StrongId<struct RankTag>;
// One of the equal parts of a batch that stream through the stages.
using MicroBatch = base::StrongId<struct MicroBatchTag>;
// Ranks that perform a collective together: an index into Schedule::groups.
using GroupId = base::StrongId<struct GroupIdTag>;

// The operation that a rank performs at one place of its order. An "activation" is what a stage
// passes to the next one, a "gradient" what it passes back: the derivative of the loss with respect
// to that activation.
enum class Op : uint8_t {
  kForward,            // F: output activation from input activation
  kBackwardInput,      // B: gradient of the stage's input
  kBackwardWeight,     // W: gradients of the stage's parameters
  kBackward,           // BW: both, layer by layer
  kReceiveActivation,  // posts a receive of the stage's input from the previous stage's rank
  kSendActivation,     // sends the stage's output to the next stage's rank
  kReceiveGradient,    // posts a receive of the output's gradient from the next stage's rank
  kSendGradient,       // sends the gradient of the stage's input to the previous stage's rank
  // Copies between the device's memory and the host's.
  kOffload,  // OFFLOAD: starts to copy the stash of a micro-batch, which F kept, to the host
  kRelease,  // RELEASE: waits until that is done; the device's memory of the stash is free again
  kFetch,    // FETCH: starts to bring it back for B (or BW)
  // Operations on the whole stage, without a micro-batch. The first three concern replicas of the
  // stage; the engine performs only the third.
  kUnshard,          // gathers the stage's parameters from the replicas that share them
  kReshard,          // releases the gathered parameters
  kReduceGradients,  // REDUCE: starts summing the stage's gradients over its replicas
  kStep,             // finishes the stage's parameter update
  // Collectives, which name a group of ranks instead of a stage. Each synchronizes its group: all
  // ranks wait for one another.
  kSumTies,        // sums the gradients of parameters that are tied to each other, on all of them
  kExchangeNorms,  // every rank learns the squared norms of all gradients, for clipping
  kShareResults,   // every rank learns the results of the loss
};
inline constexpr int kNumOps = 18;
// The operations before kUnshard.
inline constexpr int kNumMicroBatchOps = 11;
inline constexpr int kNumCollectiveOps = 3;  // the last ones

// One entry of a rank's order. Regular value type. A large schedule has tens of millions of
// actions; the order of the members keeps them small.
struct Action {
  Op op = Op::kForward;
  // True if performed together with the next entry of the list. Either both are computations: an F
  // and a B or BW of different micro-batches, as one operation with a duration of its own
  // (DualPipeV), which a device that cannot overlap them performs one after the other. Or both are
  // transfers, which then belong to one group (Transfers::kGrouped); more may follow in the same
  // way.
  bool overlaps_next = false;
  StageId stage;           // none (-1) for a collective
  MicroBatch micro_batch;  // none (-1) for an operation of the whole stage and for a collective
  GroupId group = {};      // set for a collective; none (-1) otherwise

  friend constexpr auto operator<=>(const Action&, const Action&) = default;
};

constexpr bool IsCompute(Op op) { return op <= Op::kBackward; }
constexpr bool IsBackward(Op op) { return IsCompute(op) && op != Op::kForward; }
constexpr bool IsSend(Op op) { return op == Op::kSendActivation || op == Op::kSendGradient; }
constexpr bool IsReceive(Op op) {
  return op == Op::kReceiveActivation || op == Op::kReceiveGradient;
}
constexpr bool IsTransfer(Op op) { return IsSend(op) || IsReceive(op); }
constexpr bool IsHostCopy(Op op) { return op == Op::kOffload || op == Op::kFetch; }
// Returns true for what moves a stash to the host and back.
constexpr bool MovesStash(Op op) { return IsHostCopy(op) || op == Op::kRelease; }
// Returns true if the operation runs concurrently with the actions that follow.
constexpr bool RunsBeside(Op op) {
  return IsTransfer(op) || IsHostCopy(op) || op == Op::kReduceGradients;
}
constexpr bool HasMicroBatch(Op op) { return op < Op::kUnshard; }
constexpr bool IsCollective(Op op) { return op >= Op::kSumTies; }
// Returns true for a collective that uses the gradients of all stages, complete and summed over
// replicas.
constexpr bool TakesGradients(Op op) { return op == Op::kSumTies || op == Op::kExchangeNorms; }
// Returns the index of the collective: 0 to kNumCollectiveOps - 1. Pre-condition: IsCollective(op).
constexpr size_t CollectiveIndex(Op op) {
  return static_cast<size_t>(op) - static_cast<size_t>(Op::kSumTies);
}
// Pre-condition: IsCollective(op).
constexpr Action Collective(Op op, GroupId group) { return {.op = op, .group = group}; }

// Returns the operation that fills the buffer of a send, or reads that of a receive. kBackwardInput
// also stands for kBackward. Pre-condition: IsTransfer(op).
constexpr Op ComputeOf(Op op) {
  const bool activation = op == Op::kReceiveActivation || op == Op::kSendActivation;
  return activation ? Op::kForward : Op::kBackwardInput;
}

// Returns the action without its overlap, for comparison and look-up.
constexpr Action Alone(Action action) {
  action.overlaps_next = false;
  return action;
}

// Returns the stage at the other end of a transfer. Pre-condition: IsTransfer(transfer.op).
constexpr StageId NeighborOf(const Action& transfer) {
  const bool is_next = transfer.op == Op::kSendActivation || transfer.op == Op::kReceiveGradient;
  return StageId(transfer.stage.value() + (is_next ? 1 : -1));
}

// Returns the receive that matches the send `transfer`, or the send that fills a receive, without
// its overlap; its stage is the neighbor. Pre-condition: IsTransfer(transfer.op).
Action OtherEnd(const Action& transfer);

// Returns "F", "B", "W", "BW", "RECV_F", "SEND_F", "RECV_B", "SEND_B", "OFFLOAD", "RELEASE",
// "FETCH", "UNSHARD", "RESHARD", "REDUCE", "STEP", "TIES", "NORM" or "RESULTS".
const char* OpName(Op op);
// Returns the operation of that name, if there is one.
std::optional<Op> OpNamed(absl::string_view name);

// Returns "stage 2 F micro-batch 5", "stage 2 STEP" or "NORM of group 0", for messages.
std::string ToString(const Action& action);

// Returns the short form for files: operation, stage, micro-batch, as in "F2.5", "SEND_B0.3",
// "STEP2", with a final "+" if it overlaps the next action; for a collective, operation and group,
// as in "NORM0".
std::string ToCode(const Action& action);
// Parses what ToCode returns. InvalidArgument says what is wrong with `code`.
absl::StatusOr<Action> ParseCode(absl::string_view code);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_IR_ACTION_H_
