#ifndef STAGECOACH_TOOLS_CLI_COMPARISON_H_
#define STAGECOACH_TOOLS_CLI_COMPARISON_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "partition/plan/receipt.h"
#include "partition/report/receipt_report.h"
#include "partition/search/planner.h"

namespace stagecoach::tools {

// A list of names of heuristics (partition/search/heuristics.h) and paths of plan files (.json).
absl::StatusOr<std::vector<std::string>> ParseCompared(const std::string& text);

// A heuristic cuts what `own` has chosen otherwise. Errors are marked with their origin.
absl::StatusOr<partition::ComparedPlan> Compare(const std::string& name,
                                                const partition::Receipt& own,
                                                const partition::PlannerRequest& request);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_CLI_COMPARISON_H_
