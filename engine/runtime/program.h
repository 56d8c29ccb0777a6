#ifndef STAGECOACH_ENGINE_RUNTIME_PROGRAM_H_
#define STAGECOACH_ENGINE_RUNTIME_PROGRAM_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "engine/comm/transport.h"
#include "engine/runtime/stage/stage.h"
#include "kernels/host_copies.h"
#include "kernels/tensor.h"
#include "schedule/ir/schedule.h"
#include "schedule/memory/memory_plan.h"

namespace stagecoach::engine {

// Moments of one action in the order of the device's stream: slots of the timeline. The last two
// exist only for an exchange of norms, which begins with work of the rank's own.
enum class Moment : uint8_t { kReached, kStart, kEnd, kOwnPartDone, kAllPartsThere };

// One action of a rank's list with everything needed to run it, looked up beforehand.
struct Instruction {
  static constexpr int32_t kNothing = -1;
  // Limits on how far the host runs ahead of the device: at most this many actions with work, and
  // at most this many operations (Stream::issued). This is enough to keep the device busy, and
  // leaves room in the driver's queues, which hold about a thousand operations: a host that issues
  // into a full one waits within the driver, where no deadline is kept.
  static constexpr int kMostAhead = 16;
  static constexpr int kMostOperationsAhead = 512;

  schedule::Action action;
  Stage* stage = nullptr;  // null for a collective
  std::string name;        // of the action, for profilers: "F0.3"
  int32_t first_slot = 0;  // of its moments in the timeline
  // True if the action has work for the device: it computes, is a collective, or is the step of a
  // stage that is not up to date by then (Stage::updates_in_step).
  bool works = false;
  // For an action with work: the position of the work that the device must have done before the
  // host issues this, kMostAhead before it.
  int32_t keeps_up_with = kNothing;

  // For a compute action.
  StageBlocks blocks;
  bool completes_gradients = false;  // this is the last micro-batch's W or BW
  // The blocks (indices into the memory plan's) that count as stash from here on, followed by
  // kNothing. A FETCH has some as well.
  std::array<int32_t, 4> stashes = {kNothing, kNothing, kNothing, kNothing};
  int32_t fetch = kNothing;  // position of the FETCH of what a backward pass reads

  // For a collective: the ranks of its group, in the schedule.
  absl::Span<const Rank> ranks;

  // For a transfer.
  Message message;
  Tensor tensor;
  Rank peer;

  // For an OFFLOAD or a FETCH: what it moves, of the first `num_copies`.
  std::array<kernels::HostCopy, 2> copies;
  size_t num_copies = 0;
  int32_t copy_slot = kNothing;  // of kernels::HostCopies

  // Position of the transfer or copy that must be done before this can start: the receive of what a
  // compute action reads, the send before this one on the same lane, or the OFFLOAD of a RELEASE.
  int32_t awaits = kNothing;
};

// The work of one rank under one schedule.
struct Program {
  std::vector<Instruction> instructions;  // index: position in the rank's list
  std::vector<int32_t> last_sends;        // positions of the sends that no instruction awaits
  int32_t num_slots = 0;                  // of the timeline
  int32_t num_copy_slots = 0;
};

struct ProgramInputs {
  const schedule::Schedule& schedule;  // lowered and validated; outlives the program
  Rank rank;
  const schedule::MemoryPlan& memory;  // of the rank under the schedule
  std::byte* dynamic = nullptr;        // where the plan's dynamic area starts
  std::byte* workspace = nullptr;
  std::byte* host = nullptr;        // where the plan's host memory starts
  absl::Span<Stage* const> stages;  // index: stage; null if the stage is elsewhere
};

Program Compile(const ProgramInputs& inputs);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_RUNTIME_PROGRAM_H_
