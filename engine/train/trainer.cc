#include "engine/train/trainer.h"

#include <utility>

#include "base/status_macros.h"
#include "engine/train/pipeline_trainer.h"
#include "engine/train/trainer_checks.h"

namespace stagecoach::engine {
namespace {

absl::StatusOr<PreparedRun> PrepareFor(const Model& model, const partition::Plan& plan,
                                       const TrainerOptions& options) {
  RETURN_IF_ERROR(CheckTrainer(plan, options));
  return PrepareRun(model, {.plan = plan,
                            .optimizer = options.optimizer,
                            .device = options.device,
                            .transfers = TransfersOf(GroupOptionsOf(plan, options)),
                            .results = ResultsOf(options)});
}

absl::Status CannotLoseProcesses() {
  return absl::FailedPreconditionError("the run cannot continue without a process");
}

}  // namespace

absl::Status Trainer::CompleteStep() { return CannotLoseProcesses(); }
absl::StatusOr<StateSnapshot> Trainer::TakeSnapshot() { return CannotLoseProcesses(); }
absl::StatusOr<DataPosition> Trainer::RestoreSnapshot(const StateSnapshot* /*own*/) {
  return CannotLoseProcesses();
}

absl::StatusOr<std::vector<float>> Trainer::Predict(const Dataset& data) {
  std::vector<float> all;
  const auto take = [&](const Outputs& outputs) {
    all.insert(all.end(), outputs.values.begin(), outputs.values.end());
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(Predict(data, take).status());
  return all;
}

absl::StatusOr<std::string> Trainer::Save(const std::string& folder, const SaveOptions& options) {
  RETURN_IF_ERROR(BeginSave(folder, options));
  return FinishSave();
}

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(const Model& model,
                                                         const partition::Plan& plan,
                                                         const TrainerOptions& options) {
  absl::StatusOr<PreparedRun> run = PrepareFor(model, plan, options);
  RETURN_IF_ERROR(TellOthers(options, run.status()));
  return Create(*std::move(run), options);
}

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(PreparedRun run,
                                                         const TrainerOptions& options) {
  auto trainer = std::make_unique<PipelineTrainer>(std::move(run), options);
  RETURN_IF_ERROR(TellOthers(options, trainer->Initialize()));
  return trainer;
}

}  // namespace stagecoach::engine
