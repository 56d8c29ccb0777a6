#include "partition/bounds/layer_bounds.h"

#include <algorithm>

#include "partition/cost/stage_memory.h"

namespace stagecoach::partition {

int64_t LeastOwnStashBytes(const LayerCost& layer, bool may_recompute) {
  const int64_t own_bytes = layer.memory.stash_bytes + layer.memory.weight_stash_bytes;
  if (!may_recompute) return own_bytes;
  return std::min(own_bytes, layer.recompute_stash_bytes.value_or(own_bytes));
}

int64_t TrainedBytes(const LayerCost& layer, const Replication& replication) {
  const int64_t optimizer_bytes =
      replication.offloads_optimizer
          ? 0
          : layer.memory.optimizer_bytes / replication.optimizer_shards();
  return (1 + replication.gradient_copies()) * layer.memory.parameter_bytes + optimizer_bytes -
         HostValueBytes(layer.memory, replication) + layer.memory.other_resident_bytes;
}

}  // namespace stagecoach::partition
