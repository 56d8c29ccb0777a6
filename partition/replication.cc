#include "partition/replication.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"
#include "partition/cluster.h"
#include "partition/layer_cost.h"

namespace stagecoach::partition {
namespace {

bool IsPowerOfTwo(int count) {
  return count > 0 && std::has_single_bit(static_cast<unsigned>(count));
}

}  // namespace

int Replication::gradient_copies() const {
  return std::bit_width(static_cast<unsigned>(blocks_per_replica()));
}

absl::Status CheckReplication(const Replication& replication, int64_t micro_batches) {
  const auto [replicas, blocks] = replication;
  if (!IsPowerOfTwo(replicas) || replicas > kMaxDevices) {
    return absl::InvalidArgumentError(
        absl::StrCat(replicas, " replicas: must be a power of two up to ", kMaxDevices,
                     ", so that gradients are summed in one binary tree"));
  }
  if (!IsPowerOfTwo(blocks)) {
    return absl::InvalidArgumentError(absl::StrCat(
        blocks, " gradient blocks: must be a power of two, to be summed in a binary tree"));
  }
  if (blocks < replicas) {
    return absl::InvalidArgumentError(
        absl::StrCat(blocks, " gradient blocks for ", replicas,
                     " replicas: use a multiple of the replicas, so that each has whole blocks"));
  }
  if (micro_batches % blocks != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        micro_batches, " micro-batches cannot be divided evenly into ", blocks,
        blocks == replicas ? " gradient blocks, one for each replica" : " gradient blocks",
        ": use a multiple of ", blocks));
  }
  return absl::OkStatus();
}

int64_t ShardBytes(int64_t bytes, int replicas) {
  return AlignTensor((bytes + replicas - 1) / replicas);
}

int64_t ReductionBytes(int64_t gradient_bytes, int replicas) {
  const int64_t part_bytes = std::min(gradient_bytes, kReductionPartBytes);
  const int parts = gradient_bytes > part_bytes ? 2 : 1;
  return parts * (replicas - 1) * ShardBytes(part_bytes, replicas);
}

}  // namespace stagecoach::partition
