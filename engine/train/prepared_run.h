#ifndef STAGECOACH_ENGINE_TRAIN_PREPARED_RUN_H_
#define STAGECOACH_ENGINE_TRAIN_PREPARED_RUN_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "engine/data/sample_spec.h"
#include "engine/models/model.h"
#include "engine/runtime/device/device_spec.h"
#include "engine/runtime/rank_group.h"
#include "engine/runtime/stage/optimizer.h"
#include "engine/runtime/stage/profile.h"
#include "partition/plan/compiled_plan.h"
#include "schedule/ir/schedule.h"
#include "schedule/transforms/lowering.h"

namespace stagecoach::engine {

// Everything about a run that is settled before its devices are made: the model and the costs of
// its layers, the plan, the actions of every rank, and the memory of each. PrepareRun makes it;
// later code only reads it.
struct PreparedRun {
  partition::CompiledPlan compiled;
  Model model;
  Optimizer optimizer;
  DeviceSpec device;
  ModelProfile profile;
  std::string choice = {};  // why its schedule was chosen, if it was

  const partition::Plan& plan() const { return compiled.plan; }
  // Describes the data that it trains on.
  SampleSpec sample_spec() const;

  // True if parameters are updated within the backward pass, if there is one: not while gradients
  // are still to be summed over replicas.
  bool updates_in_backward() const {
    return plan().trains() && profile.updates_in_backward && !plan().replication.is_needed();
  }
};

// The layers that repeat F within B, to save memory, among those that can
// (LayerCost::recompute_stash_bytes).
enum class Recompute : uint8_t {
  kPlanned,    // those that the plan names; a searched plan may name some
  kNone,       // none, whatever the plan says; likewise below
  kAttention,  // those with attention (LayerSpec::has_attention)
  kFull,       // all
};

// A user's plan, and the devices to run it on.
struct GivenPlan {
  partition::Plan plan;
  Optimizer optimizer;
  DeviceSpec device;
  schedule::Transfers transfers = schedule::Transfers::kSeparate;  // how devices exchange tensors
  schedule::ResultsPlace results = schedule::ResultsPlace::kNowhere;  // ProfileOptions::results
  Recompute recompute = Recompute::kPlanned;
  std::optional<double> offload = {};  // replaces the plan's
};

// Describes what to find a plan for.
struct PlanOptions {
  int devices = 1;       // per replica and part
  int tensor_parts = 1;  // Plan::tensor_parts
  partition::Replication replication = {};
  // No training: F alone, each device with one stage. Schedule, chunks, optimizer and recompute are
  // not read.
  bool predicts = false;
  std::string schedule = "1f1b";  // a name of schedule::Generators(), or partition::kAnySchedule
  // Replaces the name: the schedule of each replica; for as many devices.
  std::optional<schedule::Schedule> given = {};
  // Under kAnySchedule, the number of devices that compute concurrently, if they share the cores of
  // a machine; 0: all do.
  double cores = 0;
  int chunks = 0;         // stages per device; 0: the schedule's own number
  int micro_batches = 1;  // over all replicas
  int64_t micro_batch_rows = 1;
  Optimizer optimizer;  // its state takes memory
  DeviceSpec device;
  Exchange exchange = Exchange::kAuto;
  schedule::ResultsPlace results = schedule::ResultsPlace::kNowhere;  // ProfileOptions::results
  Recompute recompute = Recompute::kPlanned;
  double offload = 0.0;  // Plan::offload; not for a plan that only predicts

  int all_devices() const { return devices * tensor_parts * replication.replicas; }
};

// Returns the options of the profile that such a plan is made from.
ProfileOptions ProfileOptionsOf(const PlanOptions& options);

// Analyzes the model and cuts it into stages whose slowest one is fastest by the analytic cost
// model, at the speeds of the devices and within the memory of each; under kAnySchedule, into those
// of the fastest plan that partition::FindPlan finds or, if devices share cores, of the fastest of
// that and those of all named schedules. Errors: those of AnalyzeModel, CheckReplication, and
// partition::BalanceStages or FindPlan.
absl::StatusOr<PreparedRun> PrepareRun(const Model& model, const PlanOptions& options);
// Does the same for a model whose profile, with these options, is known.
absl::StatusOr<PreparedRun> PrepareRun(const Model& model, ModelProfile profile,
                                       const PlanOptions& options);

// Prepares a user's plan. Errors: those of AnalyzeModel and CompilePlan.
absl::StatusOr<PreparedRun> PrepareRun(const Model& model, GivenPlan given);
// Does the same for a model whose profile, with that optimizer and those devices, is known.
absl::StatusOr<PreparedRun> PrepareRun(const Model& model, ModelProfile profile, GivenPlan given);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_TRAIN_PREPARED_RUN_H_
