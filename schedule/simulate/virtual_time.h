#ifndef STAGECOACH_SCHEDULE_SIMULATE_VIRTUAL_TIME_H_
#define STAGECOACH_SCHEDULE_SIMULATE_VIRTUAL_TIME_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "schedule/ir/schedule.h"
#include "schedule/simulate/costs.h"
#include "schedule/simulate/simulate.h"
#include "schedule/traces/trace.h"

namespace stagecoach::schedule {

// Runs a schedule in virtual time: lets every rank continue until it needs something that does not
// exist yet, and wakes it when that comes into being. Every time is a function of the schedule and
// the costs alone, whatever the order in which ranks are visited. Not part of the public interface
// (simulate.h is). Keeps references to its arguments.
class VirtualTime {
 public:
  VirtualTime(const Schedule& schedule, Sends sends);

  // Fills `trace` if it is not null. FailedPrecondition if ranks are left waiting, or an action is
  // out of place. Pre-condition: CheckCosts passes.
  absl::Status Run(const Costs& costs, Trace* trace);

  // Does the same without a trace; sets `ends_ns` to when each action ends, or to `never` if it is
  // not performed. Index: rank and position.
  absl::Status RunToEnds(const Costs& costs, int64_t never,
                         std::vector<std::vector<int64_t>>& ends_ns);

  // Returns the step time of the last run.
  int64_t step_ns() const { return step_ns_; }
  // Only busy_ns, start_ns and end_ns are set. Index: rank.
  const std::vector<RankTimes>& ranks() const { return ranks_; }

 private:
  static constexpr int64_t kNotYet = -1;

  // The activation or the gradient that a stage reads for one micro-batch.
  struct InTransit {
    int64_t arrival_ns = kNotYet;
    // When its ends were posted, if that matters.
    int64_t sent_ns = kNotYet;
    int64_t posted_ns = kNotYet;
    // The groups of its ends, if there are groups: counted from 1 on each rank; 0: none yet.
    int32_t sending_group = 0;
    int32_t receiving_group = 0;
  };
  // Transfers that are performed as one.
  struct Group {
    size_t begin = 0;  // positions in its rank's list
    size_t end = 0;
    int64_t posted_ns = 0;
    int64_t end_ns = 0;  // until it is done, the end of what has passed
    size_t left = 0;     // number of transfers that have not passed
  };
  // A collective that ranks have reached.
  struct CollectiveState {
    size_t arrivals = 0;   // number so far
    int64_t start_ns = 0;  // not before this
  };
  enum Kind : size_t { kActivation = 0, kGradient = 1 };
  // The path on which a stage sends activations or gradients.
  struct Lane {
    Rank from;
    Rank to;
    int64_t bytes = 0;                // per message
    int64_t ns = 0;                   // per message
    const InTransit* last = nullptr;  // last message sent
  };
  // The message that a send or a receive is an end of, and its lane.
  struct Transfer {
    InTransit& message;
    Lane& lane;
  };
  struct RankState {
    size_t next = 0;  // into its list
    int64_t clock_ns = 0;
    bool waits = false;
    bool stands_before_collective = false;  // it is then counted among the arrivals
    int64_t reduced_ns = 0;                 // when its last REDUCE so far is done
    int64_t offloaded_ns = 0;               // when its last OFFLOAD so far is done
    int64_t fetched_ns = 0;                 // when its last FETCH so far is done
    std::vector<Group> groups;              // posted so far
    int32_t groups_started = 0;
    int32_t groups_done = 0;
    int32_t groups_awaited = 0;  // must be done before the rank's next action
  };

  absl::Status CheckActions() const;
  // Forgets the last run.
  void Begin(const Costs& costs);
  Lane LaneOf(StageId stage, Kind kind) const;
  void RunRank(Rank rank);
  // These perform the action at the rank's place. They return false if it has to wait.
  bool Compute(Rank rank, const Action& action);
  bool Send(Rank rank, const Action& action);
  void PostReceive(Rank rank, const Action& action);
  bool MoveStash(Rank rank, const Action& action);
  bool PerformOfStage(Rank rank, const Action& action);
  bool PerformCollective(Rank rank, const Action& action);
  bool AwaitLastTransfers(Rank rank);

