#ifndef STAGECOACH_TOOLS_COMPARISON_H_
#define STAGECOACH_TOOLS_COMPARISON_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "partition/planner.h"
#include "partition/receipt.h"

namespace stagecoach::tools {

// Another plan for the same model and devices, judged as the planner's own.
struct ComparedPlan {
  std::string name;  // of a heuristic, or the path of a plan file
  partition::Receipt receipt;
  bool fits = true;
};

// A list of names of heuristics (partition/heuristics.h) and paths of plan files (.json).
absl::StatusOr<std::vector<std::string>> ParseCompared(const std::string& text);

// A heuristic cuts what `own` has chosen otherwise. Errors are marked with their origin.
absl::StatusOr<ComparedPlan> Compare(const std::string& name, const partition::Receipt& own,
                                     const partition::PlannerRequest& request);

// A row for the receipt's own plan, then one for each.
std::string ComparisonTable(const partition::Receipt& own,
                            const std::vector<ComparedPlan>& compared);

// An object for each: name, objective_ms, step_ms, peak_bytes, fits, first_layers.
nlohmann::ordered_json ComparisonToJson(const std::vector<ComparedPlan>& compared);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_COMPARISON_H_
