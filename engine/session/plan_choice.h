#ifndef STAGECOACH_ENGINE_SESSION_PLAN_CHOICE_H_
#define STAGECOACH_ENGINE_SESSION_PLAN_CHOICE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/session/run_config.h"
#include "engine/train/prepared_run.h"
#include "partition/cost/cluster.h"

namespace stagecoach::engine {

// Returns the model to choose a plan for, whose steps have that many rows, or as many as suit its
// data (DefaultBatch). Called once at most, when the configuration is known to have devices.
using ModelSource =
    absl::FunctionRef<absl::StatusOr<PlannedModel>(std::optional<int64_t> batch_rows)>;

// Chooses how the model is spread over the devices of the configuration: takes the plan that it
// names, or profiles the model and cuts it for the schedule that it names; without one, for the
// usual schedule or the fastest (RunConfig::schedule). Other devices than those that the
// configuration names are not tried (WithFallBack).
absl::StatusOr<PreparedRun> ChoosePlan(const RunConfig& options, ModelSource model);

// Returns the devices of the cluster that the configuration names; those that its plan names, if
// that is for some of them only. Nothing: it names none.
absl::StatusOr<std::optional<partition::Cluster>> PlannedCluster(const RunConfig& options);

// The number of devices that share the layers of each stage, and who says so: the plan, if the
// configuration names one, or "--tensor".
struct TensorChoice {
  int parts = 1;
  std::string source;
};
absl::StatusOr<TensorChoice> ChosenTensorParts(const RunConfig& options);

// Returns the errors of ChoosePlan that configuration and files alone show, before data are read or
// devices asked for.
absl::Status CheckPlanFlags(const RunConfig& options);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_SESSION_PLAN_CHOICE_H_