  // Only for kGrouped (virtual_time_groups.cc). Posts the group at the rank's place and moves past
  // it.
  void PostGroup(Rank rank);
  // Performs all groups that can be performed once `first` has a new one.
  void PerformGroups(Rank first);
  // Starts the next group of the rank; adds to `touched` the ranks whose groups it has changed.
  void StartGroup(Rank rank, std::vector<Rank>& touched);
  // Lets a transfer of the rank's current group pass.
  void Pass(Rank rank, int64_t arrival_ns);
  // Returns when the first `count` groups of the rank are done; 0 if `count` is 0, kNotYet if they
  // are not.
  int64_t DoneNs(Rank rank, int32_t count) const;

  // Returns when the inputs of a compute action exist; kNotYet if they do not.
  int64_t ReadyNs(const Action& action) const;
  int64_t DurationNs(const Action& action) const;
  void Occupy(Rank rank, const Action& action, int64_t start_ns, int64_t duration_ns);
  void Deliver(Rank rank, const Action& action);
  void Wake(Rank rank);
  void Record(Rank rank, const Action& action, int64_t start_ns, int64_t end_ns);
  void FillTransfers();
  Transfer TransferOf(const Action& action);
  CollectiveState& StateOf(const Action& collective) {
    return collectives_[static_cast<size_t>(collective.group.value()) * kNumCollectiveOps +
                        CollectiveIndex(collective.op)];
  }
  bool IsGrouped() const { return sends_ == Sends::kGrouped; }

  // Messages are indexed by their reader, stashes by their owner.
  size_t IndexOf(StageId stage, MicroBatch mb) const {
    return static_cast<size_t>(stage.value()) * num_micro_batches_ +
           static_cast<size_t>(mb.value());
  }
  InTransit& MessageTo(Kind kind, StageId stage, MicroBatch mb) {
    return messages_[kind][IndexOf(stage, mb)];
  }
  const InTransit& MessageTo(Kind kind, StageId stage, MicroBatch mb) const {
    return messages_[kind][IndexOf(stage, mb)];
  }
  static size_t LaneIndex(StageId stage, Kind kind) {
    return 2 * static_cast<size_t>(stage.value()) + kind;
  }
  static size_t IndexOf(Rank rank) { return static_cast<size_t>(rank.value()); }
  RankState& StateOf(Rank rank) { return states_[IndexOf(rank)]; }
  const RankState& StateOf(Rank rank) const { return states_[IndexOf(rank)]; }

  const Schedule& schedule_;
  const Sends sends_;
  const bool lowered_;
  const size_t num_micro_batches_;
  bool is_checked_ = false;
  const Costs* costs_ = nullptr;
  std::array<std::vector<InTransit>, 2> messages_;  // index: kind; stage and micro-batch
  // When the last copy of a stash so far is done; index: stage and micro-batch. Empty if the
  // schedule has none.
  std::vector<int64_t> copied_ns_;
  std::vector<Lane> lanes_;                   // index: LaneIndex
  std::vector<RankState> states_;             // index: rank
  std::vector<CollectiveState> collectives_;  // index: group and operation
  std::vector<int64_t> reduced_ns_;  // when the gradients of a stage are summed; index: stage
  std::vector<Rank> runnable_;
  // When the last message of the starting group has passed to and from each rank. Index: 2 * rank,
  // + 1 for messages from it.
  std::vector<int64_t> pair_ns_;
  std::vector<RankTimes> ranks_;
  int64_t step_ns_ = 0;
  Trace* trace_ = nullptr;
  std::vector<std::vector<int64_t>>* ends_ns_ = nullptr;
};

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_SIMULATE_VIRTUAL_TIME_H_
