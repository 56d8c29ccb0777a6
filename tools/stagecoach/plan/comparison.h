#ifndef STAGECOACH_TOOLS_STAGECOACH_PLAN_COMPARISON_H_
#define STAGECOACH_TOOLS_STAGECOACH_PLAN_COMPARISON_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "partition/plan/plan_evaluation.h"
#include "partition/report/evaluation_report.h"
#include "tools/stagecoach/plan/plan_request.h"

namespace stagecoach::tools {

// Parses a list of names of heuristics (partition/search/heuristics.h) and paths of plan files
// (.json).
absl::StatusOr<std::vector<std::string>> ParseCompared(const std::string& text);

// Returns the plan of that name. A heuristic divides the model of `own` differently, for the
// devices of the task's request. InvalidArgument: in a file's plan another number of devices share
// layers than in any option of the task.
absl::StatusOr<partition::ComparedPlan> Compare(const std::string& name,
                                                const partition::PlanEvaluation& own,
                                                const PlanTask& task);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_PLAN_COMPARISON_H_
