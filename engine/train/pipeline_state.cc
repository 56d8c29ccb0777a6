#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/runtime/stage/fill_tensors.h"
#include "engine/runtime/trained_parameters.h"
#include "engine/train/measure/measured_costs.h"
#include "engine/train/pipeline_trainer.h"
#include "engine/train/recovery/restore_state.h"

namespace stagecoach::engine {

namespace {

// Fills the tensor of what a part holds of a parameter. `values_of` knows nothing of blocks.
absl::Status FillPart(const ModelParameter& parameter, TensorPart part,
                      const Trainer::ValuesOf& values_of, const kernels::Tensor& held) {
  if (parameter.pieces() == 1) return values_of(parameter, held);
  ModelParameter whole = parameter;
  whole.blocks.reset();
  absl::Status status;
  FillFromFloats(parameter, part, held, [&](absl::Span<float> values) {
    status = values_of(whole, {values.data(), kernels::DType::kFloat32, parameter.shape});
  });
  return status;
}

}  // namespace

DeviceReport PipelineTrainer::ReportPlanned(int device) const {
  const partition::RankReport& predicted = run_.compiled.of(group_->mesh().rank_of(device));
  return {.predicted_peak_bytes = predicted.peak_bytes(),
          .predicted_stash_bytes = predicted.training.peak_stash_bytes,
          .predicted_host_bytes = predicted.training.host_bytes(),
          .predicted_sent = partition::SentBytesOf(
              run_.compiled, run_.profile.layers, run_.profile.ties, group_->mesh().rank_of(device),
              group_->mesh().replica_of(device))};
}

void PipelineTrainer::AddMeasurements(int index, DeviceReport& report) const {
  const kernels::Device& device = group_->device(index);
  const ExecutorCounters& counters = executors_[static_cast<size_t>(index)]->counters();
  report.device = device.name();
  report.measured_peak_bytes = counters.peak_bytes;
  report.accelerator = device.MeasureMemory().value_or(kernels::AcceleratorMemory());
  report.peak_stashed = counters.peak_stashed;
  report.measured_stash_bytes = counters.peak_stash_bytes;
  report.measured_host_bytes = counters.host_bytes;
  report.measured_sent = counters.sent;
  report.graphs = counters.graphs;
  report.graph_issues = counters.graph_issues;
  report.plain_issues = counters.plain_issues;
  report.why_plain = counters.why_plain;
  if (measured_ns_ > 0) {
    report.busy = static_cast<double>(counters.compute_ns) / static_cast<double>(measured_ns_);
  }
}

absl::StatusOr<std::vector<DeviceReport>> PipelineTrainer::Devices() {
  std::vector<DeviceReport> reports;
  for (int device = 0; device < plan().num_devices(); ++device) {
    reports.push_back(ReportPlanned(device));
  }
  for (const int device : group_->local_devices()) {
    AddMeasurements(device, reports[static_cast<size_t>(device)]);
  }
  if (options_.rendezvous == nullptr) return reports;
  const DeviceReport& own = reports[static_cast<size_t>(options_.rendezvous->rank())];
  ASSIGN_OR_RETURN(const std::vector<std::string> all, group_->Gather(MeasurementsToText(own)));
  for (size_t rank = 0; rank < all.size(); ++rank) {
    RETURN_IF_ERROR(ReadMeasurements(all[rank], reports[rank]));
  }
  return reports;
}

absl::Status PipelineTrainer::CheckTraced() {
  RETURN_IF_ERROR(group_->status());
  if (traces_ == nullptr) {
    return absl::FailedPreconditionError("steps are not traced: set TrainerOptions::trace");
  }
  if (steps_ == restored_steps_) return absl::FailedPreconditionError("no step has been done yet");
  return absl::OkStatus();
}

absl::StatusOr<schedule::Trace> PipelineTrainer::LastTrace() {
  RETURN_IF_ERROR(CheckTraced());
  return traces_->Last(steps_ - restored_steps_);
}

absl::StatusOr<schedule::Costs> PipelineTrainer::MeasuredCosts() {
  RETURN_IF_ERROR(CheckTraced());
  return MeasureCosts(traces_->Recent(steps_ - restored_steps_), run_.updates_in_backward(),
                      run_.compiled.memory_of_stages(), run_.compiled.lowered->collectives);
}

absl::StatusOr<std::string> PipelineTrainer::ParametersHash() {
  RETURN_IF_ERROR(group_->status());
  return HashParameters(*group_, executors_, run_.profile.parameters);
}

absl::StatusOr<std::vector<float>> PipelineTrainer::Parameter(const std::string& name) {
  RETURN_IF_ERROR(group_->status());
  ASSIGN_OR_RETURN(const ParameterId id, run_.profile.parameters.Find(name));
  const ModelParameter& parameter = run_.profile.parameters[id];
  const StageId stage(plan().stage_of(parameter.layer));
  return CopyParameter(*group_, executors_, parameter,
                       run_.compiled.lowered->training.rank_of(stage));
}

bool PipelineTrainer::has_averages() const {
  return plan().trains() && run_.optimizer.has_ema() && steps_ > 0;
}

absl::Status PipelineTrainer::StartAverages() {
  if (steps_ > 0 || !run_.optimizer.has_ema()) return absl::OkStatus();
  return group_->ForEachLocalDevice(
      [&](int device) { return executors_[static_cast<size_t>(device)]->StartAverages(); });
}

absl::Status PipelineTrainer::WithAverages(absl::FunctionRef<absl::Status()> function) {
  RETURN_IF_ERROR(group_->status());
  if (!has_averages() || averages_are_in_place_) return function();
  RETURN_IF_ERROR(SwapAverages());
  const absl::Status status = function();
  // A group that has failed does nothing more, except for TakeSnapshot.
  RETURN_IF_ERROR(group_->status());
  RETURN_IF_ERROR(SwapAverages());
  return status;
}

absl::Status PipelineTrainer::SwapAverages() {
  const auto swap = [&](int device) {
    return executors_[static_cast<size_t>(device)]->SwapAverages();
  };
  // Devices with all of the averages do not need others, of which some may be lost.
  const absl::Status status = plan().replication.shards_optimizer
                                  ? group_->RunCollective(swap)
                                  : group_->ForEachLocalDevice(swap);
  if (!status.ok()) return group_->Fail(status);
  averages_are_in_place_ = !averages_are_in_place_;
  return absl::OkStatus();
}

absl::Status PipelineTrainer::SetParameter(const std::string& name,
                                           absl::Span<const float> values) {
  RETURN_IF_ERROR(group_->status());
  ASSIGN_OR_RETURN(const ParameterId id, run_.profile.parameters.Find(name));
  saved_state_->ForgetFrozen();
  return engine::SetParameter(*group_, executors_, run_.profile.parameters[id], values);
}

absl::Status PipelineTrainer::SetParameters(const ValuesOf& values_of) {
  return SetThose(/*are_adapters=*/false, values_of);
}

absl::Status PipelineTrainer::SetAdapters(const ValuesOf& values_of) {
  return SetThose(/*are_adapters=*/true, values_of);
}

absl::Status PipelineTrainer::SetThose(bool are_adapters, const ValuesOf& values_of) {
  RETURN_IF_ERROR(group_->status());
  saved_state_->ForgetFrozen();
  return group_->ForEachLocalDevice([&](int device) -> absl::Status {
    const Executor& executor = *executors_[static_cast<size_t>(device)];
    std::vector<ParameterId> ids;
    std::vector<kernels::Tensor> tensors;
    for (const TrainedPiece& piece : executor.TrainedPieces()) {
      const ModelParameter& parameter = run_.profile.parameters[piece.parameter];
      const bool is_one =
          are_adapters ? parameter.is_adapter || parameter.is_trained_base : !parameter.is_adapter;
      if (piece.state != kTrainedValue || !is_one) continue;
      ids.push_back(piece.parameter);
      tensors.push_back(piece.tensor);
    }
    kernels::Device& on = group_->device(device);
    RETURN_IF_ERROR(FillTensors(on, tensors, [&](int i, const kernels::Tensor& values) {
      return FillPart(run_.profile.parameters[ids[static_cast<size_t>(i)]], PartOf(device),
                      values_of, values);
    }));
    for (const std::unique_ptr<Stage>& stage : executor.stages()) {
      RETURN_IF_ERROR(stage->RoundParameters());
    }
    return on.stream().Finish();
  });
}

absl::Status PipelineTrainer::BeginSave(const std::string& folder, const SaveOptions& options) {
  RETURN_IF_ERROR(group_->status());
  RETURN_IF_ERROR(CheckMayTrain());
  RETURN_IF_ERROR(StartAverages());
  if (is_saving()) return absl::FailedPreconditionError("another checkpoint is being saved");
  SaveTask task = {.folder = folder, .retention = options.retention, .deadline = options_.deadline};
  task.manifest = {.program = options.program,
                   .step = steps_,
                   .samples = samples_,
                   .position = options.position,
                   .seed = options_.seed,
                   .model_source = options.model_source,
                   .encoding = options.encoding,
                   .data = options.data,
                   .options = options.options};
  return saved_state_->Begin(std::move(task));
}

absl::StatusOr<std::string> PipelineTrainer::FinishSave() {
  RETURN_IF_ERROR(group_->status());
  return saved_state_->Finish();
}

absl::StatusOr<RestoredCheckpoint> PipelineTrainer::Restore(const std::string& path) {
  RETURN_IF_ERROR(group_->status());
  ASSIGN_OR_RETURN(RestoredCheckpoint restored, saved_state_->Restore(path));
  steps_ = restored_steps_ = restored.manifest.step;
  samples_ = restored.manifest.samples;
  return restored;
}

bool PipelineTrainer::can_lose_processes() const {
  return options_.rendezvous != nullptr && plan().replicas() > 1 && plan().trains() &&
         plan().tensor_parts == 1 && own_executor().waits_before_steps();
}

bool PipelineTrainer::may_complete_step() const {
  return can_lose_processes() && own_executor().updates() != Executor::Updates::kNone;
}

absl::Status PipelineTrainer::CompleteStep() {
  if (!may_complete_step()) {
    return absl::FailedPreconditionError("no step has failed that could be completed");
  }
  RETURN_IF_ERROR(CompleteUpdates());
  EndStep();
  return absl::OkStatus();
}

absl::StatusOr<StateSnapshot> PipelineTrainer::TakeSnapshot() {
  if (!can_lose_processes()) return Trainer::TakeSnapshot();
  if (averages_are_in_place_) RETURN_IF_ERROR(SwapAverages());  // an evaluation has failed
  StateSnapshot snapshot = {.steps = steps_, .samples = samples_};
  ASSIGN_OR_RETURN(snapshot.pieces, CopyPieces(*group_, executors_, options_.deadline));
  return snapshot;
}

absl::StatusOr<DataPosition> PipelineTrainer::RestoreSnapshot(const StateSnapshot* own) {
  RETURN_IF_ERROR(group_->status());
  if (!can_lose_processes()) return Trainer::RestoreSnapshot(own);
  ASSIGN_OR_RETURN(const StateSnapshot adopted,
                   RestoreState(*group_, executors_, own, options_.deadline));
  steps_ = restored_steps_ = adopted.steps;
  samples_ = adopted.samples;
  return *adopted.position;
}

}  // namespace stagecoach::engine
