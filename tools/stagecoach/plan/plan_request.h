#ifndef STAGECOACH_TOOLS_STAGECOACH_PLAN_PLAN_REQUEST_H_
#define STAGECOACH_TOOLS_STAGECOACH_PLAN_PLAN_REQUEST_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/session/run_config.h"
#include "partition/cost/model_option.h"
#include "partition/search/planner.h"
#include "tools/stagecoach/flags/cli11_fwd.h"

namespace stagecoach::tools {

// The request to `plan`, and what is fixed in it.
struct PlanFlags {
  // Data, model, optimizer and devices. If the profile is a file, nothing but the exchange between
  // devices is read.
  engine::RunConfig run;

  std::string profile = "analytic";  // or "measured", or a file
  std::string format;                // of the file; "": recognized by its extension

  std::optional<int> devices;  // unset: engine::kDefaultStages, or those of the cluster
  std::string cluster;         // a file; "": equal devices whose links take no time
  int64_t device_memory_bytes = 0;

  std::string schedule = partition::kAnySchedule;  // name, "auto" or file
  std::optional<int> chunks, micro_batches;        // unset: searched
  std::optional<int> tensor_parts = 1;             // unset: searched
  std::optional<int64_t> batch;
  std::optional<int> replicas = 1;     // unset: searched
  std::optional<int> gradient_blocks;  // unset: as many as replicas
  bool shards_optimizer = false;
  partition::ReductionKind reduction = partition::ReductionKind::kTree;
  std::optional<double> offload = 0.0;  // Plan::offload; unset: searched
  bool offloads_optimizer = false;
  std::string recompute = "auto";  // if memory is short; or "none" or "full"
  partition::PlanObjective objective = partition::PlanObjective::kStep;
  bool uses_all_devices = false;  // even if fewer would be faster
};

// Adds all of these flags. `flags` must outlive the parse.
void AddPlanRequestFlags(CLI::App& app, PlanFlags& flags);

// The task of the planner. The request has the profile and cluster of the first option.
struct PlanTask {
  partition::PlannerRequest request;
  std::vector<partition::ModelOption> options;  // one, unless a transformer leaves more open
};

// Reads the files, and profiles the model if there is one.
absl::StatusOr<PlanTask> MakePlanTask(const PlanFlags& flags);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_PLAN_PLAN_REQUEST_H_
