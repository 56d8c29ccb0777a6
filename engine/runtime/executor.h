#ifndef STAGECOACH_ENGINE_RUNTIME_EXECUTOR_H_
#define STAGECOACH_ENGINE_RUNTIME_EXECUTOR_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/comm/transport.h"
#include "engine/diagnosis/flight_recorder.h"
#include "engine/nn/parameter_table.h"
#include "engine/runtime/block_table.h"
#include "engine/runtime/gradient_norm.h"
#include "engine/runtime/nonfinite_search.h"
#include "engine/runtime/program.h"
#include "engine/runtime/reduction.h"
#include "engine/runtime/sample_numbers.h"
#include "engine/runtime/shared_results.h"
#include "engine/runtime/stage/stage.h"
#include "engine/runtime/tied_gradients.h"
#include "kernels/arena.h"
#include "kernels/host_copies.h"
#include "partition/plan/sent_bytes.h"
#include "schedule/ir/schedule.h"
#include "schedule/memory/memory_plan.h"
#include "schedule/traces/trace.h"

namespace stagecoach::engine {

// The inputs of a training run of the schedule, besides its batch.
struct TrainStep {
  UpdateStep update;
  std::chrono::steady_clock::time_point start = {};  // of the step, for its trace
  bool is_measured = false;  // adds to ExecutorCounters::compute_ns, as does a trace
  Batch next = {};           // the batch of the next run, if known (Feed::Prepare)
};

// Time and memory of one rank, since creation.
struct ExecutorCounters {
  int64_t compute_ns = 0;       // in compute actions and updates of the runs that were measured
  int64_t last_compute_ns = 0;  // part of compute_ns in the last of these runs
  int64_t peak_bytes = 0;       // largest extent of the arena in use
  int peak_stashed = 0;         // most micro-batches, counted per stage, between F and B at once
  partition::SentBytes sent;    // in the last training step
  // Most bytes stashed at once, as defined in schedule/memory/memory_plan.h.
  int64_t peak_stash_bytes = 0;
  int64_t host_bytes = 0;  // largest extent of the host's memory in use
  // For compute actions on an accelerator (kernels::Recording): the number, over both schedules,
  // that are graphs; how often runs have issued one as a graph, and plainly; why the first plain
  // one was not issued as a graph.
  int64_t graphs = 0, graph_issues = 0, plain_issues = 0;
  std::string why_plain;
};

// Interprets one rank's list of actions: provides every action with its buffers, calls the stage,
// and exchanges tensors with the other ranks. Holds no policy: the schedule alone determines the
// order. Run only in jobs of the device's stream; allocates nothing after Create.
//
// The list is issued in the order of the device's stream; on an accelerator the host runs
// ahead of the device, and waits for it once, at the end.
//
// The two actions of an overlapped pair run one after the other.
class Executor {
 public:
  // The places of two tied parameters.
  struct StagesOfTie {
    ParameterId first, second;
    StageId first_stage, second_stage;
  };
  struct Work {
    const schedule::Schedule* schedule = nullptr;  // lowered, fitted to the run and validated
    schedule::MemoryPlan memory;                   // of this rank
  };
  struct Options {
    kernels::Device* device = nullptr;
    int number = 0;  // of the device in the mesh, for errors: with one replica, the rank
    Transport* transport = nullptr;
    FlightRecorder* recorder = nullptr;  // keeps the latest actions
    // From RankGroup, if there are replicas: for REDUCE.
    kernels::Device* beside = nullptr;
    Transport* replicas = nullptr;
    // From RankGroup, if several devices perform the rank's list together.
    TensorPart part;
    Transport* parts = nullptr;
    absl::Duration deadline = absl::Minutes(5);  // of any wait
    uint64_t seed = 0;                           // of the parameters, and of what layers draw
    bool draws_parameters = true;                // otherwise all but adapters are initially 0
    const ParameterTable* parameters = nullptr;  // of the whole model
    std::vector<StagesOfTie> ties;               // of the whole model
    Shape output;                                // shape of one sample of the last layer's output
    float clip_norm = 0.0F;                      // of the global gradient; 0: no clipping
    schedule::CollectiveMemory collectives;      // included in the memory plans
    // Both place the same stages alike. Without a training schedule, Train is not called.
    Work training, evaluation;
  };

