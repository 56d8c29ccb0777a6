#ifndef STAGECOACH_PARTITION_PLAN_SENT_BYTES_H_
#define STAGECOACH_PARTITION_PLAN_SENT_BYTES_H_

#include <cstdint>

#include "partition/plan/prepared_plan.h"
#include "schedule/action.h"

namespace stagecoach::partition {

// What a device sends in one step of training. All devices together receive what they send; one
// alone need not.
struct SentBytes {
  int64_t to_ranks = 0;     // to devices of its replica: activations, gradients, norms, results
  int64_t to_replicas = 0;  // to devices of its rank: what REDUCE, STEP and RESULTS exchange

  friend bool operator==(const SentBytes&, const SentBytes&) = default;
};

SentBytes SentBytesOf(const PreparedPlan& plan, schedule::Rank rank, int replica);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_PLAN_SENT_BYTES_H_
