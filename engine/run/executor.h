#ifndef STAGECOACH_ENGINE_RUN_EXECUTOR_H_
#define STAGECOACH_ENGINE_RUN_EXECUTOR_H_

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
#include "engine/diagnosis/action_ring.h"
#include "engine/model/parameter_table.h"
#include "engine/run/block_table.h"
#include "engine/run/gradient_norm.h"
#include "engine/run/nonfinite_search.h"
#include "engine/run/program.h"
#include "engine/run/reduction.h"
#include "engine/run/sample_numbers.h"
#include "engine/run/shared_results.h"
#include "engine/run/tied_gradients.h"
#include "engine/stage/stage.h"
#include "engine/transport/transport.h"
#include "kernels/arena.h"
#include "partition/plan/sent_bytes.h"
#include "schedule/memory.h"
#include "schedule/schedule.h"
#include "schedule/trace.h"

namespace stagecoach::engine {

// What a run of a training schedule needs besides its batch.
struct TrainStep {
  UpdateStep update;
  std::chrono::steady_clock::time_point start = {};  // of the step, for its trace
  bool is_measured = false;  // adds to ExecutorCounters::compute_ns, as it does with a trace
  Batch next = {};           // that the next run will be given, if it is known (Feed::Prepare)
};

// Time and memory of one rank, since creation.
struct ExecutorCounters {
  int64_t compute_ns = 0;       // in compute actions and updates of the runs that were measured
  int64_t last_compute_ns = 0;  // of that, in the last of them
  int64_t peak_bytes = 0;       // largest extent of the arena in use
  int peak_stashed = 0;  // most micro-batches, counted per stage, that were between F and B at once
  partition::SentBytes sent;     // in the last step of training
  int64_t peak_stash_bytes = 0;  // most that was stashed at once, as schedule/memory.h defines it
  // Of compute actions on an accelerator (kernels::Recording): how many, of both schedules, are
  // graphs; how often runs have issued one as a graph, and plainly; why first not as a graph.
  int64_t graphs = 0, graph_issues = 0, plain_issues = 0;
  std::string why_plain;
};

// Interprets one rank's list of actions: gives every action its buffers, calls the stage, and
// exchanges tensors with the other ranks. Holds no policy: what happens when is the schedule's
// matter. Run only in jobs of the device's stream; allocates nothing after Create.
//
// The list is issued in the order of the device's stream; on an accelerator the host runs
// ahead of the device, and waits for it once, at the end.
//
// Of an overlapped pair it performs one after the other.
class Executor {
 public:
  // Where two parameters are that are tied.
  struct StagesOfTie {
    ParameterId first, second;
    StageId first_stage, second_stage;
  };
  struct Work {
    const schedule::Schedule* schedule = nullptr;  // lowered, fit to the run and validated
    schedule::MemoryPlan memory;                   // of this rank
  };
  struct Options {
    kernels::Device* device = nullptr;
    int number = 0;  // of the device in the mesh, for errors: with one replica, the rank
    Transport* transport = nullptr;
    ActionRing* ring = nullptr;  // keeps what it has done last
    // Of RankGroup, where there are replicas: for REDUCE.
    kernels::Device* beside = nullptr;
    Transport* replicas = nullptr;
    absl::Duration deadline = absl::Minutes(5);  // of any wait
    uint64_t seed = 0;                           // of the parameters, and of what layers draw
    bool draws_parameters = true;                // else they are 0 at first
    const ParameterTable* parameters = nullptr;  // of the whole model
    std::vector<StagesOfTie> ties;               // of the whole model
    Shape output;                                // of one sample: what the last layer gives
    float clip_norm = 0.0F;                      // of the global gradient; 0: no clipping
    schedule::CollectiveMemory collectives;      // that the plans of memory count with
    // Both place the same stages alike. Without a schedule to train with, Train is not called.
    Work training, evaluation;
  };

  // `stages`: those of this rank, ascending. Takes the rank's memory from the device.
  // FailedPrecondition: a schedule has other collectives than the run: NORM if there are
  // norm_bytes, in training; RESULTS if results are shared.
  static absl::StatusOr<std::unique_ptr<Executor>> Create(
      const Options& options, std::vector<std::unique_ptr<Stage>> stages);

  // Performs the list once, until the device is done. Errors say which action of which rank failed.
  // If there is a `trace`, fills the rank's list of it, which has the length of the schedule's.
  // To measure times costs an accelerator's host several calls an action.
  absl::Status Train(const Batch& batch, const TrainStep& step, schedule::Trace* trace);
  absl::Status Evaluate(const Batch& batch, bool is_measured);
  // Takes the host memory for FindNonFinite, while no rank is at work, since it may wait for the
  // GPU.
  absl::Status PrepareSearch();
  // Performs the training list once more without its collectives, REDUCEs and updates, and looks at
  // all that the layers make: where numbers first are not finite, after a Train of that batch that
  // has changed no parameter. All ranks call it, after PrepareSearch. Slow.
  absl::StatusOr<std::optional<NonFinite>> FindNonFinite(const Batch& batch);

