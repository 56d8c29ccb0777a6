#include "partition/search/heuristics.h"

#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/text/nearest.h"
#include "partition/exact/chain.h"

namespace stagecoach::partition {
namespace {

std::vector<int> Uniform(int layers, int stages) {
  std::vector<int> first_layer;
  for (int stage = 0, first = 0; stage < stages; ++stage) {
    first_layer.push_back(first);
    first += layers / stages + (stage < layers % stages ? 1 : 0);
  }
  return first_layer;
}

}  // namespace

std::vector<std::string> HeuristicNames() { return {"uniform", "parameters", "flops"}; }

absl::StatusOr<Plan> CutByHeuristic(absl::string_view name, const Plan& like,
                                    const Profile& profile) {
  Plan plan = like;
  plan.recomputed.clear();
  if (name == "uniform") {
    plan.first_layer = Uniform(plan.num_layers, plan.num_stages());
    return plan;
  }
  if (name != "parameters" && name != "flops") {
    const std::vector<std::string> known = HeuristicNames();
    const std::string nearest = base::Nearest(name, known);
    return absl::InvalidArgumentError(
        absl::StrCat("unknown heuristic ", name, ": expected one of ", absl::StrJoin(known, ", "),
                     nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?")));
  }
  ChainProblem problem;
  problem.stages = plan.num_stages();
  double sum = 0;
  for (int i = 0; i < plan.num_layers; ++i) {
    const int index = plan.order.empty() ? i : plan.order[static_cast<size_t>(i)];
    const LayerCost& layer = profile.sizes.front().layers[static_cast<size_t>(index)];
    problem.layer_ns.push_back(name == "flops" ? layer.flops
                                               : static_cast<double>(layer.parameters));
    sum += problem.layer_ns.back();
  }
  if (sum == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("heuristic ", name, ": the profile has no ", name, " for any layer"));
  }
  ASSIGN_OR_RETURN(ChainCut cut, PartitionChain(problem));
  plan.first_layer = std::move(cut.first_layer);
  return plan;
}

}  // namespace stagecoach::partition
