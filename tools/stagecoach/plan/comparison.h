#ifndef STAGECOACH_TOOLS_STAGECOACH_PLAN_COMPARISON_H_
#define STAGECOACH_TOOLS_STAGECOACH_PLAN_COMPARISON_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "partition/plan/plan_evaluation.h"
#include "partition/report/evaluation_report.h"
#include "partition/search/planner.h"

namespace stagecoach::tools {

// Parses a list of names of heuristics (partition/search/heuristics.h) and paths of plan files
// (.json).
absl::StatusOr<std::vector<std::string>> ParseCompared(const std::string& text);

// Returns the plan of that name. A heuristic divides the model of `own` differently.
absl::StatusOr<partition::ComparedPlan> Compare(const std::string& name,
                                                const partition::PlanEvaluation& own,
                                                const partition::PlannerRequest& request);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_PLAN_COMPARISON_H_