  // Whether all ranks' updates of a step come after all ranks' RESULTS, and take nothing of another
  // rank: so either no rank has begun to update parameters, or each has all that its own updates
  // take.
  bool waits_before_steps() const { return waits_before_steps_; }
  // How a run of training stands that has failed, then.
  enum class Updates : uint8_t {
    kNone,     // no rank has begun
    kMay,      // this one has not, others may have
    kAllMust,  // all ranks can, and some may have begun
  };
  Updates updates() const { return updates_; }
  // Unless kNone, makes those that the run has not come to.
  absl::Status CompleteUpdates();

  // Takes the host memory for Output, where the last stage is, and makes the recordings that write
  // there: before the first evaluation of a batch that wants outputs, and while no rank is at work,
  // since it may wait for the GPU. What layers keep in caches is lost.
  absl::Status PrepareOutputs();
  // What the last layer gave for a micro-batch of the last evaluation, which wanted outputs:
  // (rows of a micro-batch, output) of the activation type, padding included, in host memory; of a
  // model with StageOptions::cached_positions, of the first row alone. Pre-condition: the last
  // stage is on this rank.
  Tensor Output(MicroBatch micro_batch) const;
  // The same for batches that want a choice, which is of a model with cached positions whose last
  // layer computes the loss: among the first `ids` ids.
  absl::Status PrepareChoice(int64_t ids);
  // The id that follows a position, after an Evaluate or in a ChooseOn; kernels::kNoClass if a
  // number that it is chosen by is not finite. Pre-condition: the last stage is on this rank.
  int32_t ChoiceAfter(int64_t position) const;
  // Where there is one rank and one micro-batch: chooses the id that follows a batch of one row,
  // then that which follows this one, and so on, until there are `most`, at least 1, or `take` says
  // of one that no more are wanted. An accelerator is not waited for in between, and has then
  // computed at most one more.
  absl::Status ChooseOn(const Batch& batch, int64_t most, absl::FunctionRef<bool(int32_t)> take,
                        bool is_measured);

  // The action that the device is at, for people to read. Thread-safe.
  std::string Activity() const;

  const ExecutorCounters& counters() const { return counters_; }
  const std::vector<std::unique_ptr<Stage>>& stages() const { return stages_; }
  // All that this device trains: of its stages, and its shard of a sharded optimizer.
  std::vector<TrainedPiece> TrainedPieces() const;
  // Of a replica's micro-batch of the last run, if results are shared; else of this one's, if the
  // loss is on this rank.
  LossResult Result(int replica, MicroBatch micro_batch) const;
  // The global gradient norm of the last step, if it was computed; else 0.
  double gradient_norm() const { return norm_.has_value() ? norm_->value() : 0.0; }

 private:
  // A schedule with its buffers, and what its actions issue.
  struct Bound {
    Program program;
    BlockTable blocks;
    std::vector<std::unique_ptr<kernels::Recording>> recordings;  // by position; null for transfers
    // By position: recordings of passes that copy their outputs as well (Stage::records_outputs),
    // for batches that want them; null for all other actions.
    std::vector<std::unique_ptr<kernels::Recording>> output_recordings;
    std::vector<std::unique_ptr<kernels::Recording>> choice_recordings;  // likewise
    std::vector<RingAction> recorded;                                    // by position
    // By position: how many operations a compute action took the last time that it was issued, and
    // Stream::issued after what has work was issued in this run.
    std::vector<int64_t> operations, issued_after;
    int64_t issued_before = 0;  // Stream::issued at the start of the run
  };
  // One run of a program.
  struct Run {
    Bound& bound;
    const Batch& batch;
    const TrainStep* step;                    // null in evaluation
    bool is_measured;                         // the moments of actions are marked
    absl::Span<schedule::TimedAction> timed;  // by position; empty if there is no trace
    NonFiniteSearch* search = nullptr;        // of FindNonFinite
  };

  Executor(const Options& options, kernels::Arena arena,
           std::vector<std::unique_ptr<Stage>> stages);

  // Places the stages and binds the programs.
  absl::Status PlaceAll();
  // `resident`: where the tables of collectives and the area of REDUCEs lie.
  absl::Status PlaceCollectives(std::byte* resident);
  absl::Status CreateReduction(std::byte* received);
  std::vector<TiedGradients::End> EndsOfTies() const;
  absl::StatusOr<std::unique_ptr<Bound>> Bind(const ProgramInputs& inputs, int64_t dynamic_offset);

