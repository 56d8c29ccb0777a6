#include "engine/runtime/executor.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/deadline.h"
#include "base/status_macros.h"

namespace stagecoach::engine {
namespace {

using schedule::Action;
using schedule::Op;
using schedule::TimedAction;

// Marks the place of an id before one is chosen.
constexpr int32_t kNotChosen = -2;
static_assert(kNotChosen != kernels::kNoClass);

}  // namespace

absl::Status Executor::Train(const Batch& batch, const TrainStep& step, schedule::Trace* trace) {
  const auto rank = static_cast<size_t>(options_.transport->rank().value());
  const partition::SentBytes before = SentSoFar();
  updates_ = Updates::kNone;
  last_update_ = step.update;
  updated_ = 0;
  RETURN_IF_ERROR(RunSchedule({.bound = *training_,
                               .batch = batch,
                               .step = &step,
                               .is_measured = step.is_measured || trace != nullptr,
                               .timed = trace == nullptr ? absl::Span<TimedAction>()
                                                         : absl::MakeSpan(trace->actions[rank])}));
  updates_ = Updates::kNone;
  const partition::SentBytes after = SentSoFar();
  counters_.sent = {.to_ranks = after.to_ranks - before.to_ranks,
                    .to_replicas = after.to_replicas - before.to_replicas,
                    .to_parts = after.to_parts - before.to_parts};
  return absl::OkStatus();
}

partition::SentBytes Executor::SentSoFar() const {
  return {.to_ranks = options_.transport->sent_bytes(),
          .to_replicas = options_.replicas == nullptr ? 0 : options_.replicas->sent_bytes(),
          .to_parts = options_.parts == nullptr ? 0 : options_.parts->sent_bytes()};
}

absl::Status Executor::Evaluate(const Batch& batch, bool is_measured) {
  return RunSchedule({.bound = *evaluation_,
                      .batch = batch,
                      .step = nullptr,
                      .is_measured = is_measured,
                      .timed = {}});
}

absl::Status Executor::RunSchedule(const Run& run) {
  RETURN_IF_ERROR(Begin(run));
  RETURN_IF_ERROR(PerformList(run));
  return End(run);
}

absl::Status Executor::Begin(const Run& run) {
  options_.transport->Restart();
  if (options_.parts != nullptr) options_.parts->Restart();
  run.bound.blocks.Restart();
  run.bound.issued_before = options_.device->stream().issued();
  stashed_ = 0;
  RETURN_IF_ERROR(options_.device->stream().Report(-1));
  running_.store(&run.bound, std::memory_order_release);
  options_.recorder->BeginRun(run.batch.step, run.step != nullptr);
  const absl::Status set = sample_numbers_->Set(run.batch);
  return set.ok() ? set : At(run, 0, set);
}

absl::Status Executor::PerformList(const Run& run) {
  const auto actions = static_cast<int>(run.bound.program.instructions.size());
  for (int position = 0; position < actions; ++position) {
    const absl::Status status = RunAction(run, position);
    if (!status.ok()) return At(run, position, status);
  }
  return absl::OkStatus();
}

absl::Status Executor::End(const Run& run) {
  const absl::Status status = Finish(run);
  if (!status.ok()) return At(run, FirstNotDone(run.bound), status);
  options_.recorder->EndRun();
  if (run.is_measured) RETURN_IF_ERROR(ReadTimes(run));
  counters_.peak_bytes = arena_.peak_bytes();
  counters_.peak_stash_bytes =
      std::max(counters_.peak_stash_bytes, run.bound.blocks.peak_stash_bytes());
  return absl::OkStatus();
}

absl::Status Executor::ChooseOn(const Batch& batch, int64_t most,
                                absl::FunctionRef<bool(int32_t)> take, bool is_measured) {
  const Run run = {.bound = *evaluation_,
                   .batch = batch,
                   .step = nullptr,
                   .is_measured = is_measured,
                   .timed = {}};
  const int64_t first = batch.first_sample;
  for (int64_t i = 0; i < most; ++i) chosen()[first + i] = kNotChosen;
  RETURN_IF_ERROR(Begin(run));
  RETURN_IF_ERROR(PerformList(run));
  // The blocks of the one action, whose input the passes hand to each other.
  run.bound.blocks.Restart();
  absl::Status status = run.bound.blocks.Begin(0);
  if (status.ok()) status = ChooseEach(run, most, take);
  if (status.ok()) status = run.bound.blocks.End(0);
  if (!status.ok()) return At(run, 0, status);
  return End(run);
}

absl::Status Executor::ChooseEach(const Run& run, int64_t most,
                                  absl::FunctionRef<bool(int32_t)> take) {
  // While the device is at the last one, the host takes the one before.
  const int64_t ahead = options_.device->memory_is_host() ? 1 : 2;
  Batch following = run.batch;
  following.continues = true;
  const Run again = {
      .bound = run.bound, .batch = following, .step = nullptr, .is_measured = false, .timed = {}};
  int64_t issued = 1;
  for (int64_t taken = 0; taken < most; ++taken) {
    for (; issued < std::min(most, taken + ahead); ++issued) {
      RETURN_IF_ERROR(Launch(again, 0));
      CountIssue(again, 0);
    }
    const int64_t position = run.batch.first_sample + taken;
    RETURN_IF_ERROR(WaitWithDeadline([&](absl::FunctionRef<absl::Status()> poll) {
      return options_.device->stream().WaitUntil(
          [&] { return ChoiceAfter(position) != kNotChosen; }, poll);
    }));
    if (!take(ChoiceAfter(position))) return absl::OkStatus();
  }
  return absl::OkStatus();
}

int32_t Executor::ChoiceAfter(int64_t position) const {
  return std::atomic_ref(chosen()[position]).load(std::memory_order_acquire);
}

// Returns the first action with work for the device that it has not done: transfers only wait, and
// a transfer that never happens holds up the computation after it.
int Executor::FirstNotDone(const Bound& bound) const {
  const std::vector<Instruction>& instructions = bound.program.instructions;
  const auto last = static_cast<int>(instructions.size()) - 1;
  int position = std::min(options_.device->stream().reported() + 1, last);
  while (position < last && !instructions[static_cast<size_t>(position)].works) ++position;
  return position;
}

absl::Status Executor::At(const Run& run, int position, const absl::Status& status) const {
  options_.recorder->Close();
  const Action& action = run.bound.program.instructions[static_cast<size_t>(position)].action;
  const std::string replica =
      options_.replicas == nullptr
          ? ""
          : absl::StrCat(" (replica ", options_.replicas->rank().value(), ")");
  return base::Annotate(status,
                        absl::StrCat("rank ", options_.number, replica, ", ", ToString(action)));
}

std::string Executor::Activity() const {
  const Bound* const bound = running_.load(std::memory_order_acquire);
  if (bound == nullptr) return "the time before the first step";
  const auto position = static_cast<size_t>(FirstNotDone(*bound));
  return absl::StrCat(ToString(bound->program.instructions[position].action),
                      bound == evaluation_.get() ? " of an evaluation" : "");
}

absl::Status Executor::RunAction(const Run& run, int position) {
  const auto index = static_cast<size_t>(position);
  const Program& program = run.bound.program;
  options_.recorder->Begin(run.bound.recorded[index]);
  RETURN_IF_ERROR(run.bound.blocks.Begin(position));
  RETURN_IF_ERROR(Mark(run, program.instructions[index], Moment::kReached));
  RETURN_IF_ERROR(Dispatch(run, position));
  if (index + 1 == program.instructions.size()) {
    // The list ends when its last sends have been taken: their blocks end with it.
    for (const int32_t send : program.last_sends) {
      FlightAction taken = run.bound.recorded[static_cast<size_t>(send)];
      taken.awaited = Awaited::kOwnTaken;
      options_.recorder->Begin(taken);
      RETURN_IF_ERROR(WaitForTransfer(send));
    }
  }
  const int64_t stash_bytes = run.bound.blocks.stash_bytes();
  RETURN_IF_ERROR(run.bound.blocks.End(position));
  if (run.timed.empty()) return absl::OkStatus();
  const Instruction& instruction = program.instructions[index];
  schedule::TimedAction& timed = run.timed[index];
  if (schedule::IsTransfer(instruction.action.op)) timed.bytes = instruction.tensor.bytes();
  for (size_t i = 0; i < instruction.num_copies; ++i) timed.bytes += instruction.copies[i].bytes;
  if (schedule::IsCompute(instruction.action.op)) {
    timed.bytes = run.bound.blocks.stash_bytes();
    timed.peak_stash_bytes = stash_bytes;
  }
  return absl::OkStatus();
}

absl::Status Executor::Dispatch(const Run& run, int position) {
  const Instruction& instruction = run.bound.program.instructions[static_cast<size_t>(position)];
  const Op op = instruction.action.op;
  const bool is_of_pass =
      schedule::IsCompute(op) || schedule::IsTransfer(op) || schedule::MovesStash(op);
  if (run.search != nullptr && !is_of_pass) {
    return instruction.works ? EndWork(run, position) : absl::OkStatus();
  }
  switch (op) {
    case Op::kForward:
    case Op::kBackwardInput:
    case Op::kBackwardWeight:
    case Op::kBackward:
      return RunCompute(run, position);
    case Op::kSendActivation:
    case Op::kSendGradient:
    case Op::kReceiveActivation:
    case Op::kReceiveGradient:
      return Transfer(run, position);
    case Op::kOffload:
    case Op::kFetch:
      return CopyStash(run, position);
    case Op::kRelease:
      return WaitForCopies(run, instruction.awaits);
    case Op::kUnshard:
    case Op::kReshard:
      break;  // never reached: schedule::FitToRun
    case Op::kReduceGradients:
      return Reduce(run, position);
    case Op::kStep:
      return Step(run, position);
    case Op::kSumTies:
      return SumTies(run, position);
    case Op::kExchangeNorms:
      return ExchangeNorms(run, position);
    case Op::kShareResults:
      return ShareResults(run, position);
  }
  return absl::InternalError("an operation that cannot be performed");
}

absl::Status Executor::RunCompute(const Run& run, int position) {
  const Instruction& instruction = run.bound.program.instructions[static_cast<size_t>(position)];
  kernels::Stream& stream = options_.device->stream();
  RETURN_IF_ERROR(ThrottleHost(run, position));
  if (instruction.awaits != Instruction::kNothing) {
    RETURN_IF_ERROR(WaitForTransfer(instruction.awaits));
    const int64_t operations = run.bound.operations[static_cast<size_t>(position)];
    if (operations > Instruction::kMostOperationsAhead) RETURN_IF_ERROR(CatchUp(position - 1));
  }
  if (instruction.fetch != Instruction::kNothing) {
    RETURN_IF_ERROR(WaitForCopies(run, instruction.fetch));
  }
  CountStash(run, instruction);
  RETURN_IF_ERROR(Mark(run, instruction, Moment::kStart));
  stream.BeginRange(instruction.name.c_str());
  const absl::Status status = Launch(run, position);
  stream.EndRange();
  RETURN_IF_ERROR(status);
  CountIssue(run, position);
  return EndWork(run, position);
}

void Executor::CountIssue(const Run& run, int position) {
  using Form = kernels::Recording::Form;
  const kernels::Recording& recording = RecordingOf(run, position);
  const Form form = recording.form();
  if (form == Form::kGraph) ++counters_.graph_issues;
  if (form == Form::kPlain) {
    ++counters_.plain_issues;
    if (counters_.why_plain.empty()) counters_.why_plain = recording.why_plain();
  }
  if (run.timed.empty()) return;
  run.timed[static_cast<size_t>(position)].as_graph = form == Form::kGraph;
}

kernels::Recording& Executor::RecordingOf(const Run& run, int position) const {
  const auto index = static_cast<size_t>(position);
  const std::unique_ptr<kernels::Recording>& with_outputs = run.bound.output_recordings[index];
  const std::unique_ptr<kernels::Recording>& with_choice = run.bound.choice_recordings[index];
  if (run.batch.wants_outputs && with_outputs != nullptr) return *with_outputs;
  if (run.batch.wants_choice && with_choice != nullptr) return *with_choice;
  return *run.bound.recordings[index];
}

StageOutputs Executor::OutputsOf(const Run& run, const Instruction& instruction) const {
  if (instruction.stage != loss_stage_) return {};
  const MicroBatch micro_batch = instruction.action.micro_batch;
  if (run.batch.wants_outputs) return {.values = Output(micro_batch)};
  // The wanted row is the first one of all.
  if (run.batch.wants_choice && micro_batch == MicroBatch(0)) return {.choice = &choice_};
  return {};
}

absl::Status Executor::EndWork(const Run& run, int position) {
  const Instruction& instruction = run.bound.program.instructions[static_cast<size_t>(position)];
  kernels::Stream& stream = options_.device->stream();
  RETURN_IF_ERROR(Mark(run, instruction, Moment::kEnd));
  RETURN_IF_ERROR(stream.Report(position));
  run.bound.issued_after[static_cast<size_t>(position)] = stream.issued();
  return absl::OkStatus();
}

absl::Status Executor::Launch(const Run& run, int position) {
  const kernels::Stream& stream = options_.device->stream();
  const int64_t before = stream.issued();
  RETURN_IF_ERROR(RunPass(run, position));
  run.bound.operations[static_cast<size_t>(position)] = stream.issued() - before;
  return absl::OkStatus();
}

absl::Status Executor::RunPass(const Run& run, int position) {
  const auto index = static_cast<size_t>(position);
  const Instruction& instruction = run.bound.program.instructions[index];
  kernels::Recording& recording = RecordingOf(run, position);
  Stage& stage = *instruction.stage;
  const bool updates =
      instruction.completes_gradients && run.step != nullptr && stage.options().updates_in_backward;
  const UpdateStep* const update = updates ? &run.step->update : nullptr;
  const StageBlocks& blocks = instruction.blocks;
  const MicroBatch micro_batch = instruction.action.micro_batch;
  const CallContext call = {.is_training = &run.bound == training_.get(),
                            .seed = options_.seed,
                            .numbers = sample_numbers_->of(micro_batch),
                            .rows = sample_numbers_->rows_of(micro_batch)};
  if (run.search != nullptr) run.search->Begin(run.batch.first_micro_batch + micro_batch.value());
  switch (instruction.action.op) {
    case Op::kForward:
      if (run.step != nullptr) {
        counters_.peak_stashed = std::max(counters_.peak_stashed, ++stashed_);
      }
      return stage.Forward(blocks, call, run.batch, micro_batch, OutputsOf(run, instruction),
                           recording);
    case Op::kBackwardInput:
      --stashed_;
      return stage.BackwardInput(blocks, call, micro_batch, recording);
    case Op::kBackwardWeight:
      return stage.BackwardWeight(blocks, call, micro_batch, update, recording);
    default:
      --stashed_;
      return stage.Backward(blocks, call, micro_batch, update, recording);
  }
}

absl::Status Executor::Transfer(const Run& run, int position) {
  const auto index = static_cast<size_t>(position);
  const Instruction& instruction = run.bound.program.instructions[index];
  const bool sends = schedule::IsSend(instruction.action.op);
  // One send per lane is outstanding, as the memory plan assumes.
  if (instruction.awaits != Instruction::kNothing)
    RETURN_IF_ERROR(WaitForTransfer(instruction.awaits));
  RETURN_IF_ERROR(Mark(run, instruction, Moment::kStart));
  Transport& transport = *options_.transport;
  ASSIGN_OR_RETURN(
      tickets_[index],
      sends ? transport.PostSend(instruction.peer, instruction.message, instruction.tensor)
            : transport.PostReceive(instruction.peer, instruction.message, instruction.tensor));
  if (instruction.action.overlaps_next) return absl::OkStatus();
  if (reduction_ != nullptr) RETURN_IF_ERROR(reduction_->AwaitFlushes(transport));
  return transport.Flush();
}

absl::Status Executor::CopyStash(const Run& run, int position) {
  using Direction = kernels::HostCopies::Direction;
  const Instruction& instruction = run.bound.program.instructions[static_cast<size_t>(position)];
  const bool leaves = instruction.action.op == Op::kOffload;
  const auto copies = absl::MakeConstSpan(instruction.copies).first(instruction.num_copies);
  CountStash(run, instruction);
  RETURN_IF_ERROR(Mark(run, instruction, Moment::kStart));
  for (const kernels::HostCopy& copy : copies) {
    if (!leaves) break;
    counters_.host_bytes =
        std::max<int64_t>(counters_.host_bytes, copy.to + copy.bytes - host_memory_.data());
  }
  return host_copies_->Start(instruction.copy_slot,
                             leaves ? Direction::kToHost : Direction::kFromHost, copies);
}

absl::Status Executor::WaitForCopies(const Run& run, int32_t position) {
  return host_copies_->Await(
      run.bound.program.instructions[static_cast<size_t>(position)].copy_slot);
}

void Executor::CountStash(const Run& run, const Instruction& instruction) {
  for (const int32_t block : instruction.stashes) {
    if (block == Instruction::kNothing) break;
    run.bound.blocks.Stash(block);
  }
}

// Orders subsequent work after a transfer that was posted in this run.
absl::Status Executor::WaitForTransfer(int32_t transfer) {
  return options_.transport->Wait(tickets_[static_cast<size_t>(transfer)],
                                  base::Deadline::After(options_.deadline));
}

absl::Status Executor::Reduce(const Run& run, int position) {
  RETURN_IF_ERROR(
      Mark(run, run.bound.program.instructions[static_cast<size_t>(position)], Moment::kStart));
  return reduction_->Start(run.step->update);
}

absl::Status Executor::Step(const Run& run, int position) {
  const Instruction& instruction = run.bound.program.instructions[static_cast<size_t>(position)];
  if (!instruction.works) return absl::OkStatus();
  const bool shards = instruction.stage->options().replication.shards_optimizer;
  RETURN_IF_ERROR(ThrottleHost(run, position));
  if (reduction_ != nullptr) {
    RETURN_IF_ERROR(reduction_->Await(instruction.action.stage, *options_.transport));
  }
  RETURN_IF_ERROR(Mark(run, instruction, Moment::kStart));
  const UpdateStep update = Scaled(run.step->update);
  if (!shards) {
    RETURN_IF_ERROR(instruction.stage->Update(update));
    ++updated_;
  } else if (options_.collectives.precede_updates()) {
    RETURN_IF_ERROR(reduction_->Start(update));
    RETURN_IF_ERROR(reduction_->AwaitAll(*options_.transport));
  }
  return EndWork(run, position);
}

UpdateStep Executor::Scaled(UpdateStep update) const {
  if (norm_.has_value()) update.gradient_scale = norm_->scale();
  return update;
}

absl::Status Executor::CompleteUpdates() {
  if (updates_ == Updates::kNone) {
    return absl::FailedPreconditionError("the sums that the update takes are not there");
  }
  size_t number = 0;
  for (const Instruction& instruction : training_->program.instructions) {
    if (instruction.action.op != Op::kStep || !instruction.works) continue;
    if (number++ < updated_) continue;
    RETURN_IF_ERROR(instruction.stage->Update(Scaled(last_update_)));
    ++updated_;
  }
  updates_ = Updates::kNone;
  return FinishAlone();
}

absl::Status Executor::SumOwnSquares() {
  for (const std::unique_ptr<Stage>& stage : stages_) {
    RETURN_IF_ERROR(stage->SquaredNorms(norm_->Squares(stage->parameters())));
  }
  return absl::OkStatus();
}

absl::Status Executor::SumTies(const Run& run, int position) {
  const Instruction& instruction = run.bound.program.instructions[static_cast<size_t>(position)];
  RETURN_IF_ERROR(ThrottleHost(run, position));
  if (reduction_ != nullptr) RETURN_IF_ERROR(reduction_->AwaitAll(*options_.transport));
  RETURN_IF_ERROR(ties_->Sum(*options_.transport, options_.deadline,
                             [&] { return Mark(run, instruction, Moment::kStart); }));
  return EndWork(run, position);
}

absl::Status Executor::ExchangeNorms(const Run& run, int position) {
  const Instruction& instruction = run.bound.program.instructions[static_cast<size_t>(position)];
  RETURN_IF_ERROR(ThrottleHost(run, position));
  if (reduction_ != nullptr) RETURN_IF_ERROR(reduction_->AwaitAll(*options_.transport));
  RETURN_IF_ERROR(Mark(run, instruction, Moment::kStart));
  RETURN_IF_ERROR(SumOwnSquares());
  RETURN_IF_ERROR(Mark(run, instruction, Moment::kOwnPartDone));
  RETURN_IF_ERROR(norm_->Exchange(*options_.transport, instruction.ranks,
                                  base::Deadline::After(options_.deadline)));
  if (options_.parts != nullptr) {
    RETURN_IF_ERROR(
        norm_->ExchangeParts(*options_.parts, base::Deadline::After(options_.deadline)));
  }
  RETURN_IF_ERROR(Mark(run, instruction, Moment::kAllPartsThere));
  RETURN_IF_ERROR(norm_->Combine());
  return EndWork(run, position);
}

absl::Status Executor::ShareResults(const Run& run, int position) {
  const Instruction& instruction = run.bound.program.instructions[static_cast<size_t>(position)];
  RETURN_IF_ERROR(ThrottleHost(run, position));
  const bool precedes_updates = waits_before_steps_ && run.step != nullptr;
  if (precedes_updates) {
    if (reduction_ != nullptr) RETURN_IF_ERROR(reduction_->AwaitAll(*options_.transport));
    updates_ = Updates::kMay;
  }
  if (reduction_ != nullptr) RETURN_IF_ERROR(reduction_->AwaitFlushes(*options_.transport));
  RETURN_IF_ERROR(shared_results_->ExchangeAmongRanks(*options_.transport, instruction.ranks));
  // On an accelerator, the exchange has only been issued. If this rank gives up, its transfers end
  // without their contents, and the work issued after them continues: this must neither tell other
  // replicas that all ranks of this one are there, nor be an update.
  if (precedes_updates && !options_.device->memory_is_host()) RETURN_IF_ERROR(WaitForDevice());
  RETURN_IF_ERROR(shared_results_->ExchangeAmongReplicas(*options_.transport));
  RETURN_IF_ERROR(Mark(run, instruction, Moment::kStart));
  RETURN_IF_ERROR(shared_results_->Fetch());
  if (precedes_updates) updates_ = Updates::kAllMust;
  return EndWork(run, position);
}

absl::Status Executor::Finish(const Run& run) {
  if (loss_stage_ != nullptr) RETURN_IF_ERROR(loss_stage_->FetchResults());
  const Batch next = run.step == nullptr ? Batch{} : run.step->next;
  for (const std::unique_ptr<Stage>& stage : stages_) RETURN_IF_ERROR(stage->PrepareNext(next));
  return WaitForDevice();
}

absl::Status Executor::WaitForDevice() {
  return WaitWithDeadline([&](absl::FunctionRef<absl::Status()> poll) {
    return options_.device->stream().Finish(base::Deadline::Never(), poll);
  });
}

absl::Status Executor::FinishAlone() {
  return options_.device->stream().Finish(base::Deadline::After(options_.deadline),
                                          [] { return absl::OkStatus(); });
}

absl::Status Executor::ThrottleHost(const Run& run, int position) {
  const int32_t must = MustBeDone(run.bound, position, options_.device->stream().issued());
  return must == Instruction::kNothing ? absl::OkStatus() : WaitForReport(must);
}

int32_t Executor::MustBeDone(const Bound& bound, int position, int64_t issued) {
  const Instruction& instruction = bound.program.instructions[static_cast<size_t>(position)];
  // Number of operations that may still be in the queues when this action is added to them.
  const int64_t room =
      Instruction::kMostOperationsAhead - bound.operations[static_cast<size_t>(position)];
  int32_t must = Instruction::kNothing;
  for (int32_t before = position - 1; before >= 0; --before) {
    const auto index = static_cast<size_t>(before);
    if (!bound.program.instructions[index].works) continue;
    if (must != Instruction::kNothing && issued - bound.issued_after[index] > room) return must;
    must = before;
    if (before == instruction.keeps_up_with) return must;
  }
  return issued - bound.issued_before > room ? must : Instruction::kNothing;
}

absl::Status Executor::WaitForReport(int32_t position) {
  kernels::Stream& stream = options_.device->stream();
  if (stream.reported() >= position) return absl::OkStatus();
  return WaitWithDeadline(
      [&](absl::FunctionRef<absl::Status()> poll) { return stream.WaitForReport(position, poll); });
}

absl::Status Executor::CatchUp(int32_t position) {
  RETURN_IF_ERROR(options_.device->stream().Report(position));
  return WaitForReport(position);
}

absl::Status Executor::WaitWithDeadline(
    absl::FunctionRef<absl::Status(absl::FunctionRef<absl::Status()> poll)> wait) {
  const kernels::Stream& stream = options_.device->stream();
  int32_t done = stream.reported();
  base::Deadline deadline = base::Deadline::After(options_.deadline);
  return wait([&]() -> absl::Status {
    NoteDevice();
    RETURN_IF_ERROR(options_.transport->Poll());
    if (reduction_ != nullptr) RETURN_IF_ERROR(reduction_->Poll());
    if (const int32_t now = stream.reported(); now != done) {
      done = now;
      deadline = base::Deadline::After(options_.deadline);
    }
    const bool is_alone = options_.transport->ranks() == 1 && reduction_ == nullptr;
    if (is_alone || !deadline.Expired()) return absl::OkStatus();
    return absl::DeadlineExceededError("timed out waiting for other ranks");
  });
}

void Executor::NoteDevice() {
  if (options_.device->memory_is_host()) return;
  options_.recorder->DeviceIsAt(FirstNotDone(*running_.load(std::memory_order_relaxed)));
}

LossResult Executor::Result(int replica, MicroBatch micro_batch) const {
  if (shared_results_.has_value()) return shared_results_->Result(replica, micro_batch);
  STAGECOACH_CHECK(loss_stage_ != nullptr, "the loss is on another rank");
  return loss_stage_->Result(micro_batch);
}

}  // namespace stagecoach::engine