  // `stages`: those of this rank, ascending. Takes the rank's memory from the device.
  // FailedPrecondition: a schedule has other collectives than the run: NORM if there are
  // norm_bytes, in training; RESULTS if results are shared.
  static absl::StatusOr<std::unique_ptr<Executor>> Create(
      const Options& options, std::vector<std::unique_ptr<Stage>> stages);

  // Runs the list once, until the device is done. Errors say which action of which rank failed. If
  // there is a `trace`, fills in the rank's list, which has the length of the schedule's. Measuring
  // times costs an accelerator's host several calls per action.
  absl::Status Train(const Batch& batch, const TrainStep& step, schedule::Trace* trace);
  absl::Status Evaluate(const Batch& batch, bool is_measured);
  // Allocates the host memory for FindNonFinite, while no rank is at work, since this may wait for
  // the GPU.
  absl::Status PrepareSearch();
  // Runs the training list once more without its collectives, REDUCEs and updates, and inspects
  // everything that the layers produce: returns where the first NaN or infinity is, after a Train
  // of that batch that has changed no parameter. All ranks call it, after PrepareSearch. Slow.
  absl::StatusOr<std::optional<NonFinite>> FindNonFinite(const Batch& batch);

  // True if all ranks' updates of a step come after all ranks' RESULTS, and take nothing from
  // another rank: so either no rank has begun to update parameters, or each has everything that its
  // own updates take.
  bool waits_before_steps() const { return waits_before_steps_; }
  // The state of a failed training run in that case.
  enum class Updates : uint8_t {
    kNone,     // no rank has begun
    kMay,      // this one has not, others may have
    kAllMust,  // all ranks can, and some may have begun
  };
  Updates updates() const { return updates_; }
  // Performs the updates that the run has not reached, unless kNone.
  absl::Status CompleteUpdates();

  // To be called before something of this rank is flushed beside its own transport: Reduction's
  // AwaitFlushes.
  absl::Status AwaitFlushes() {
    return reduction_ == nullptr ? absl::OkStatus() : reduction_->AwaitFlushes(*options_.transport);
  }

  // Between runs, if parameters have averages (Optimizer::has_ema): sets these to the values, on
  // this device alone; exchanges both, so that layers read the averages, or again the values. All
  // replicas call that at the same time.
  absl::Status StartAverages();
  absl::Status SwapAverages();

  // Allocates the host memory for Output on the rank of the last stage, and makes the recordings
  // that write there: to be called before the first evaluation of a batch that wants outputs, and
  // while no rank is at work, since this may wait for the GPU. The layers' caches are lost.
  absl::Status PrepareOutputs();
  // What the last layer gave for a micro-batch of the last evaluation, which wanted outputs:
  // (StageOptions::output_rows, output) of the activation type, padding included, in host memory.
  // Pre-condition: the last stage is on this rank.
  Tensor Output(MicroBatch micro_batch) const;
  // Does the same for batches that want a choice, for a model with cached positions whose last
  // layer computes the loss: the choice is among the first `ids` ids.
  absl::Status PrepareChoice(int64_t ids);
  // Returns the id that follows a position, after an Evaluate or in a ChooseOn; kernels::kNoClass
  // if a number that it is chosen by is NaN or infinite. Pre-condition: the last stage is on this
  // rank.
  int32_t ChoiceAfter(int64_t position) const;
  // With one rank and one micro-batch: chooses the id that follows a batch of one row, then that
  // which follows this one, and so on, until there are `most`, at least 1, or `take` says of one
  // that no more are wanted. An accelerator is not waited for in between, and has then computed at
  // most one more.
  absl::Status ChooseOn(const Batch& batch, int64_t most, absl::FunctionRef<bool(int32_t)> take,
                        bool is_measured);

  // Returns the action that the device is at, for people to read. Thread-safe.
  std::string Activity() const;

  const ExecutorCounters& counters() const { return counters_; }
  const std::vector<std::unique_ptr<Stage>>& stages() const { return stages_; }
  // Returns all that this device trains: the pieces of its stages, and its shard of a sharded
  // optimizer.
  std::vector<TrainedPiece> TrainedPieces() const;
  // Returns the result for a replica's micro-batch of the last run, if results are shared;
  // otherwise for this replica's, if the loss is on this rank.
  LossResult Result(int replica, MicroBatch micro_batch) const;
  // The global gradient norm of the last step, if it was computed; otherwise 0.
  double gradient_norm() const { return norm_.has_value() ? norm_->value() : 0.0; }

