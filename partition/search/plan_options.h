#ifndef STAGECOACH_PARTITION_SEARCH_PLAN_OPTIONS_H_
#define STAGECOACH_PARTITION_SEARCH_PLAN_OPTIONS_H_

#include <cstddef>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "partition/cost/model_option.h"
#include "partition/plan/plan_evaluation.h"
#include "partition/search/planner.h"

namespace stagecoach::partition {

inline constexpr size_t kMostSmaller = 8;

struct ChosenOption {
  size_t index = 0;           // of the options
  PlanEvaluation evaluation;  // Choice::option is its name
};

// Runs FindPlan with the profile and cluster of each option in place of the request's own, and
// returns the best plan of all. The evaluation's lower bound holds for all options, and its
// runner-up may be of another one. Options are planned in the order of what their layers alone
// take, each with an equal part of the remaining time; those that cannot beat the best plan so far
// are left out.
//
// If devices may be left out, the best option is planned again on the first k devices, for each k,
// and without the slowest devices: far fewer pay off than a bound admits, so at most kMostSmaller
// of them are tried, those with the least bounds. PlanEvaluation::left_out says which devices were
// left out.
//
// Pre-condition: there is an option. If none has a plan, returns the error of the first, or for
// several options its kind with the first line of each.
absl::StatusOr<ChosenOption> FindBestVariant(const PlannerRequest& request,
                                             absl::Span<const ModelOption> options,
                                             const SearchLimits& limits = {});

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_SEARCH_PLAN_OPTIONS_H_
