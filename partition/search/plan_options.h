#ifndef STAGECOACH_PARTITION_SEARCH_PLAN_OPTIONS_H_
#define STAGECOACH_PARTITION_SEARCH_PLAN_OPTIONS_H_

#include <cstddef>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "partition/model_option.h"
#include "partition/plan/receipt.h"
#include "partition/search/planner.h"

namespace stagecoach::partition {

struct ChosenOption {
  size_t index = 0;  // of the options
  Receipt receipt;   // Choice::option is its name
};

// PlanJointly with the profile and cluster of each option in place of the request's own, and the
// best plan of all. The receipt's lower bound holds for all options, and its runner-up may be of
// another one. Options are planned in the order of what their layers alone take, each with an equal
// part of the time that is left; those that cannot beat the best plan so far are left out.
//
// Pre-condition: there is an option. If none has a plan, the error of the first, or if there are
// several, its kind with the first line of each.
absl::StatusOr<ChosenOption> PlanBestOption(const PlannerRequest& request,
                                            absl::Span<const ModelOption> options,
                                            const SearchLimits& limits = {});

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_SEARCH_PLAN_OPTIONS_H_
