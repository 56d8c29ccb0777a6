#ifndef STAGECOACH_PARTITION_BOUNDS_LAYER_BOUNDS_H_
#define STAGECOACH_PARTITION_BOUNDS_LAYER_BOUNDS_H_

#include <cstdint>

#include "partition/cost/layer_cost.h"
#include "partition/cost/replication.h"

namespace stagecoach::partition {

// Return lower bounds of what a layer adds to a stage, without rounding: what it keeps itself of
// each micro-batch in flight; and, for training, parameters, the sums of their gradients, the
// optimizer's state and everything else that is kept for the whole run.
int64_t LeastOwnStashBytes(const LayerCost& layer, bool may_recompute);
int64_t TrainedBytes(const LayerCost& layer, const Replication& replication);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_BOUNDS_LAYER_BOUNDS_H_
