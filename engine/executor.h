#ifndef STAGECOACH_ENGINE_EXECUTOR_H_
#define STAGECOACH_ENGINE_EXECUTOR_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "engine/block_table.h"
#include "engine/stage.h"
#include "engine/transport/transport.h"
#include "kernels/arena.h"
#include "schedule/schedule.h"

namespace stagecoach::engine {

// What a run of a training schedule needs besides its batch.
struct TrainStep {
  UpdateStep update;
  float clip_norm =
      0.0F;  // 0: no clipping, and each layer is updated as soon as its gradients are complete
};

// Time and memory of one rank.
struct ExecutorCounters {
  int64_t compute_ns = 0;  // in compute actions and updates, since creation
  int peak_stashed = 0;  // most micro-batches, counted per stage, that were between F and B at once
  int64_t peak_bytes = 0;  // largest extent of the arena in use
};

// Interprets one rank's list of actions: gives every action its buffers, calls the stage, and
// exchanges tensors with the other ranks. Holds no policy: what happens when is the schedule's
// matter. Run only in jobs of the device's stream; allocates nothing after Create.
class Executor {
 public:
  struct Program {
    const schedule::Schedule* schedule = nullptr;  // lowered and validated; outlives the executor
    schedule::MemoryPlan memory;                   // of this rank
  };
  struct Options {
    kernels::Device* device = nullptr;
    Transport* transport = nullptr;
    absl::Duration deadline = absl::Minutes(5);  // of any wait
    uint64_t seed = 0;                           // of the parameters
    int total_parameters = 0;                    // tensors of all stages of all ranks
    Program training, evaluation;                // both place the same stages alike
  };

  // `stages`: those of this rank, ascending; `first_parameter`: position of each one's first
  // parameter among all of the model's. Takes the rank's memory from the device.
  static absl::StatusOr<std::unique_ptr<Executor>> Create(
      const Options& options, std::vector<std::unique_ptr<Stage>> stages,
      std::vector<int> first_parameter);

  // Performs the list once. Errors say which action of which rank failed.
  absl::Status Train(const Batch& batch, const TrainStep& step);
  absl::Status Evaluate(const Batch& batch);

  const ExecutorCounters& counters() const { return counters_; }
  const std::vector<std::unique_ptr<Stage>>& stages() const { return stages_; }
  // The global gradient norm of the last clipped step.
  double gradient_norm() const { return gradient_norm_; }
  // What the rank is doing now, from any thread: position in its present list.
  int position() const { return position_.load(std::memory_order_relaxed); }

 private:
  // A schedule with its buffers.
  struct Bound {
    const schedule::Schedule* schedule;
    BlockTable blocks;
  };

  Executor(const Options& options, kernels::Arena arena, std::vector<std::unique_ptr<Stage>> stages,
           std::vector<int> first_parameter);

  absl::Status Run(Bound& bound, const Batch& batch, const TrainStep* step);
  absl::Status Perform(Bound& bound, const schedule::Action& action, const Batch& batch,
                       const TrainStep* step);
  absl::Status Compute(Bound& bound, const schedule::Action& action, const Batch& batch,
                       const TrainStep* step);
  absl::Status Send(const Bound& bound, const schedule::Action& action);
  absl::Status Receive(const Bound& bound, const schedule::Action& action);
  absl::Status AwaitInputs(const Bound& bound, const schedule::Action& action);
  absl::Status AwaitSends();
  absl::Status Step(const schedule::Action& action, const TrainStep& step);
  absl::Status GatherGradientNorm();
  StageBlocks BlocksOf(const Bound& bound, StageId stage, MicroBatch micro_batch) const;
  Stage& stage(StageId id) const { return *stage_by_id_[static_cast<size_t>(id.value())]; }
  bool IsHere(const Bound& bound, StageId id) const;
  Transport::Ticket& ReceiveTicket(Message::Kind kind, StageId stage, MicroBatch micro_batch);
  Transport::Ticket& SendTicket(Message::Kind kind, StageId stage);

  const Options options_;
  kernels::Arena arena_;
  const std::vector<std::unique_ptr<Stage>> stages_;
  const std::vector<int> first_parameter_;
  std::vector<Stage*> stage_by_id_;  // null where the stage is elsewhere
  std::byte* workspace_ = nullptr;
  std::unique_ptr<Bound> training_, evaluation_;
  std::vector<Transport::Ticket> receive_tickets_, send_tickets_;
  std::vector<double> own_norms_, all_norms_;
  double gradient_norm_ = 0.0;
  bool norm_is_known_ = false;  // in the present step
  int stashed_ = 0;
  std::atomic<int> position_{0};
  ExecutorCounters counters_;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_EXECUTOR_H_