  // By the transports, since their creation.
  partition::SentBytes SentSoFar() const;
  absl::Status PerformAll(const Run& run);
  // Its parts: before, for and after the actions.
  absl::Status Begin(const Run& run);
  absl::Status PerformList(const Run& run);
  absl::Status End(const Run& run);
  absl::Status ChooseEach(const Run& run, int64_t most, absl::FunctionRef<bool(int32_t)> take);
  absl::Status PerformAt(const Run& run, int position);
  absl::Status Perform(const Run& run, int position);
  absl::Status Compute(const Run& run, int position);
  // Puts the pass of a compute action into the stream, and counts its operations.
  absl::Status Issue(const Run& run, int position);
  absl::Status RunPass(const Run& run, int position);
  StageOutputs OutputsOf(const Run& run, const Instruction& instruction) const;
  kernels::Recording& RecordingOf(const Run& run, int position) const;
  void CountIssue(const Run& run, int position);
  absl::Status Transfer(const Run& run, int position);
  absl::Status Reduce(const Run& run, int position);
  absl::Status Step(const Run& run, int position);
  absl::Status SumTies(const Run& run, int position);
  absl::Status ExchangeNorms(const Run& run, int position);
  absl::Status ShareResults(const Run& run, int position);
  // A copy of the tensor on the host, once it is there; valid until the next one.
  absl::StatusOr<const std::byte*> ReadNow(const Tensor& tensor);
  // The sums of squares of this rank's gradients.
  absl::Status SumOwnSquares();
  // What a STEP passes to its stage.
  UpdateStep Scaled(UpdateStep update) const;
  // Come before and after what has work for the device (Instruction::works). The first waits until
  // what is issued next keeps within the bounds of Instruction on how far the host runs ahead.
  absl::Status KeepUp(const Run& run, int position);
  absl::Status EndWork(const Run& run, int position);
  // The position of the work that the device must have done before `position` is issued;
  // Instruction::kNothing if the host may go on.
  static int32_t MustBeDone(const Bound& bound, int position, int64_t issued);
  absl::Status WaitForReport(int32_t position);
  // Before an action that fills the driver's queues alone: waits until all up to `position` is
  // done, and with it the transfer that the action awaits, which may be long in coming.
  absl::Status CatchUp(int32_t position);
  // Waits for the device by `wait`, which asks `poll` now and then: whether another rank has
  // failed, and the deadline. That is one of waits for other ranks: it starts anew with every
  // action that is done.
  absl::Status Patiently(
      absl::FunctionRef<absl::Status(absl::FunctionRef<absl::Status()> poll)> wait);
  // On an accelerator, issues everything twice, on memory whose contents are not needed yet:
  // libraries load their code at the first use and recordings are made at the second, which takes
  // memory and waits for the GPU. Once ranks wait for each other on their GPUs, that could wait for
  // ever.
  absl::Status WarmUp();
  // Issues each compute action twice that `is_wanted` of, for a batch of padding.
  absl::Status IssueTwice(Bound& bound, const Batch& padding,
                          absl::FunctionRef<bool(const Instruction&)> is_wanted);
  // Makes the recordings of the last stage's F for such a batch.
  absl::Status RecordOutputs(const Batch& padding);
  void CountGraphs();
  absl::Status Await(int32_t transfer);
  absl::Status Mark(const Run& run, const Instruction& instruction, Moment moment) {
    if (moment == Moment::kStart) options_.ring->Start();
    return run.is_measured ? timeline_->Mark(SlotOf(instruction, moment)) : absl::OkStatus();
  }
  // Notes in the ring where an accelerator is.
  void NoteDevice();
  static int SlotOf(const Instruction& instruction, Moment moment) {
    return instruction.first_slot + static_cast<int>(moment);
  }
  int32_t* chosen() const { return reinterpret_cast<int32_t*>(chosen_.data()); }
  // Fetches what the host wants to know, and waits for the device.
  absl::Status Finish(const Run& run);
  // Reads the moments of a finished run that was measured.
  absl::Status ReadTimes(const Run& run);
  absl::StatusOr<schedule::TimedAction> TimesOf(const Run& run, int position) const;
  int FirstNotDone(const Bound& bound) const;
  // An error with where it was.
  absl::Status At(const Run& run, int position, const absl::Status& status) const;

  const Options options_;
  kernels::Arena arena_;
  const std::vector<std::unique_ptr<Stage>> stages_;
  std::unique_ptr<Bound> training_, evaluation_;
  std::atomic<const Bound*> running_{nullptr};  // the last to begin, for Activity
  std::optional<SampleNumberTable> sample_numbers_;
  std::vector<Transport::Ticket> tickets_;  // of the transfers of this run; index: position
  std::unique_ptr<kernels::Timeline> timeline_;
  std::vector<std::unique_ptr<OptimizerShard>> shards_;  // by stage, if the optimizer is sharded
  std::unique_ptr<Reduction> reduction_;                 // if there are replicas
  std::optional<TiedGradients> ties_;                    // if layers share parameters
  std::optional<GradientNorm> norm_;                     // if gradients are clipped
  Stage* loss_stage_ = nullptr;                          // the last; null if it is on another rank
  kernels::HostBuffer outputs_;  // (micro_batches, rows, output), once they are prepared
  kernels::HostBuffer chosen_;   // by position, once they are prepared
  kernels::HeadChoice choice_;   // its memory has chosen_
  kernels::HostBuffer seen_;  // what a search looks at, where the device's memory is not the host's
  std::optional<SharedResults> shared_results_;
  bool waits_before_steps_ = false;
  Updates updates_ = Updates::kNone;  // of the last run of training
  UpdateStep last_update_;            // its own
  size_t updated_ = 0;                // how many of its STEPs with work are done
  int stashed_ = 0;                   // micro-batches between F and B
  ExecutorCounters counters_;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_RUN_EXECUTOR_H_
