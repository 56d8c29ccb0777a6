#ifndef STAGECOACH_PARTITION_IO_PLAN_FILE_H_
#define STAGECOACH_PARTITION_IO_PLAN_FILE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "partition/plan/plan.h"

namespace stagecoach::partition {

// A plan as a file that people read and edit (docs/planner.md):
//
//   {
//     "format": "stagecoach-plan",
//     "version": 1,
//     "model": "default",
//     "layers": 20,
//     "micro_batches": 8,
//     "micro_batch_rows": 16,
//     "schedule": "zb-h1",
//     "chunks": 1,
//     "stages": [
//       {"first_layer": 0, "last_layer": 9, "rank": 0},
//       {"first_layer": 10, "last_layer": 19, "rank": 1}
//     ]
//   }
//
// A generated schedule is its name and the number of stages per rank ("chunks"); for any other,
// "schedule" is the object of schedule/io/schedule_file.h, and there is no "chunks". Optional are
// "model", "parameter_bytes", "replicas" (1), "gradient_blocks" (as many as replicas),
// "shard_optimizer" (false), "reduction" ("tree"), "recomputed_layers", "offload" (0) and "order"
// (Plan), and "devices": the names of the plan's devices, in their order, if the cluster has others
// as well. "micro_batches" counts those of all replicas; the schedule is what each performs.
struct PlanFile {
  std::string model;  // the model that the plan was made for, for people
  Plan plan;
  int64_t parameter_bytes = 0;            // of that model's layers; 0: unknown
  std::vector<std::string> devices = {};  // their names in the cluster; empty: all, or the first

  friend bool operator==(const PlanFile&, const PlanFile&) = default;
};

// Reads a plan and proves that it can be performed: CheckPlan, and Validate of its lowered
// schedule. InvalidArgument names the line and column of a syntax error, otherwise the line and the
// path, such as $.stages[2].rank, what is wrong, and the allowed range or the nearest known key.
// ResourceExhausted: nested too deeply, or above 256 MiB. Safe on hostile input: memory is linear
// in the text, and a schedule referred to by its name has at most 2^22 stages x micro-batches.
absl::StatusOr<PlanFile> ParsePlanJson(absl::string_view text);

// Writes a plan, a line per stage: ParsePlanJson(ToPlanJson(file)) == file. Pre-condition:
// CheckPerformable(file.plan) is OK; names are UTF-8.
std::string ToPlanJson(const PlanFile& file);

// Reads a plan from a file. Errors start with the path: those above, and of base::ReadFile.
absl::StatusOr<PlanFile> ReadPlanFile(const std::string& path);

// Replaces or creates the file (base::WriteFileAtomically). InvalidArgument, FailedPrecondition:
// the plan cannot be performed.
absl::Status WritePlanFile(const std::string& path, const PlanFile& file);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_IO_PLAN_FILE_H_
