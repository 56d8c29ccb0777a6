// ForwardOnly of generators.h.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "schedule/generators/generators.h"

namespace stagecoach::schedule {
namespace {

absl::Status CheckPlacement(const std::vector<Rank>& rank_of_stage, int ranks, int micro_batches) {
  if (rank_of_stage.empty() || ranks < 1 || micro_batches < 1) {
    return absl::InvalidArgumentError(absl::StrCat("schedule forward: ", rank_of_stage.size(),
                                                   " stages, ", ranks, " ranks, ", micro_batches,
                                                   " micro-batches; needs at least 1 of each"));
  }
  for (const Rank rank : rank_of_stage) {
    if (rank.value() < 0 || rank.value() >= ranks) {
      return absl::InvalidArgumentError(
          absl::StrCat("schedule forward: a stage is on rank ", rank.value(), " of ", ranks));
    }
  }
  const auto stages = static_cast<int64_t>(rank_of_stage.size());
  if (stages * std::max(micro_batches, ranks) > kMaxPasses) {
    return absl::InvalidArgumentError(absl::StrCat("schedule forward: ", stages, " stages with ",
                                                   micro_batches, " micro-batches on ", ranks,
                                                   " ranks are too many"));
  }
  return absl::OkStatus();
}

// Returns the stage that `rank` works on next: the one furthest along whose input exists, so that
// started micro-batches finish before more are started. None (-1) if there is no input. `done`:
// micro-batches per stage.
StageId Choose(const std::vector<StageId>& stages, const std::vector<int>& done,
               int micro_batches) {
  for (size_t i = stages.size(); i-- > 0;) {
    const auto s = static_cast<size_t>(stages[i].value());
    const int available = s == 0 ? micro_batches : done[s - 1];
    if (done[s] < available) return stages[i];
  }
  return StageId();
}

}  // namespace

absl::StatusOr<Schedule> ForwardOnly(const std::vector<Rank>& rank_of_stage, int ranks,
                                     int micro_batches) {
  RETURN_IF_ERROR(CheckPlacement(rank_of_stage, ranks, micro_batches));
  Schedule schedule;
  schedule.name = "forward";
  schedule.num_micro_batches = micro_batches;
  schedule.rank_of_stage = rank_of_stage;
  schedule.actions.resize(static_cast<size_t>(ranks));
  std::vector<std::vector<StageId>> stages;  // index: rank
  for (Rank rank(0); rank.value() < ranks; ++rank) stages.push_back(schedule.StagesOf(rank));
  // Time advances in steps: what is done in one step can be read in the next.
  std::vector<int> done(rank_of_stage.size(), 0);
  while (done.back() < micro_batches) {
    std::vector<StageId> chosen;
    for (const std::vector<StageId>& own : stages) {
      chosen.push_back(Choose(own, done, micro_batches));
    }
    for (size_t r = 0; r < chosen.size(); ++r) {
      if (!chosen[r].valid()) continue;
      int& next = done[static_cast<size_t>(chosen[r].value())];
      schedule.actions[r].push_back(
          {.op = Op::kForward, .stage = chosen[r], .micro_batch = MicroBatch(next++)});
    }
  }
  return schedule;
}

}  // namespace stagecoach::schedule
