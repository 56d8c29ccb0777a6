#ifndef STAGECOACH_SCHEDULE_MEMORY_MEMORY_PLAN_H_
#define STAGECOACH_SCHEDULE_MEMORY_MEMORY_PLAN_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "schedule/ir/schedule.h"

namespace stagecoach::schedule {

// Blocks start at multiples of this, and their sizes are rounded up to it.
inline constexpr int64_t kBlockAlignment = 256;
constexpr int64_t AlignBlock(int64_t bytes) {
  return (bytes + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment;
}
// No single size may exceed this (16 TiB), so that sums of them cannot overflow.
inline constexpr int64_t kMaxSizeBytes = int64_t{1} << 44;

// The operation of a stage that reads a tensor last, for one micro-batch. In a forward-only
// schedule everything is read last by F, whatever is set here.
enum class LastUse : uint8_t { kForward, kBackwardInput, kBackwardWeight };

// The memory planner's knowledge of one stage. All sizes are in bytes, per micro-batch where so
// named.
struct StageMemory {
  // Kept for the whole run.
  int64_t parameter_bytes = 0;
  int64_t gradient_bytes = 0;
  int64_t optimizer_bytes = 0;       // on the device
  int64_t host_resident_bytes = 0;   // in the host's memory
  int64_t other_resident_bytes = 0;  // results, tables
  int64_t frozen_bytes = 0;          // a part of those: parameters that are not trained
  // Scratch of one action; the stages of a rank share one such area, as large as the largest needs.
  int64_t workspace_bytes = 0;
  // The area that a REDUCE receives into; likewise shared by the stages of a rank.
  int64_t reduction_bytes = 0;
  // Per micro-batch.
  int64_t input_bytes = 0;  // the stage's input: received, or filled by F on the first stage
  LastUse input_last_use = LastUse::kBackwardWeight;
  int64_t output_bytes = 0;  // filled by F, sent; on the last stage read by the loss within F
  LastUse output_last_use = LastUse::kForward;  // by the stage itself; the send comes in addition
  int64_t stash_bytes = 0;                      // kept from F until B
  int64_t weight_stash_bytes = 0;               // kept from F until W
  // Kept from B until W, on a stage that splits them for some micro-batch (on any other, BW has it
  // in its workspace).
  int64_t gradient_stash_bytes = 0;
  int64_t output_gradient_bytes = 0;  // received; on the last stage filled by the loss within F
  LastUse output_gradient_last_use = LastUse::kBackwardInput;  // not kForward
  int64_t input_gradient_bytes = 0;  // filled by B, sent; 0 on the first stage

  friend bool operator==(const StageMemory&, const StageMemory&) = default;

  template <typename H>
  friend H AbslHashValue(H h, const StageMemory& m) {
    return H::combine(std::move(h), m.parameter_bytes, m.gradient_bytes, m.optimizer_bytes,
                      m.host_resident_bytes, m.other_resident_bytes, m.frozen_bytes,
                      m.workspace_bytes, m.reduction_bytes, m.input_bytes, m.input_last_use,
                      m.output_bytes, m.output_last_use, m.stash_bytes, m.weight_stash_bytes,
                      m.gradient_stash_bytes, m.output_gradient_bytes, m.output_gradient_last_use,
                      m.input_gradient_bytes);
  }
};

// The memory that the collectives of a run keep on its ranks all the time, in addition to what the
// stages keep.
struct CollectiveMemory {
  // TIES: number of pairs of tied parameters. They take no memory except workspace.
  int ties = 0;
  // NORM: the bytes that each rank sends to the others. Every rank keeps its own, those of all
  // ranks (in order of rank) of each part, and kNormResultBytes. 0: norms are not exchanged.
  int64_t norm_bytes = 0;
  int tensor_parts = 1;  // devices that perform a rank's list together
  // RESULTS: bytes per micro-batch. Every rank keeps them except that of the last stage, which has
  // them anyway; with replicas, every rank also keeps those of all replicas. 0: results are not
  // shared.
  int64_t result_bytes = 0;
  // RESULTS come before STEPs, and each rank also tells all others that it has reached them, in
  // kPresenceBytes.
  bool results_before_steps = false;
  int replicas = 1;

  // Returns true if updates wait for a TIES or a NORM. A REDUCE must then leave them to STEP.
  bool precede_updates() const { return ties > 0 || norm_bytes > 0; }

  friend bool operator==(const CollectiveMemory&, const CollectiveMemory&) = default;
};
// The norm of all gradients, and the factor by which they are scaled.
inline constexpr int64_t kNormResultBytes = 2 * sizeof(double);
inline constexpr int64_t kPresenceBytes = sizeof(double);

// Returns the size of the area of the rank's REDUCEs: as large as the largest of its stages needs.
int64_t ReductionAreaBytes(absl::Span<const StageMemory> stages, const Schedule& schedule,
                           Rank rank);

// Return the size of one rank's tables, which lie one after the other, each aligned.
int64_t NormTableBytes(const CollectiveMemory& memory, const Schedule& schedule);
int64_t ResultTableBytes(const CollectiveMemory& memory, const Schedule& schedule, Rank rank);

enum class BlockKind : uint8_t {
  kInput,
  kOutput,
  kStash,
  kWeightStash,
  kFetchedStash,
  kFetchedWeightStash,
  kGradientStash,
  kOutputGradient,
  kInputGradient,
};
inline constexpr int kNumBlockKinds = 9;

// One buffer of one micro-batch, on the device or on the host: claimed just before action `first`
// of its rank's list and free again right after action `last` has completed (both are positions in
// that list). A send completes, for this purpose, at the next send on its lane, or at the end of
// the list.
//
//   kind                 first                             last
//   kInput               its receive; F on stage 0         input_last_use
//   kOutput              F                                 output_last_use, its send's completion
//   kStash               F                                 B; RELEASE if it is moved
//   kWeightStash         F                                 W; likewise
//   kFetchedStash        FETCH                             B
//   kFetchedWeightStash  FETCH                             W
//   kGradientStash       B                                 W
//   kOutputGradient      its receive; F on the last stage  output_gradient_last_use
//   kInputGradient       B                                 its send's completion
//
// The fetched kinds are the stashes that an OFFLOAD has moved. In the host's memory, a block that
// was moved lives from its OFFLOAD until the B that waits for its FETCH.
//
// B and W of a fused pass are both the BW. A stage whose micro-batches are all fused has no
// kGradientStash; one that mixes has it within each BW as well.
struct Block {
  BlockKind kind = BlockKind::kInput;
  StageId stage;
  MicroBatch micro_batch;
  int64_t bytes = 0;   // aligned
  int64_t offset = 0;  // from the start of the rank's dynamic area, of the device or of the host
  int32_t first = 0;
  int32_t last = 0;

  friend bool operator==(const Block&, const Block&) = default;
};

// The memory that one rank takes, in bytes. Areas in this order: resident, workspace, dynamic.
struct MemorySizes {
  // Sum of the four resident sizes of the device over its stages, each aligned; then the tables of
  // collectives.
  int64_t resident_bytes = 0;
  int64_t workspace_bytes = 0;  // largest over its stages, aligned
  int64_t dynamic_bytes = 0;    // extent of the blocks
  int64_t peak_live_bytes = 0;  // largest sum of live blocks: a lower bound of dynamic_bytes
  // In the host's memory: the sum of its stages' host_resident_bytes, each aligned; then the extent
  // of the blocks that are moved there.
  int64_t host_resident_bytes = 0;
  int64_t host_dynamic_bytes = 0;
  // The most that forward passes leave behind for backward ones: the largest sum, over the
  // positions of the list, of the live blocks of the five kinds of stash (excluding kGradientStash
  // within a BW) and of those kInput and kOutput blocks that a backward
  // action of this rank reads (by input_last_use or output_last_use), these counted only from the F
  // of the stage that will read them back. 0 in a forward-only schedule.
  int64_t peak_stash_bytes = 0;

  int64_t peak_bytes() const { return resident_bytes + workspace_bytes + dynamic_bytes; }
  int64_t host_bytes() const { return host_resident_bytes + host_dynamic_bytes; }

  friend bool operator==(const MemorySizes&, const MemorySizes&) = default;
};

// The location of everything on one rank.
struct MemoryPlan : MemorySizes {
  MemoryPlan() = default;  // not an aggregate: sizes alone are no plan

  // The stash during each action, whose maximum is peak_stash_bytes, and what is left of it after
  // the action; index: position in the list.
  std::vector<int64_t> stash_bytes_during;
  std::vector<int64_t> stash_bytes_after;
  std::vector<Block> blocks;  // ordered by first, then stage, micro-batch, kind
  // Those of the host: kStash and kWeightStash; ordered likewise. Not part of peak_bytes().
  std::vector<Block> host_blocks;
};

// Plans the memory of `rank` under a lowered schedule: derives the lifetime of every block from the
// order of actions and packs the blocks so that none that live at the same time overlap (largest
// first, each at the lowest free offset). `stages` is indexed by stage id; only those of this rank
// are read. Blocks of 0 bytes are left out. A forward-only schedule has no gradient blocks, and its
// stashes, which nothing reads, end with F. `collectives` are those of the run, which keeps them
// whether or not this schedule has them all, so that all its schedules have the same resident
// memory.
//
// If two neighboring stages share this rank, the output of the earlier is the input of the later:
// one kOutput block of the earlier, as large as the larger of the two and kept until the last use
// of either. Likewise the gradient between them is one kInputGradient block of the later.
//
// Pre-condition: `lowered` passes Validate; otherwise returns FailedPrecondition or a useless plan.
// InvalidArgument: `rank` is not in the schedule, `stages` does not have one entry per stage, a
// size is negative, above kMaxSizeBytes or set where the table of StageMemory says none, or the
// schedule is not lowered. Deterministic. Takes nearly linear time in the actions of the rank and
// in its blocks (packing.h).
absl::StatusOr<MemoryPlan> PlanMemory(const Schedule& lowered, Rank rank,
                                      absl::Span<const StageMemory> stages,
                                      const CollectiveMemory& collectives = {});

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_MEMORY_MEMORY_PLAN_H_
