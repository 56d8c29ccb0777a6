#include "schedule/traces/check_trace.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace stagecoach::schedule {
namespace {

absl::Status CheckShape(const Trace& trace) {
  if (trace.num_micro_batches < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("trace: a negative number of micro-batches: ", trace.num_micro_batches));
  }
  for (int s = 0; s < trace.num_stages(); ++s) {
    const int rank = trace.rank_of_stage[static_cast<size_t>(s)].value();
    if (rank >= 0 && rank < trace.num_ranks()) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "trace: stage ", s, " is on rank ", rank, ", but there are ", trace.num_ranks(), " ranks"));
  }
  constexpr int64_t kMaxSumNs = int64_t{1} << 62;
  const int64_t limit_ns =
      std::min(kMaxTraceNs, kMaxSumNs / std::max<int64_t>(1, trace.num_ranks()));
  if (trace.step_ns < 0 || trace.step_ns > limit_ns) {
    return absl::InvalidArgumentError(absl::StrCat("trace: a step of ", trace.step_ns,
                                                   " ns; must be from 0 to ", limit_ns, " ns"));
  }
  return absl::OkStatus();
}

// Returns what is wrong with the action alone; "" if nothing is.
std::string ActionFault(const Trace& trace, Rank rank, const Action& action) {
  if (static_cast<int>(action.op) >= kNumOps) return "unknown operation";
  if (IsCollective(action.op)) {
    const bool is_alone = !action.stage.valid() && !action.micro_batch.valid();
    return action.group.valid() && is_alone ? "" : "the operation is of a group";
  }
  if (action.group.valid()) return "the operation is of no group";
  const int stage = action.stage.value();
  if (stage < 0 || stage >= trace.num_stages()) {
    return absl::StrCat("the trace has ", trace.num_stages(), " stages");
  }
  const Rank home = trace.rank_of_stage[static_cast<size_t>(stage)];
  if (home != rank) return absl::StrCat("the stage is on rank ", home.value());
  const int micro_batch = action.micro_batch.value();
  if (!HasMicroBatch(action.op)) {
    return action.micro_batch == MicroBatch() ? "" : "the operation is of the whole stage";
  }
  if (micro_batch < 0 || micro_batch >= trace.num_micro_batches) {
    return absl::StrCat("the trace has ", trace.num_micro_batches, " micro-batches");
  }
  return "";
}

// Returns what is wrong with the times, compared to the previous action's; "" if nothing is.
std::string TimeFault(const Trace& trace, const TimedAction& timed, const TimedAction& before) {
  const std::string times = absl::StrCat("reached at ", timed.reached_ns, ", started at ",
                                         timed.start_ns, ", ended at ", timed.end_ns, " ns: ");
  if (timed.reached_ns < 0 || timed.end_ns < 0) return times + "before the step";
  if (timed.start_ns > trace.step_ns || timed.end_ns > trace.step_ns) {
    return absl::StrCat(times, "after the step, which takes ", trace.step_ns, " ns");
  }
  if (timed.start_ns < timed.reached_ns) return times + "started before it was reached";
  if (timed.end_ns < timed.start_ns && !IsReceive(timed.action.op)) {
    return times + "ended before it started";
  }
  if (timed.reached_ns < before.reached_ns || timed.start_ns < before.start_ns) {
    return absl::StrCat(times, "before the action that precedes it, which was reached at ",
                        before.reached_ns, " and started at ", before.start_ns, " ns");
  }
  const int64_t bytes = std::min(timed.bytes, timed.peak_stash_bytes);
  return bytes < 0 ? absl::StrCat("a negative size: ", bytes, " bytes") : "";
}

}  // namespace

absl::Status CheckTrace(const Trace& trace) {
  if (absl::Status status = CheckShape(trace); !status.ok()) return status;
  for (Rank rank(0); rank.value() < trace.num_ranks(); ++rank) {
    const std::vector<TimedAction>& list = trace.list_of(rank);
    TimedAction before;
    for (size_t i = 0; i < list.size(); ++i) {
      std::string fault = ActionFault(trace, rank, list[i].action);
      if (fault.empty()) fault = TimeFault(trace, list[i], before);
      if (!fault.empty()) {
        return absl::InvalidArgumentError(absl::StrCat("trace: rank ", rank.value(), ", position ",
                                                       i, " (", ToString(list[i].action),
                                                       "): ", fault));
      }
      before = list[i];
    }
  }
  return absl::OkStatus();
}

}  // namespace stagecoach::schedule
