#ifndef STAGECOACH_TOOLS_CLI_COMPARISON_H_
#define STAGECOACH_TOOLS_CLI_COMPARISON_H_

#include <nlohmann/json_fwd.hpp>
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

// An object for each: name, objective_ms, step_ms, peak_bytes, fits, first_layers.
nlohmann::ordered_json ComparisonToJson(const std::vector<partition::ComparedPlan>& compared);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_CLI_COMPARISON_H_
