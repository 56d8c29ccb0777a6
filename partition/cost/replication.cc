#include "partition/cost/replication.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"
#include "partition/cost/cluster.h"
#include "partition/cost/layer_cost.h"

namespace stagecoach::partition {
namespace {

bool IsPowerOfTwo(int count) { return std::has_single_bit(static_cast<unsigned>(count)); }

// Returns how many sums a device holds at once that adds a subtree of so many blocks one by one:
// the most ones in the number of a block that is not the last, and one.
int CopiesFor(int blocks) { return std::bit_width(static_cast<unsigned>(blocks)); }

// Returns whether the blocks of each replica are one subtree.
bool HasWholeSubtrees(const Replication& replication) {
  return replication.replicas == 1 || replication.reduction == ReductionKind::kRing ||
         IsPowerOfTwo(replication.blocks_per_replica());
}

}  // namespace

const char* Name(ReductionKind kind) { return kind == ReductionKind::kRing ? "ring" : "tree"; }

absl::StatusOr<ReductionKind> ParseReductionKind(absl::string_view name) {
  for (const ReductionKind kind : {ReductionKind::kTree, ReductionKind::kRing}) {
    if (name == Name(kind)) return kind;
  }
  return absl::InvalidArgumentError(absl::StrCat("\"", name, "\": expected \"tree\" or \"ring\""));
}

int Replication::gradient_copies() const {
  if (HasWholeSubtrees(*this)) return CopiesFor(blocks_per_replica());
  int most = 0;
  for (int replica = 0; replica < replicas; ++replica) {
    int complete = 0;
    for (const BlockRange& subtree : SubtreesOf(replica, *this)) {
      most = std::max(most, complete + CopiesFor(subtree.count));
      ++complete;
    }
  }
  return most;
}

std::vector<BlockRange> SubtreesOf(int replica, const Replication& replication) {
  const int count = replication.blocks_per_replica();
  int first = replica * count;
  if (HasWholeSubtrees(replication)) return {{first, count}};
  std::vector<BlockRange> subtrees;
  for (const int end = first + count; first < end; first += subtrees.back().count) {
    // The largest subtree that starts with a block has as many as the number of that block has
    // factors of two, or all that follow.
    const int rest = replication.gradient_blocks - first;
    const int largest = first == 0 ? rest : std::min(first & -first, rest);
    const bool is_whole = first + largest <= end;
    const auto left = static_cast<unsigned>(end - first);
    subtrees.push_back({first, is_whole ? largest : static_cast<int>(std::bit_floor(left))});
  }
  return subtrees;
}

SumCounts CountSums(const Replication& replication) {
  if (HasWholeSubtrees(replication)) return {.of_all = replication.replicas};
  SumCounts counts = {.of_all = 0, .most = 0, .fewest = replication.blocks_per_replica()};
  for (int replica = 0; replica < replication.replicas; ++replica) {
    const auto own = static_cast<int>(SubtreesOf(replica, replication).size());
    counts.of_all += own;
    counts.most = std::max(counts.most, own);
    counts.fewest = std::min(counts.fewest, own);
  }
  return counts;
}

Replication WithPartsFor(schedule::Transfers transfers, Replication replication) {
  const bool in_groups = replication.is_needed() && transfers == schedule::Transfers::kGrouped;
  replication.part_bytes = in_groups ? kGroupedReductionPartBytes : kReductionPartBytes;
  return replication;
}

absl::Status CheckReplication(const Replication& replication, int64_t micro_batches) {
  const auto [replicas, blocks, shards_optimizer, reduction, part_bytes, offloads] = replication;
  if (replicas < 1 || replicas > kMaxDevices) {
    return absl::InvalidArgumentError(
        absl::StrCat(replicas, " replicas: expected 1 to ", kMaxDevices));
  }
  if (blocks < 1 || blocks % replicas != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        blocks, " gradient blocks for ", replicas, replicas == 1 ? " replica" : " replicas",
        ": use a multiple of the replicas, so that each has whole blocks"));
  }
  if (shards_optimizer && replicas == 1) {
    return absl::InvalidArgumentError(
        "a sharded optimizer for 1 replica, which keeps all of it: use more replicas, or do not "
        "shard it");
  }
  if (reduction == ReductionKind::kRing && replicas == 1) {
    return absl::InvalidArgumentError(
        "a ring of 1 replica: use more replicas, or sum gradients in a tree");
  }
  if (reduction == ReductionKind::kRing && shards_optimizer) {
    return absl::InvalidArgumentError(
        "a ring gives every replica all sums, but with a sharded optimizer each updates its shard: "
        "sum gradients in a tree, or do not shard it");
  }
  if (part_bytes < kTensorAlignment || part_bytes % kTensorAlignment != 0) {
    return absl::InvalidArgumentError(absl::StrCat("gradients are exchanged in parts of ",
                                                   part_bytes, " bytes: expected a multiple of ",
                                                   kTensorAlignment));
  }
  if (micro_batches % blocks != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        micro_batches, " micro-batches cannot be divided evenly into ", blocks,
        blocks == replicas ? " gradient blocks, one for each replica" : " gradient blocks",
        ": use a multiple of ", blocks));
  }
  return absl::OkStatus();
}

int64_t ReductionParts(int64_t gradient_bytes, const Replication& replication) {
  return (gradient_bytes + replication.part_bytes - 1) / replication.part_bytes;
}

int64_t ShardBytes(int64_t bytes, int replicas) {
  return AlignTensor((bytes + replicas - 1) / replicas);
}

ByteRange ShardOf(int64_t gradient_bytes, int64_t part, int replica,
                  const Replication& replication) {
  const int64_t begin = part * replication.part_bytes;
  const int64_t end = std::min(begin + replication.part_bytes, gradient_bytes);
  const int64_t bytes = ShardBytes(end - begin, replication.replicas);
  return {std::min(begin + replica * bytes, end), std::min(begin + (replica + 1) * bytes, end)};
}

int64_t OptimizerBytes(int64_t optimizer_bytes, int64_t parameter_bytes, int64_t averaged_bytes,
                       const Replication& replication) {
  if (!replication.shards_optimizer) return optimizer_bytes;
  int64_t shard_bytes = 0;
  for (int64_t part = 0; part < ReductionParts(parameter_bytes, replication); ++part) {
    shard_bytes += ShardOf(parameter_bytes, part, 0, replication).bytes();
  }
  // States of the parameters' size, with gaps for averaged parameters, and other bytes that a
  // profile may count.
  const int64_t updated_bytes = parameter_bytes - averaged_bytes;
  const int64_t states = updated_bytes > 0 ? optimizer_bytes / updated_bytes : 0;
  return states * shard_bytes +
         ShardBytes(optimizer_bytes - states * updated_bytes, replication.replicas);
}

int64_t RingBytes(int64_t bytes, int replicas) { return bytes * 2 * (replicas - 1) / replicas; }

int64_t ReductionBytes(int64_t gradient_bytes, const Replication& replication) {
  if (replication.reduction == ReductionKind::kRing) return 0;
  const int64_t part_bytes = std::min(gradient_bytes, replication.part_bytes);
  const int64_t parts = gradient_bytes > part_bytes ? 2 : 1;
  const SumCounts sums = CountSums(replication);
  return parts * (sums.of_all - sums.fewest) * ShardBytes(part_bytes, replication.replicas);
}

}  // namespace stagecoach::partition
