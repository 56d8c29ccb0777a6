#include "tools/stagecoach/plan/comparison.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "partition/evaluate/evaluate_plan.h"
#include "partition/io/plan_file.h"
#include "partition/plan/plan_evaluation.h"
#include "partition/search/heuristics.h"
#include "tools/stagecoach/values/flags.h"

namespace stagecoach::tools {
namespace {

using partition::ComparedPlan;
using partition::Plan;
using partition::PlanEvaluation;

bool IsPlanFile(const std::string& name) {
  return absl::EndsWithIgnoreCase(name, ".json") || base::IsStream(name);
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ParseCompared(const std::string& text) {
  std::vector<std::string> names = absl::StrSplit(text, ',');
  for (const std::string& name : names) {
    if (IsPlanFile(name)) continue;
    const absl::Status known = ParseChoice(name, partition::HeuristicNames()).status();
    if (!known.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(known.message(), ", or the .json file of a plan"));
    }
  }
  return names;
}

absl::StatusOr<ComparedPlan> Compare(const std::string& name, const PlanEvaluation& own,
                                     const PlanTask& task) {
  partition::PlannerRequest request = task.request;
  Plan plan;
  if (IsPlanFile(name)) {
    ASSIGN_OR_RETURN(partition::PlanFile file, partition::ReadPlanFile(name));
    plan = std::move(file.plan);
    if (plan.tensor_parts != own.tensor_parts) {
      const auto option = std::find_if(
          task.options.begin(), task.options.end(),
          [&](const partition::ModelOption& one) { return one.tensor_parts == plan.tensor_parts; });
      if (option == task.options.end()) {
        return absl::InvalidArgumentError(
            absl::StrCat(name, ": ", partition::Counted(plan.tensor_parts, "device"),
                         " of that plan share layers: compare it with --tensor ", plan.tensor_parts,
                         " or auto"));
      }
      request.profile = option->profile;
      request.cluster = option->cluster;
    }
    plan.tensor_parts = 1;  // the devices of the request are groups
  } else {
    ASSIGN_OR_RETURN(plan, CutByHeuristic(name, own.plan(), request.profile));
  }
  absl::StatusOr<PlanEvaluation> evaluation =
      EvaluatePlan(plan, request.profile, request.cluster, request.objective);
  if (!evaluation.ok()) {
    return base::Annotate(evaluation.status(), name);
  }
  const bool fits = CheckFits(*evaluation).ok();
  return ComparedPlan{name, *std::move(evaluation), fits};
}

}  // namespace stagecoach::tools
