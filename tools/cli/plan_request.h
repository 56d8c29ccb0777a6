#ifndef STAGECOACH_TOOLS_CLI_PLAN_REQUEST_H_
#define STAGECOACH_TOOLS_CLI_PLAN_REQUEST_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "partition/model_option.h"
#include "partition/search/planner.h"
#include "tools/cli/cli11_fwd.h"
#include "tools/cli/run_options.h"

namespace stagecoach::tools {

// What `plan` is asked to plan, and what of it is settled.
struct PlanFlags {
  // Data, model, optimizer and devices. If the profile is a file, nothing but the exchange between
  // devices is read.
  RunOptions run;

  std::string profile = "analytic";  // or "measured", or a file
  std::string format;                // of the file; "": known by its ending

  std::optional<int> devices;  // unset: kDefaultStages, or those of the cluster
  std::string cluster;         // a file; "": equal devices whose links take no time
  int64_t device_memory_bytes = 0;

  std::string schedule = partition::kAnySchedule;  // name, "auto" or file
  std::optional<int> chunks, micro_batches;        // unset: searched
  std::optional<int64_t> batch;
  std::optional<int> replicas = 1;     // unset: searched
  std::optional<int> gradient_blocks;  // unset: as many as replicas
  bool shards_optimizer = false;
  partition::ReductionKind reduction = partition::ReductionKind::kTree;
  std::string recompute = "auto";  // where memory is short; or "none" or "full"
  partition::PlanObjective objective = partition::PlanObjective::kStep;
};

// Adds all flags of the above. `flags` must outlive the parse.
void AddPlanRequestFlags(CLI::App& app, PlanFlags& flags);

// What is to be planned. The request has the profile and cluster of the first option.
struct PlanTask {
  partition::PlannerRequest request;
  std::vector<partition::ModelOption> options;  // one, unless a transformer leaves more open
};

// Reads the files, and profiles the model if there is one. Errors are marked with their origin
// (exit_status.h).
absl::StatusOr<PlanTask> MakePlanTask(const PlanFlags& flags);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_CLI_PLAN_REQUEST_H_
