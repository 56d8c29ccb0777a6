#ifndef STAGECOACH_PARTITION_SEARCH_RECEIPT_OF_H_
#define STAGECOACH_PARTITION_SEARCH_RECEIPT_OF_H_

#include "absl/status/statusor.h"
#include "partition/cluster.h"
#include "partition/plan/plan.h"
#include "partition/plan/receipt.h"
#include "partition/profile.h"

namespace stagecoach::partition {

// The receipt of a plan as it stands: costs, memory and simulation, but nothing that a search would
// know (`considered` is 0, the lower bound the objective, runner-up and changes are empty).
// InvalidArgument: the plan is not one for this profile and cluster; says why. Whether it fits is
// for CheckFits to say.
absl::StatusOr<Receipt> ReceiptOf(const Plan& plan, const Profile& profile, const Cluster& cluster,
                                  PlanObjective objective = PlanObjective::kStep);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_SEARCH_RECEIPT_OF_H_
