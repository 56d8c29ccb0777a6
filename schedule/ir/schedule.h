#ifndef STAGECOACH_SCHEDULE_IR_SCHEDULE_H_
#define STAGECOACH_SCHEDULE_IR_SCHEDULE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "schedule/ir/action.h"

namespace stagecoach::schedule {

// Ranks that perform collectives together. Regular value type.
struct CollectiveGroup {
  std::string name;         // for people, such as "all": what the group is for
  std::vector<Rank> ranks;  // ascending; at least one

  friend bool operator==(const CollectiveGroup&, const CollectiveGroup&) = default;
};

// The placement of stages on ranks and, for each rank, the list of its actions in the order in
// which it performs them. Generators write it; validator, memory planner, printer and executor read
// it: there is no other description of the order.
//
// A schedule is either a *compute* schedule (only F, B, W, BW) or a *lowered* one (also sends,
// receives, steps and collectives; see lowering.h). A schedule without any backward action is
// forward-only (evaluation).
//
// Meaning of a lowered schedule. A rank performs its actions one after the other.
//  - A receive only posts the buffer; the compute action that reads the buffer waits for the data.
//  - A send hands over a buffer that its compute action has filled. At most one send per lane (pair
//    of neighboring stages and direction) is outstanding: posting the next one first waits until
//    the previous one was taken, and a rank's list ends by waiting for all of them. A buffer is
//    therefore free again after the next send on its lane.
//  - Neighboring stages on one rank pass buffers in place: nothing is sent or received between
//    them.
//  - A collective starts once every rank of its group has reached it, and each rank continues when
//    it is done.
//  - An OFFLOAD starts to copy what F has kept of a micro-batch for the backward passes (its kStash
//    and kWeightStash blocks, memory_plan.h) to the host's memory. Its RELEASE waits until that is
//    done, and frees the device's memory. A FETCH claims memory anew and starts to copy it back,
//    for which the B (or BW) waits. Copies run beside the rank's other actions, those of each
//    direction one after the other.
//  - A REDUCE only starts the sum; TIES, NORM and the stage's STEP wait for it. A rank's sums run
//    one after the other, concurrently with everything else.
// This is the meaning under Transfers::kSeparate; the other one is below.
//
// Replicas. Where stages have replicas, each replica performs the whole schedule on its own
// micro-batches, which count from 0 in each: the lists here are those of any one of them. A REDUCE
// and a RESULTS wait for their counterparts in all replicas. A schedule that completes alone
// therefore completes with replicas: let all replicas perform, in step, what the one performs;
// whenever one has reached a REDUCE, all have. Regular value type.
struct Schedule {
  std::string name;  // the generator's name, for example "1f1b"
  int num_micro_batches = 0;
  std::vector<Rank> rank_of_stage;           // index: stage
  std::vector<std::vector<Action>> actions;  // index: rank
  std::vector<CollectiveGroup> groups;       // index: GroupId; what collectives name

  int num_stages() const { return static_cast<int>(rank_of_stage.size()); }
  int num_ranks() const { return static_cast<int>(actions.size()); }
  // Pre-condition: `stage` is one of the schedule's stages.
  Rank rank_of(StageId stage) const { return rank_of_stage[static_cast<size_t>(stage.value())]; }
  bool is_first(StageId stage) const { return stage.value() == 0; }
  bool is_last(StageId stage) const { return stage.value() == num_stages() - 1; }
  // Returns the list of `rank`. Pre-condition: `rank` is one of the schedule's ranks.
  const std::vector<Action>& list_of(Rank rank) const {
    return actions[static_cast<size_t>(rank.value())];
  }
  // Pre-condition: `group` is one of the schedule's groups.
  const CollectiveGroup& group(GroupId id) const { return groups[static_cast<size_t>(id.value())]; }
  // Returns true if `stage` has a previous (next) stage on another rank, so that what passes
  // between them is sent. Pre-condition: `stage` is one of the schedule's stages.
  bool receives_from_previous(StageId stage) const {
    return !is_first(stage) && rank_of(StageId(stage.value() - 1)) != rank_of(stage);
  }
  bool sends_to_next(StageId stage) const {
    return !is_last(stage) && rank_of(StageId(stage.value() + 1)) != rank_of(stage);
  }
  // Returns the number of actions of all ranks.
  int64_t num_actions() const;
  // Returns the stages on `rank`, ascending.
  std::vector<StageId> StagesOf(Rank rank) const;
  // Returns true if any action is a backward one.
  bool HasBackward() const;
  // Returns true if any action moves a stash to the host's memory or back.
  bool MovesStashes() const;
  // Returns true if any action is not a computation.
  bool IsLowered() const;
  // Returns true if `stage` has B and W apart for some micro-batch. Pre-condition: as for rank_of.
  bool SplitsBackward(StageId stage) const;

  friend bool operator==(const Schedule&, const Schedule&) = default;
};

// How a rank performs the transfers of a lowered schedule: the schedule is lowered, proved and its
// memory planned for this. Sends (simulate.h) says whether times are simulated for the same.
enum class Transfers : uint8_t {
  // Each on its own, as Schedule says: a receive that is posted early waits without holding
  // anything up.
  kSeparate,
  // Transfers run in groups, on one communication stream next to the computing one (NCCL).
  // Transfers that are joined by Action::overlaps_next form one group; any other is a group by
  // itself.
  //  - A rank's groups are performed one after the other. A group starts once the one before it is
  //    done and the rank has performed the actions that stand before it.
  //  - A message passes once the groups of both its ends have started. Nothing more may be relied
  //    on: while a group lasts, its messages may wait for one another in any order. The group is
  //    done when all have passed.
  //  - A group is therefore one moment for all ranks that its messages connect: what two ranks
  //    exchange in one group of either, they exchange in one group of the other, and no rank has
  //    two groups of one moment.
  //  - Meanwhile the rank continues with the actions behind the group. A compute action waits until
  //    the group that receives what it reads is done. Every action other than a transfer waits
  //    until, on each lane, the groups of all sends before it except the last are done: so buffers
  //    are free again at the same points as above. A list ends when its last group is done.
  // A group has at most one send per lane. A collective is a group of its own, for which the rank
  // waits.
  kGrouped,
};

// Return the send of what a compute action produces, and the receive of what it reads, if that
// passes between ranks.
std::optional<Action> SendAfter(const Schedule& schedule, const Action& compute);
std::optional<Action> ReceiveBefore(const Schedule& schedule, const Action& compute);

// Returns one past the last transfer in the same group as the one at `position` of `list`.
// Pre-condition: it is a transfer, and everything joined with it is a transfer.
size_t EndOfGroup(const std::vector<Action>& list, size_t position);

// Returns the rank on the other side of a send or receive. Pre-condition: the action is one and has
// such a neighbor.
Rank PeerOf(const Schedule& schedule, const Action& action);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_IR_SCHEDULE_H_