 private:
  // A schedule with its buffers, and what its actions issue.
  struct Bound {
    Program program;
    BlockTable blocks;
    std::vector<std::unique_ptr<kernels::Recording>> recordings;  // by position; null for transfers
    // Recordings, by position, of passes that also copy their outputs (Stage::records_outputs), for
    // batches that want them; null for all other actions.
    std::vector<std::unique_ptr<kernels::Recording>> output_recordings;
    std::vector<std::unique_ptr<kernels::Recording>> choice_recordings;  // likewise, for choices
    std::vector<FlightAction> recorded;                                  // by position
    // The number, by position, of operations that a compute action took the last time it was
    // issued, and Stream::issued after an action with work was issued in this run.
    std::vector<int64_t> operations, issued_after;
    int64_t issued_before = 0;  // Stream::issued at the start of the run
  };
  // One run of a program.
  struct Run {
    Bound& bound;
    const Batch& batch;
    const TrainStep* step;                    // null in evaluation
    bool is_measured;                         // record the times of actions
    absl::Span<schedule::TimedAction> timed;  // by position; empty without a trace
    NonFiniteSearch* search = nullptr;        // set by FindNonFinite
  };

  Executor(const Options& options, kernels::Arena arena,
           std::vector<std::unique_ptr<Stage>> stages);

  // Places the stages and binds the programs.
  absl::Status PlaceAll();
  // Allocates the host memory of the plan, if stashes are moved there.
  absl::Status PrepareHostMemory();
  // `resident`: the place of the tables of collectives and the area of REDUCEs.
  absl::Status PlaceCollectives(std::byte* resident);
  absl::Status CreateReduction(std::byte* received);
  std::vector<TiedGradients::End> EndsOfTies() const;
  absl::StatusOr<std::unique_ptr<Bound>> Bind(const ProgramInputs& inputs, int64_t dynamic_offset);

