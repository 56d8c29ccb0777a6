#include "schedule/simulate/virtual_time.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "schedule/ir/action_table.h"

namespace stagecoach::schedule {

VirtualTime::VirtualTime(const Schedule& schedule, Sends sends)
    : schedule_(schedule),
      sends_(sends),
      lowered_(schedule.IsLowered()),
      num_micro_batches_(static_cast<size_t>(std::max(schedule.num_micro_batches, 0))) {}

void VirtualTime::Begin(const Costs& costs) {
  const size_t num_stages = schedule_.rank_of_stage.size();
  const size_t num_ranks = schedule_.actions.size();
  costs_ = &costs;
  for (std::vector<InTransit>& messages : messages_) {
    messages.assign(num_stages * num_micro_batches_, {});
  }
  lanes_.clear();
  for (StageId stage(0); stage.value() < schedule_.num_stages(); ++stage) {
    for (const Kind kind : {kActivation, kGradient}) lanes_.push_back(LaneOf(stage, kind));
  }
  states_.assign(num_ranks, {});
  copied_ns_.clear();
  collectives_.assign(schedule_.groups.size() * kNumCollectiveOps, {});
  reduced_ns_.assign(num_stages, 0);
  pair_ns_.assign(2 * num_ranks, 0);
  ranks_.assign(num_ranks, {});
  step_ns_ = 0;
}

VirtualTime::Lane VirtualTime::LaneOf(StageId stage, Kind kind) const {
  const bool forward = kind == kActivation;
  if (forward ? schedule_.is_last(stage) : schedule_.is_first(stage)) return {};
  const StageTimes& times = costs_->of(stage);
  Lane lane = {.from = schedule_.rank_of(stage),
               .to = schedule_.rank_of(StageId(stage.value() + (forward ? 1 : -1))),
               .bytes = forward ? times.output_bytes : times.input_gradient_bytes};
  if (lane.from != lane.to) {
    lane.ns = costs_->LinkBetween(lane.from, lane.to, schedule_.num_ranks()).TransferNs(lane.bytes);
  }
  return lane;
}

absl::Status VirtualTime::CheckActions() const {
  for (Rank rank(0); rank.value() < schedule_.num_ranks(); ++rank) {
    const std::vector<Action>& list = schedule_.list_of(rank);
    for (size_t i = 0; i < list.size(); ++i) {
      const bool is_pair =
          !list[i].overlaps_next ||
          (i + 1 < list.size() &&
           (IsTransfer(list[i].op) ? IsTransfer(list[i + 1].op)
                                   : IsCompute(list[i].op) && IsCompute(list[i + 1].op) &&
                                         !list[i + 1].overlaps_next));
      if (is_pair && !IsMisnamed(schedule_, rank, list[i])) continue;
      return absl::FailedPreconditionError(
          absl::StrCat(Where(schedule_, rank, static_cast<int32_t>(i)),
                       " has no place in the schedule: Validate says why"));
    }
  }
  return absl::OkStatus();
}

absl::Status VirtualTime::Run(const Costs& costs, Trace* trace) {
  if (!is_checked_) RETURN_IF_ERROR(CheckActions());
  is_checked_ = true;
  Begin(costs);
  trace_ = trace;
  if (trace_ != nullptr) {
    trace_->name = schedule_.name;
    trace_->source = "simulated";
    trace_->num_micro_batches = schedule_.num_micro_batches;
    trace_->rank_of_stage = schedule_.rank_of_stage;
    trace_->actions.resize(schedule_.actions.size());
    for (size_t r = 0; r < states_.size(); ++r) {
      trace_->actions[r].resize(schedule_.actions[r].size());
    }
  }
  for (Rank rank(schedule_.num_ranks() - 1); rank.valid(); rank = Rank(rank.value() - 1)) {
    runnable_.push_back(rank);
  }
  while (!runnable_.empty()) {
    const Rank rank = runnable_.back();
    runnable_.pop_back();
    RunRank(rank);
  }
  std::string waiting;
  for (Rank rank(0); rank.value() < schedule_.num_ranks(); ++rank) {
    const RankState& state = StateOf(rank);
    step_ns_ = std::max(step_ns_, state.clock_ns);
    if (!state.waits) continue;
    const bool at_end = state.next == schedule_.list_of(rank).size();
    absl::StrAppend(&waiting, waiting.empty() ? "" : "; ",
                    at_end ? absl::StrCat("rank ", rank.value(), " waits for its last transfers")
                           : Where(schedule_, rank, static_cast<int32_t>(state.next)));
  }
  if (!waiting.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the schedule never finishes (Validate says why): ", waiting));
  }
  if (trace_ != nullptr) FillTransfers();
  return absl::OkStatus();
}

absl::Status VirtualTime::RunToEnds(const Costs& costs, int64_t never,
                                    std::vector<std::vector<int64_t>>& ends_ns) {
  ends_ns.resize(schedule_.actions.size());
  for (size_t r = 0; r < ends_ns.size(); ++r) ends_ns[r].assign(schedule_.actions[r].size(), never);
  ends_ns_ = &ends_ns;
  const absl::Status status = Run(costs, nullptr);
  ends_ns_ = nullptr;
  return status;
}

void VirtualTime::RunRank(Rank rank) {
  const std::vector<Action>& list = schedule_.list_of(rank);
  RankState& state = StateOf(rank);
  while (state.next < list.size()) {
    const Action& action = list[state.next];
    bool done = true;
    if (IsCompute(action.op)) {
      done = Compute(rank, action);
    } else if (IsTransfer(action.op) && IsGrouped()) {
      PostGroup(rank);
      continue;
    } else if (IsSend(action.op)) {
      done = Send(rank, action);
    } else if (IsReceive(action.op)) {
      PostReceive(rank, action);
    } else if (MovesStash(action.op)) {
      done = MoveStash(rank, action);
    } else if (IsCollective(action.op)) {
      done = PerformCollective(rank, action);
    } else {
      done = PerformOfStage(rank, action);
    }
    if (!done) {
      state.waits = true;
      return;
    }
    state.next += IsCompute(action.op) && action.overlaps_next ? 2 : 1;
  }
  state.waits = !AwaitLastTransfers(rank);
}

int64_t VirtualTime::ReadyNs(const Action& action) const {
  const bool forward = action.op == Op::kForward;
  if (action.op == Op::kBackwardWeight) return 0;
  const bool reads_stash = !forward && !copied_ns_.empty();
  const int64_t fetched_ns =
      reads_stash ? copied_ns_[IndexOf(action.stage, action.micro_batch)] : 0;
  if (forward ? schedule_.is_first(action.stage) : schedule_.is_last(action.stage)) {
    return fetched_ns;
  }
  const InTransit& message =
      MessageTo(forward ? kActivation : kGradient, action.stage, action.micro_batch);
  const bool received = forward ? schedule_.receives_from_previous(action.stage)
                                : schedule_.sends_to_next(action.stage);
  int64_t arrival_ns = message.arrival_ns;
  if (received && IsGrouped()) {
    arrival_ns = message.receiving_group == 0
                     ? kNotYet
                     : DoneNs(schedule_.rank_of(action.stage), message.receiving_group);
  }
  return arrival_ns == kNotYet ? kNotYet : std::max(arrival_ns, fetched_ns);
}

int64_t VirtualTime::DurationNs(const Action& action) const {
  const StageTimes& times = costs_->of(action.stage);
  const bool is_last = static_cast<size_t>(action.micro_batch.value()) + 1 == num_micro_batches_;
  const int64_t update_ns = costs_->updates_in_backward && is_last ? times.step_ns : 0;
  switch (action.op) {
    case Op::kForward:
      return times.forward_ns;
    case Op::kBackwardInput:
      return times.backward_input_ns;
    case Op::kBackwardWeight:
      return times.backward_weight_ns + update_ns;
    case Op::kBackward:
      return times.backward_ns + update_ns;
    case Op::kStep:
      return costs_->updates_in_backward ? 0 : times.step_ns;
    default:
      return 0;
  }
}

bool VirtualTime::Compute(Rank rank, const Action& action) {
  RankState& state = StateOf(rank);
  const Action* const second =
      action.overlaps_next ? &schedule_.list_of(rank)[state.next + 1] : nullptr;
  int64_t ready_ns = ReadyNs(action);
  int64_t duration_ns = DurationNs(action);
  const int64_t awaited_ns = DoneNs(rank, state.groups_awaited);
  if (ready_ns == kNotYet || awaited_ns == kNotYet) return false;
  ready_ns = std::max(ready_ns, awaited_ns);
  if (second != nullptr) {
    const int64_t second_ready_ns = ReadyNs(*second);
    if (second_ready_ns == kNotYet) return false;
    ready_ns = std::max(ready_ns, second_ready_ns);
    const int64_t second_ns = DurationNs(*second);
    const int64_t overlapped_ns =
        std::llround(costs_->overlap_share * static_cast<double>(duration_ns + second_ns));
    // Overlapped, neither gets faster than alone.
    duration_ns = std::max({overlapped_ns, duration_ns, second_ns});
  }
  Occupy(rank, action, std::max(state.clock_ns, ready_ns), duration_ns);
  Deliver(rank, action);
  if (second != nullptr) {
    if (ends_ns_ != nullptr) (*ends_ns_)[IndexOf(rank)][state.next + 1] = state.clock_ns;
    if (trace_ != nullptr) {
      std::vector<TimedAction>& list = trace_->actions[IndexOf(rank)];
      list[state.next + 1] = list[state.next];
      list[state.next + 1].action = *second;
    }
    Deliver(rank, *second);
  }
  return true;
}

bool VirtualTime::MoveStash(Rank rank, const Action& action) {
  RankState& state = StateOf(rank);
  const int64_t awaited_ns = DoneNs(rank, state.groups_awaited);
  if (awaited_ns == kNotYet) return false;
  if (copied_ns_.empty()) copied_ns_.assign(schedule_.rank_of_stage.size() * num_micro_batches_, 0);
  int64_t& copied_ns = copied_ns_[IndexOf(action.stage, action.micro_batch)];
  const int64_t ready_ns = std::max(state.clock_ns, awaited_ns);
  if (action.op == Op::kRelease) {
    Occupy(rank, action, std::max(ready_ns, copied_ns), 0);
    return true;
  }
  const int64_t copy_ns =
      costs_->host_link.link.TransferNs(costs_->of(action.stage).host_copy_bytes);
  if (costs_->host_link.occupies_rank) {
    Occupy(rank, action, ready_ns, copy_ns);
    copied_ns = state.clock_ns;
    return true;
  }
  int64_t& lane_ns = action.op == Op::kOffload ? state.offloaded_ns : state.fetched_ns;
  lane_ns = copied_ns = std::max(ready_ns, lane_ns) + copy_ns;
  Record(rank, action, ready_ns, copied_ns);
  state.clock_ns = ready_ns;
  return true;
}

bool VirtualTime::PerformOfStage(Rank rank, const Action& action) {
  RankState& state = StateOf(rank);
  const int64_t awaited_ns = DoneNs(rank, state.groups_awaited);
  if (awaited_ns == kNotYet) return false;
  const int64_t ready_ns = std::max(state.clock_ns, awaited_ns);
  int64_t& reduced_ns = reduced_ns_[static_cast<size_t>(action.stage.value())];
  if (action.op == Op::kReduceGradients) {
    reduced_ns = std::max(ready_ns, state.reduced_ns) + costs_->of(action.stage).reduce_ns;
    state.reduced_ns = reduced_ns;
    Record(rank, action, ready_ns, reduced_ns);
    state.clock_ns = sends_ == Sends::kBlocking ? reduced_ns : ready_ns;
    return true;
  }
  const bool uses_gradients = action.op == Op::kStep;
  Occupy(rank, action, uses_gradients ? std::max(ready_ns, reduced_ns) : ready_ns,
         DurationNs(action));
  return true;
}

// With groups, a collective is a group itself, after those that were posted before.
bool VirtualTime::PerformCollective(Rank rank, const Action& action) {
  RankState& state = StateOf(rank);
  CollectiveState& collective = StateOf(action);
  const std::vector<Rank>& members = schedule_.group(action.group).ranks;
  if (!state.stands_before_collective) {
    const int64_t groups_done_ns = DoneNs(rank, static_cast<int32_t>(state.groups.size()));
    if (groups_done_ns == kNotYet) return false;
    state.stands_before_collective = true;
    const int64_t reduced_ns = TakesGradients(action.op) ? state.reduced_ns : 0;
    collective.start_ns =
        std::max({collective.start_ns, state.clock_ns, groups_done_ns, reduced_ns});
    if (++collective.arrivals == members.size()) {
      for (const Rank member : members) Wake(member);
    }
  }
  if (collective.arrivals < members.size()) return false;
  state.stands_before_collective = false;
  const int64_t end_ns = collective.start_ns + costs_->collectives.of(action.op);
  Record(rank, action, collective.start_ns, end_ns);
  state.clock_ns = end_ns;
  return true;
}

void VirtualTime::Occupy(Rank rank, const Action& action, int64_t start_ns, int64_t duration_ns) {
  RankState& state = StateOf(rank);
  RankTimes& times = ranks_[IndexOf(rank)];
  const int64_t end_ns = start_ns + duration_ns;
  if (duration_ns > 0) {
    if (times.busy_ns == 0) times.start_ns = start_ns;
    times.end_ns = end_ns;
    times.busy_ns += duration_ns;
  }
  Record(rank, action, start_ns, end_ns);
  state.clock_ns = end_ns;
}

// Delivers the results of `action`, at whose end the rank's clock is.
void VirtualTime::Deliver(Rank rank, const Action& action) {
  if (action.op == Op::kBackwardWeight) return;
  const bool forward = action.op == Op::kForward;
  if (forward ? schedule_.is_last(action.stage) : schedule_.is_first(action.stage)) return;
  const Kind kind = forward ? kActivation : kGradient;
  const Lane& lane = lanes_[LaneIndex(action.stage, kind)];
  if (lane.to != rank && lowered_) return;  // a send will deliver it
  const StageId reader(action.stage.value() + (forward ? 1 : -1));
  MessageTo(kind, reader, action.micro_batch).arrival_ns = StateOf(rank).clock_ns + lane.ns;
  Wake(lane.to);
}

VirtualTime::Transfer VirtualTime::TransferOf(const Action& action) {
  const Kind kind = action.op == Op::kSendActivation || action.op == Op::kReceiveActivation
                        ? kActivation
                        : kGradient;
  const StageId other = NeighborOf(action);
  const auto [sender, reader] =
      IsSend(action.op) ? std::pair(action.stage, other) : std::pair(other, action.stage);
  return {.message = MessageTo(kind, reader, action.micro_batch),
          .lane = lanes_[LaneIndex(sender, kind)]};
}

bool VirtualTime::Send(Rank rank, const Action& action) {
  RankState& state = StateOf(rank);
  const auto [message, lane] = TransferOf(action);
  int64_t start_ns = state.clock_ns;
  switch (sends_) {
    case Sends::kBuffered:
      message.arrival_ns = start_ns + lane.ns;
      break;
    case Sends::kRendezvous: {
      const InTransit* const last = lane.last;
      if (last != nullptr && last->arrival_ns == kNotYet) return false;
      if (last != nullptr) start_ns = std::max(start_ns, last->arrival_ns);
      message.sent_ns = start_ns;
      if (message.posted_ns != kNotYet) {
        message.arrival_ns = std::max(start_ns, message.posted_ns) + lane.ns;
      }
      lane.last = &message;
      break;
    }
    case Sends::kBlocking:
      if (message.posted_ns == kNotYet) return false;
      start_ns = std::max(start_ns, message.posted_ns);
      message.arrival_ns = start_ns + lane.ns;
      break;
    case Sends::kGrouped:
      break;  // unreachable: PostGroup handles these
  }
  Record(rank, action, start_ns, message.arrival_ns);
  state.clock_ns = sends_ == Sends::kBlocking ? message.arrival_ns : start_ns;
  if (message.arrival_ns != kNotYet) Wake(lane.to);
  return true;
}

void VirtualTime::PostReceive(Rank rank, const Action& action) {
  const int64_t now_ns = StateOf(rank).clock_ns;
  Record(rank, action, now_ns, now_ns);
  if (sends_ == Sends::kBuffered) return;
  const auto [message, lane] = TransferOf(action);
  message.posted_ns = now_ns;
  if (message.sent_ns != kNotYet) {
    message.arrival_ns = std::max(message.sent_ns, now_ns) + lane.ns;
  }
  Wake(lane.from);
}

// Waits at the end of a list until the messages it has sent have been taken, or its groups are
// done.
bool VirtualTime::AwaitLastTransfers(Rank rank) {
  RankState& state = StateOf(rank);
  if (IsGrouped()) {
    const int64_t done_ns = DoneNs(rank, static_cast<int32_t>(state.groups.size()));
    state.clock_ns = std::max(state.clock_ns, done_ns);
    return done_ns != kNotYet;
  }
  if (sends_ != Sends::kRendezvous) return true;
  for (const Lane& lane : lanes_) {
    if (lane.last == nullptr || lane.from != rank) continue;
    if (lane.last->arrival_ns == kNotYet) return false;
    state.clock_ns = std::max(state.clock_ns, lane.last->arrival_ns);
  }
  return true;
}

void VirtualTime::Wake(Rank rank) {
  RankState& state = StateOf(rank);
  if (!state.waits) return;
  state.waits = false;
  runnable_.push_back(rank);
}

void VirtualTime::Record(Rank rank, const Action& action, int64_t start_ns, int64_t end_ns) {
  const RankState& state = StateOf(rank);
  if (ends_ns_ != nullptr) (*ends_ns_)[IndexOf(rank)][state.next] = end_ns;
  if (trace_ == nullptr) return;
  trace_->actions[IndexOf(rank)][state.next] = {action, state.clock_ns, start_ns, end_ns, 0};
}

// Fills in arrivals, since some are settled only after the message's end on this rank was recorded.
void VirtualTime::FillTransfers() {
  for (std::vector<TimedAction>& list : trace_->actions) {
    for (TimedAction& timed : list) {
      if (IsHostCopy(timed.action.op)) {
        timed.bytes = costs_->of(timed.action.stage).host_copy_bytes;
      }
      if (!IsTransfer(timed.action.op)) continue;
      const Transfer transfer = TransferOf(timed.action);
      // A buffered message may arrive before its receive is posted.
      timed.end_ns = std::max(timed.start_ns, transfer.message.arrival_ns);
      timed.bytes = transfer.lane.bytes;
    }
  }
  trace_->step_ns = step_ns_;
}

}  // namespace stagecoach::schedule
