#ifndef STAGECOACH_PARTITION_SEARCH_MAKE_RECEIPT_H_
#define STAGECOACH_PARTITION_SEARCH_MAKE_RECEIPT_H_

#include "absl/status/statusor.h"
#include "partition/plan/receipt.h"
#include "partition/search/pipeline.h"

namespace stagecoach::partition {

// ReceiptOf (receipt_of.h) for a cut of a pipeline.
absl::StatusOr<Receipt> MakeReceipt(const Pipeline& pipeline, const Pipeline::Cut& cut,
                                    const Profile& profile, const Cluster& cluster,
                                    PlanObjective objective);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_SEARCH_MAKE_RECEIPT_H_