  // Returns the bytes that the transports have sent since their creation.
  partition::SentBytes SentSoFar() const;
  absl::Status RunSchedule(const Run& run);
  // The parts of RunSchedule: before, for and after the actions.
  absl::Status Begin(const Run& run);
  absl::Status PerformList(const Run& run);
  absl::Status End(const Run& run);
  absl::Status ChooseEach(const Run& run, int64_t most, absl::FunctionRef<bool(int32_t)> take);
  absl::Status RunAction(const Run& run, int position);
  absl::Status Dispatch(const Run& run, int position);
  absl::Status RunCompute(const Run& run, int position);
  // Puts the pass of a compute action into the stream, and counts its operations.
  absl::Status Launch(const Run& run, int position);
  absl::Status RunPass(const Run& run, int position);
  StageOutputs OutputsOf(const Run& run, const Instruction& instruction) const;
  kernels::Recording& RecordingOf(const Run& run, int position) const;
  void CountIssue(const Run& run, int position);
  absl::Status Transfer(const Run& run, int position);
  absl::Status CopyStash(const Run& run, int position);
  // Counts what the action stashes from now on.
  static void CountStash(const Run& run, const Instruction& instruction);
  absl::Status Reduce(const Run& run, int position);
  absl::Status Step(const Run& run, int position);
  absl::Status SumTies(const Run& run, int position);
  absl::Status ExchangeNorms(const Run& run, int position);
  absl::Status ShareResults(const Run& run, int position);
  // Returns a copy of the tensor on the host, once it has arrived; valid until the next one.
  absl::StatusOr<const std::byte*> ReadNow(const Tensor& tensor);
  // Computes the sums of squares of this rank's gradients.
  absl::Status SumOwnSquares();
  // Returns what a STEP passes to its stage.
  UpdateStep Scaled(UpdateStep update) const;
  // Called before and after an action with work for the device (Instruction::works). The first
  // waits until the next action keeps within Instruction's bounds on how far the host runs ahead.
  absl::Status ThrottleHost(const Run& run, int position);
  absl::Status EndWork(const Run& run, int position);
  // Returns the position of the work that the device must have done before `position` is issued;
  // Instruction::kNothing if the host may continue.
  static int32_t MustBeDone(const Bound& bound, int position, int64_t issued);
  absl::Status WaitForReport(int32_t position);
  // Called before an action that alone fills the driver's queues: waits until everything up to
  // `position` is done, and with it the transfer that the action awaits, which may take long to
  // arrive.
  absl::Status CatchUp(int32_t position);
  // Waits for the device by `wait`, which now and then calls `poll`: this checks for failures of
  // other ranks, and for the deadline. The deadline is that of waits for other ranks: it restarts
  // with every action that is done.
  absl::Status WaitWithDeadline(
      absl::FunctionRef<absl::Status(absl::FunctionRef<absl::Status()> poll)> wait);
  // On an accelerator, issues everything twice, on memory whose contents are not needed yet:
  // libraries load their code at the first use and recordings are made at the second, which takes
  // memory and waits for the GPU. Once ranks wait for each other on their GPUs, this could
  // deadlock.
  absl::Status WarmUp();
  // Issues each compute action for which `is_wanted` holds twice, for a batch of padding.
  absl::Status IssueTwice(Bound& bound, const Batch& padding,
                          absl::FunctionRef<bool(const Instruction&)> is_wanted);
  // Makes the recordings of the last stage's F for such a batch.
  absl::Status RecordOutputs(const Batch& padding);
  void CountGraphs();
  absl::Status WaitForTransfer(int32_t transfer);
  // Orders subsequent work after the copies of an OFFLOAD or a FETCH of this run.
  absl::Status WaitForCopies(const Run& run, int32_t position);
  absl::Status Mark(const Run& run, const Instruction& instruction, Moment moment) {
    if (moment == Moment::kStart) options_.recorder->Start();
    return run.is_measured ? timeline_->Mark(SlotOf(instruction, moment)) : absl::OkStatus();
  }
  // Notes in the recorder where an accelerator is.
  void NoteDevice();
  static int SlotOf(const Instruction& instruction, Moment moment) {
    return instruction.first_slot + static_cast<int>(moment);
  }
  int32_t* chosen() const { return reinterpret_cast<int32_t*>(chosen_.data()); }
  // Fetches what the host needs to know, and waits for the device.
  absl::Status Finish(const Run& run);
  // Wait until everything issued is done. FinishAlone waits for no other rank.
  absl::Status WaitForDevice();
  absl::Status FinishAlone();
  // Reads the times of a finished run that was measured.
  absl::Status ReadTimes(const Run& run);
  absl::StatusOr<schedule::TimedAction> TimesOf(const Run& run, int position) const;
  int FirstNotDone(const Bound& bound) const;
  // Returns an error with its place.
  absl::Status At(const Run& run, int position, const absl::Status& status) const;

  const Options options_;
  kernels::Arena arena_;
  const std::vector<std::unique_ptr<Stage>> stages_;
  std::unique_ptr<Bound> training_, evaluation_;
  std::atomic<const Bound*> running_{nullptr};  // the last one to begin, for Activity
  std::optional<SampleNumberTable> sample_numbers_;
  std::vector<Transport::Ticket> tickets_;  // of the transfers of this run; index: position
  std::unique_ptr<kernels::Timeline> timeline_;
  // What is moved to the host meanwhile, and how; empty and null if nothing is.
  kernels::HostBuffer host_memory_;
  std::unique_ptr<kernels::HostCopies> host_copies_;
  std::vector<std::unique_ptr<OptimizerShard>> shards_;  // by stage, if the optimizer is sharded
  std::unique_ptr<Reduction> reduction_;                 // if there are replicas
  std::optional<TiedGradients> ties_;                    // if layers share parameters
  std::optional<GradientNorm> norm_;                     // if gradients are clipped
  Stage* loss_stage_ = nullptr;                          // the last; null if it is on another rank
  kernels::HostBuffer outputs_;  // (micro_batches, rows, output), once prepared
  kernels::HostBuffer chosen_;   // by position, once prepared
  kernels::HeadChoice choice_;   // its memory is chosen_
  kernels::HostBuffer seen_;  // host copy of what a search inspects, if the device's memory is not
                              // the host's
  std::optional<SharedResults> shared_results_;
  bool waits_before_steps_ = false;
  Updates updates_ = Updates::kNone;  // of the last training run
  UpdateStep last_update_;            // that of the same run
  size_t updated_ = 0;                // number of its STEPs with work that are done
  int stashed_ = 0;                   // micro-batches between F and B
  ExecutorCounters counters_;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_RUNTIME_EXECUTOR_H_
