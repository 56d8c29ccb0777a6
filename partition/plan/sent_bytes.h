#ifndef STAGECOACH_PARTITION_PLAN_SENT_BYTES_H_
#define STAGECOACH_PARTITION_PLAN_SENT_BYTES_H_

#include <cstdint>

#include "partition/plan/prepared_plan.h"
#include "schedule/action.h"

namespace stagecoach::partition {

// What a device sends in one step of training. It receives as much in all, as every byte that is
// sent arrives; in replicas alone each receives what it sends, but for rounding of shards.
struct SentBytes {
  int64_t to_ranks = 0;     // to devices of its replica: activations, gradients, norms, results
  int64_t to_replicas = 0;  // to devices of its rank: what REDUCE, STEP and RESULTS exchange

  friend bool operator==(const SentBytes&, const SentBytes&) = default;
};

SentBytes SentBytesOf(const PreparedPlan& plan, schedule::Rank rank, int replica);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_PLAN_SENT_BYTES_H_
