#include "engine/train/trainer_checks.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/status_macros.h"

namespace stagecoach::engine {

absl::Status CheckSupported(const partition::Plan& plan) {
  if (!plan.order.empty()) {
    return absl::UnimplementedError(
        "the plan changes the order of the layers, as for a graph, but a model is a chain that is "
        "cut "
        "in its own order: plan from a profile of the model");
  }
  return absl::OkStatus();
}

RankGroupOptions GroupOptionsOf(const partition::Plan& plan, const TrainerOptions& options) {
  return {.ranks = plan.num_ranks(),
          .replication = plan.replication,
          .tensor_parts = plan.tensor_parts,
          .device = options.device,
          .exchange = options.exchange,
          .rendezvous = options.rendezvous,
          .deadline = options.deadline};
}

absl::Status CheckTrainer(const partition::Plan& plan, const TrainerOptions& options) {
  RETURN_IF_ERROR(CheckPlan(plan));
  RETURN_IF_ERROR(CheckSupported(plan));
  RETURN_IF_ERROR(CheckOptimizer(options.optimizer));
  RETURN_IF_ERROR(CheckLearningRate(options.learning_rate));
  if (options.on_nonfinite == OnNonFinite::kSkip && !options.optimizer.waits_for_norm()) {
    return absl::InvalidArgumentError(
        "steps with numbers that are not finite can be skipped only if updates wait for all "
        "gradients: set Optimizer::checks_gradients, or clip them");
  }
  if (options.trace && options.rendezvous != nullptr) {
    return absl::InvalidArgumentError(
        "a process knows its own rank's times only: trace a run of one process");
  }
  return CheckRankGroup(GroupOptionsOf(plan, options));
}

schedule::ResultsPlace ResultsOf(const TrainerOptions& options) {
  return options.rendezvous == nullptr ? schedule::ResultsPlace::kNowhere
                                       : schedule::ResultsPlace::kEnd;
}

absl::Status TellOthers(const TrainerOptions& options, absl::Status status) {
  if (!status.ok() && options.rendezvous != nullptr) {
    options.rendezvous->Fail(status, base::Deadline::After(options.deadline));
  }
  return status;
}

absl::Status CheckPreparedFor(const PreparedRun& run, const TrainerOptions& options) {
  if (run.model.cached_positions > 0 && run.plan().trains()) {
    return absl::InvalidArgumentError(
        "a model that is given positions one by one (ModelForGeneration) only predicts: plan for "
        "that with PlanOptions::predicts");
  }
  const auto parameters = run.profile.parameters.all();
  const bool has_trained =
      std::any_of(parameters.begin(), parameters.end(),
                  [](const ModelParameter& p) { return !p.update.is_frozen(); });
  if (run.model.is_frozen && run.plan().trains() && !has_trained) {
    return absl::InvalidArgumentError(
        "all parameters of the model are frozen, and no layer has adapters "
        "(LinearOptions::adapters)");
  }
  const char* other = nullptr;
  if (run.optimizer != options.optimizer) {
    other = "another optimizer";
  } else if (run.device != options.device) {
    other = "other devices";
  } else if (run.compiled.lowered->transfers != TransfersOf(GroupOptionsOf(run.plan(), options))) {
    other = "another exchange between devices";
  } else if ((run.compiled.lowered->collectives.result_bytes > 0) !=
             (options.rendezvous != nullptr)) {
    other = "another number of processes";
  }
  if (other == nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the run was prepared for ", other, " than the trainer is to use"));
}

}  // namespace stagecoach::engine
