// The times of the actions of a measured run.

#include <algorithm>
#include <chrono>

#include "base/status_macros.h"
#include "engine/runtime/executor.h"

namespace stagecoach::engine {
namespace {

using schedule::Op;
using schedule::TimedAction;
using Clock = std::chrono::steady_clock;

int64_t Nanoseconds(Clock::duration duration) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count();
}

}  // namespace

absl::Status Executor::ReadTimes(const Run& run) {
  const std::vector<Instruction>& instructions = run.bound.program.instructions;
  counters_.last_compute_ns = 0;
  for (size_t index = 0; index < instructions.size(); ++index) {
    const bool works = instructions[index].works;
    if (!works && run.timed.empty()) continue;
    ASSIGN_OR_RETURN(TimedAction timed, TimesOf(run, static_cast<int>(index)));
    if (works) counters_.last_compute_ns += timed.end_ns - timed.start_ns;
    if (run.timed.empty()) continue;
    timed.bytes = run.timed[index].bytes;
    timed.peak_stash_bytes = run.timed[index].peak_stash_bytes;
    timed.as_graph = run.timed[index].as_graph;
    run.timed[index] = timed;
  }
  counters_.compute_ns += counters_.last_compute_ns;
  return absl::OkStatus();
}

absl::StatusOr<TimedAction> Executor::TimesOf(const Run& run, int position) const {
  const auto index = static_cast<size_t>(position);
  const Instruction& instruction = run.bound.program.instructions[index];
  const Clock::time_point zero = run.step == nullptr ? Clock::time_point() : run.step->start;
  const auto at = [&](Moment moment) { return timeline_->At(SlotOf(instruction, moment)); };
  ASSIGN_OR_RETURN(Clock::time_point reached, at(Moment::kReached));
  reached = std::max(reached, zero);
  Clock::time_point start = reached;
  Clock::time_point end = reached;
  if (instruction.works) {
    ASSIGN_OR_RETURN(start, at(Moment::kStart));
    ASSIGN_OR_RETURN(end, at(Moment::kEnd));
    if (instruction.action.op == Op::kExchangeNorms) {
      // The wait for other ranks is in the middle; it is reported as if it came first.
      ASSIGN_OR_RETURN(const Clock::time_point own_part_done, at(Moment::kOwnPartDone));
      ASSIGN_OR_RETURN(const Clock::time_point all_there, at(Moment::kAllPartsThere));
      start += all_there - own_part_done;
    }
  } else if (schedule::IsTransfer(instruction.action.op)) {
    ASSIGN_OR_RETURN(start, at(Moment::kStart));
    ASSIGN_OR_RETURN(end, options_.transport->DeliveredAt(tickets_[index]));
  } else if (schedule::IsHostCopy(instruction.action.op)) {
    ASSIGN_OR_RETURN(start, at(Moment::kStart));
    ASSIGN_OR_RETURN(end, host_copies_->DoneAt(instruction.copy_slot));
  } else if (instruction.action.op == Op::kReduceGradients) {
    ASSIGN_OR_RETURN(start, at(Moment::kStart));
    ASSIGN_OR_RETURN(end, reduction_->DoneAt(instruction.action.stage));
  }
  // Two devices' clocks agree only to within some ten microseconds (Timeline::At): what one saw
  // delivered may seem to precede the other's reaching it.
  start = std::max(start, reached);
  end = std::max(end, start);
  return TimedAction{.action = instruction.action,
                     .reached_ns = Nanoseconds(reached - zero),
                     .start_ns = Nanoseconds(start - zero),
                     .end_ns = Nanoseconds(end - zero)};
}

}  // namespace stagecoach::engine
