#include "schedule/transforms/split_stages.h"

#include <algorithm>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace stagecoach::schedule {

absl::StatusOr<Schedule> SplitStages(const Schedule& compute, absl::Span<const int> parts) {
  const bool are_parts = parts.size() == compute.rank_of_stage.size() &&
                         std::all_of(parts.begin(), parts.end(), [](int n) { return n >= 1; });
  if (!are_parts) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected a number of parts for each of ", compute.num_stages(), " stages"));
  }
  Schedule split = {.name = compute.name, .num_micro_batches = compute.num_micro_batches};
  std::vector<int> first;  // part of each stage
  for (size_t stage = 0; stage < parts.size(); ++stage) {
    first.push_back(split.num_stages());
    split.rank_of_stage.insert(split.rank_of_stage.end(), static_cast<size_t>(parts[stage]),
                               compute.rank_of_stage[stage]);
  }
  for (const std::vector<Action>& list : compute.actions) {
    std::vector<Action>& own = split.actions.emplace_back();
    for (const Action& action : list) {
      if (!IsCompute(action.op) || action.overlaps_next) {
        return absl::InvalidArgumentError(
            absl::StrCat("cannot divide the stages of a schedule with ", ToCode(action),
                         ": only passes that are performed one after the other can be divided"));
      }
      const auto stage = static_cast<size_t>(action.stage.value());
      const int count = parts[stage];
      for (int i = 0; i < count; ++i) {
        const int part = action.op == Op::kForward ? i : count - 1 - i;
        own.push_back({.op = action.op,
                       .stage = StageId(first[stage] + part),
                       .micro_batch = action.micro_batch});
      }
    }
  }
  return split;
}

}  // namespace stagecoach::schedule
