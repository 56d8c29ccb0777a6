#ifndef STAGECOACH_PARTITION_COST_REPLICATION_H_
#define STAGECOACH_PARTITION_COST_REPLICATION_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "schedule/ir/schedule.h"

namespace stagecoach::partition {

enum class ReductionKind : uint8_t { kTree, kRing };
const char* Name(ReductionKind kind);  // returns "tree" or "ring"
// Parses the name. InvalidArgument: no such name.
absl::StatusOr<ReductionKind> ParseReductionKind(absl::string_view name);

// The largest part in which a stage's gradients are exchanged: small enough that the next part is
// on its way while one is added, and large enough that the fixed cost of a part is small.
inline constexpr int64_t kReductionPartBytes = int64_t{4} << 20;
// The same for transfers in groups, where a part costs the host a group of NCCL: 30 to 100 us, in
// which a link of a few hundred GB/s carries this much.
inline constexpr int64_t kGroupedReductionPartBytes = int64_t{32} << 20;

// How often every stage of a plan is replicated, and in which order gradients are summed. Each
// replica takes an equal number of consecutive micro-batches of a batch. All the micro-batches form
// `gradient_blocks` equal blocks; within a block, gradients are summed in order, and the blocks in
// a binary tree: of n blocks, the left half is the largest power of two that is less than n, so
// that n blocks that are a power of two are balanced. Each replica sums the subtrees that its own
// blocks consist of (SubtreesOf): one, if blocks_per_replica() is a power of two. Then they
// exchange these sums, and add them in the order of the tree (engine/runtime/reduction.h). So the
// bits depend on gradient_blocks, but not on replicas.
//
// ReductionKind::kRing leaves the exchange to the all-reduce of a library (NCCL, Gloo), whose order
// of sums depends on the replicas and the library, and so do the bits.
//
// If replicas shard the optimizer (ZeRO-1), each keeps the optimizer's state only for its shard of
// the parameters, updates that shard, and sends it to the others.
//
// If the optimizer is offloaded, its state is in the host's memory, where the device reads and
// writes it during updates. It passes the link once in each direction, at the same time, and no
// thread of the host computes; the bits are the same. If layers read rounded copies of the values
// that it updates (LayerMemory::working_bytes), these values are in the host's memory as well,
// unless replicas exchange them because they shard the optimizer.
// Regular value type.
struct Replication {
  int replicas = 1;                                // at least 1
  int gradient_blocks = 1;                         // a multiple of `replicas`
  bool shards_optimizer = false;                   // only with several replicas, and a tree
  ReductionKind reduction = ReductionKind::kTree;  // kRing: only with several replicas
  int64_t part_bytes =
      kReductionPartBytes;  // a multiple of kTensorAlignment; the bits are the same
  bool offloads_optimizer = false;

  bool is_needed() const { return replicas > 1; }
  int blocks_per_replica() const { return gradient_blocks / replicas; }
  // Returns how many replicas share the optimizer's state.
  int optimizer_shards() const { return shards_optimizer ? replicas : 1; }
  // Returns how many sums each replica holds at once: the one of the current block, and those of
  // subtrees that are complete. 1 + log2(blocks_per_replica()), if that is a power of two;
  // otherwise that of the replica that holds most.
  int gradient_copies() const;

  friend bool operator==(const Replication&, const Replication&) = default;
};

// Returns the same replication with the parts that suit such transfers, if there are several
// replicas.
Replication WithPartsFor(schedule::Transfers transfers, Replication replication);

// Returns InvalidArgument, naming the option to change, unless all are as Replication says, and the
// `micro_batches` of a batch can be divided into the blocks.
absl::Status CheckReplication(const Replication& replication, int64_t micro_batches);

// Consecutive gradient blocks, a subtree.
struct BlockRange {
  int first = 0;
  int count = 0;

  friend bool operator==(const BlockRange&, const BlockRange&) = default;
};
// Returns the largest subtrees of a replica's blocks, in order: it sums each, and the exchange adds
// the sums of all replicas. A library (ReductionKind::kRing) adds one sum of each replica, which
// are then a tree of their own.
std::vector<BlockRange> SubtreesOf(int replica, const Replication& replication);

// How many of these sums replicas have at the end of their blocks.
struct SumCounts {
  int of_all = 1;
  int most = 1;    // of a replica
  int fewest = 1;  // of a replica

  friend bool operator==(const SumCounts&, const SumCounts&) = default;
};
SumCounts CountSums(const Replication& replication);

// Returns the number of parts in which a stage's gradients are exchanged.
int64_t ReductionParts(int64_t gradient_bytes, const Replication& replication);

// Returns the bytes of the shard that each replica sums and distributes of a part of `bytes` bytes
// (a multiple of kTensorAlignment); the last shards may be smaller.
int64_t ShardBytes(int64_t bytes, int replicas);

// A range of a stage's gradients, and equally of its parameters, in bytes.
struct ByteRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t bytes() const { return end - begin; }

  friend bool operator==(const ByteRange&, const ByteRange&) = default;
};
// Returns a replica's shard of one of the parts; empty if the part is too small for all.
ByteRange ShardOf(int64_t gradient_bytes, int64_t part, int replica,
                  const Replication& replication);

// Returns what a replica keeps of `optimizer_bytes` of state, wherever that is, which belong to
// `parameter_bytes` of parameters except `averaged_bytes` of them: all of it, or that of the
// largest shards.
int64_t OptimizerBytes(int64_t optimizer_bytes, int64_t parameter_bytes, int64_t averaged_bytes,
                       const Replication& replication);

// Returns what a replica sends if a library sums `bytes` bytes in a ring.
int64_t RingBytes(int64_t bytes, int replicas);

// Returns the memory for the sums that a replica receives from the others while it adds
// `gradient_bytes` of gradients: two parts at once, if there are that many. 0 for one replica, and
// for a ring, whose memory is the library's.
int64_t ReductionBytes(int64_t gradient_bytes, const Replication& replication);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_COST_REPLICATION_H_
