#ifndef STAGECOACH_ENGINE_EXECUTOR_H_
#define STAGECOACH_ENGINE_EXECUTOR_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/block_table.h"
#include "engine/program.h"
#include "engine/stage.h"
#include "engine/transport/transport.h"
#include "kernels/arena.h"
#include "schedule/memory.h"
#include "schedule/schedule.h"
#include "schedule/trace.h"

namespace stagecoach::engine {

// What a run of a training schedule needs besides its batch.
struct TrainStep {
  UpdateStep update;
  // 0: no clipping, and each layer is updated as soon as its gradients are complete.
  float clip_norm = 0.0F;
  std::chrono::steady_clock::time_point start = {};  // of the step, for its trace
};

// Time and memory of one rank, since creation.
struct ExecutorCounters {
  int64_t compute_ns = 0;  // in compute actions and updates
  int64_t peak_bytes = 0;  // largest extent of the arena in use
  int peak_stashed = 0;  // most micro-batches, counted per stage, that were between F and B at once
  int64_t peak_stash_bytes = 0;  // most that was stashed at once, as schedule/memory.h defines it
};

// Interprets one rank's list of actions: gives every action its buffers, calls the stage, and
// exchanges tensors with the other ranks. Holds no policy: what happens when is the schedule's
// matter. Run only in jobs of the device's stream; allocates nothing after Create.
//
// Of an overlapped pair it performs one after the other. There is one replica of every stage:
// UNSHARD, RESHARD and REDUCE are nothing to do.
class Executor {
 public:
  struct Work {
    const schedule::Schedule* schedule = nullptr;  // lowered and validated
    schedule::MemoryPlan memory;                   // of this rank
  };
  struct Options {
    kernels::Device* device = nullptr;
    Transport* transport = nullptr;
    absl::Duration deadline = absl::Minutes(5);  // of any wait
    uint64_t seed = 0;                           // of the parameters
    int total_parameters = 0;                    // tensors of all stages of all ranks
    Work training, evaluation;                   // both place the same stages alike
  };

  // `stages`: those of this rank, ascending; `first_parameter`: position of each one's first
  // parameter among all of the model's. Takes the rank's memory from the device.
  static absl::StatusOr<std::unique_ptr<Executor>> Create(
      const Options& options, std::vector<std::unique_ptr<Stage>> stages,
      std::vector<int> first_parameter);

  // Performs the list once. Errors say which action of which rank failed. If there is a `trace`,
  // fills the rank's list of it, which has the length of the schedule's.
  absl::Status Train(const Batch& batch, const TrainStep& step, schedule::Trace* trace);
  absl::Status Evaluate(const Batch& batch);

  const ExecutorCounters& counters() const { return counters_; }
  const std::vector<std::unique_ptr<Stage>>& stages() const { return stages_; }
  // The global gradient norm of the last clipped step.
  double gradient_norm() const { return gradient_norm_; }

 private:
  using Clock = std::chrono::steady_clock;

  // A schedule with its buffers.
  struct Bound {
    Program program;
    BlockTable blocks;
  };
  // One run of a program.
  struct Run {
    Bound& bound;
    const Batch& batch;
    const TrainStep* step;                    // null in evaluation
    absl::Span<schedule::TimedAction> timed;  // by position; empty if nobody wants the times
  };
  // When an action could start, and when it was done.
  struct Times {
    Clock::time_point start, end;
  };

  Executor(const Options& options, kernels::Arena arena, std::vector<std::unique_ptr<Stage>> stages,
           std::vector<int> first_parameter);

  // Places the stages and binds the programs.
  absl::Status PlaceAll();
  absl::Status PerformAll(const Run& run);
  absl::Status PerformAt(const Run& run, int position);
  // `times` starts as the moment at which the action was reached.
  absl::Status Perform(const Run& run, int position, Times& times);
  absl::Status Compute(const Run& run, const Instruction& instruction, Times& times);
  absl::Status Transfer(const Run& run, int position, Times& times);
  absl::Status Step(Stage& stage, const TrainStep& step, Times& times);
  absl::Status GatherGradientNorm(Times& times);
  absl::Status Await(const Run& run, int32_t transfer);

  const Options options_;
  kernels::Arena arena_;
  const std::vector<std::unique_ptr<Stage>> stages_;
  const std::vector<int> first_parameter_;
  std::unique_ptr<Bound> training_, evaluation_;
  std::vector<Transport::Ticket> tickets_;  // of the transfers of this run; index: position
  std::vector<double> own_norms_, all_norms_;
  double gradient_norm_ = 0.0;
  bool norm_is_known_ = false;  // in the present step
  int stashed_ = 0;             // micro-batches between F and B
  ExecutorCounters counters_;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_EXECUTOR_H_
