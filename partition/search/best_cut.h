#ifndef STAGECOACH_PARTITION_SEARCH_BEST_CUT_H_
#define STAGECOACH_PARTITION_SEARCH_BEST_CUT_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "partition/evaluate/cut_evaluator.h"
#include "partition/plan/plan_evaluation.h"
#include "partition/search/search_budget.h"

namespace stagecoach::partition {

inline constexpr int64_t kMaxEnumeratedCuts = 2'000;
inline constexpr int64_t kMaxSimulatedActions = 3'000'000;

struct BestCutOptions {
  PlanObjective objective = PlanObjective::kStep;
  bool may_recompute = true;
  // Improve the cuts of CutSearch if there are too many to consider all.
  bool may_refine = true;
  // Consider only cuts that are found quickly (CutSearch::Quick): one that fits, or a few. kNo:
  // others as well.
  enum class Quick : uint8_t { kNo, kOne, kFew };
  Quick quick = Quick::kNo;
  std::vector<int> only_cut = {};  // first layers of the stages; empty: any
  // A cut to start from instead of those of CutSearch; empty: those.
  std::vector<int> start = {};
  // Limits with a given start: the most layers by which boundaries move at once, and the most
  // simulated actions.
  int longest_step = 1;
  int64_t most_actions = kMaxSimulatedActions;
};

struct BestCut {
  CutEvaluator::Cut cut;
  double objective_ns = 0;
  bool is_optimal = false;  // no cut of this pipeline is better
  bool is_final = false;    // may_refine would change nothing
  int simulated = 0;        // cuts whose objective was computed
};

// Finds the cut of a pipeline with the least objective among those that fit. All of them are
// considered if there are at most kMaxEnumeratedCuts, unless every rank has one stage and CutSearch
// finds none that fits: then none would be found to fit. With more cuts it starts from the cuts of
// CutSearch and moves single layers between neighboring stages, or along several, as long as that
// helps (always the best such move; at most kMaxSimulatedActions simulated actions). From a given
// start it takes the first move that helps, longer ones before shorter ones. If only one cut is
// allowed, returns that one, with as much recomputation as it needs. ResourceExhausted: none was
// found to fit. Once the budget is reached, returns the best so far, or the status of the budget if
// there is none.
absl::StatusOr<BestCut> FindBestCut(CutEvaluator& pipeline, const BestCutOptions& options,
                                    SearchBudget& budget);

// Counts the ways to cut `layers` into `stages` non-empty ranges; returns at most
// kMaxEnumeratedCuts + 1.
int64_t CountCuts(int layers, int stages);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_SEARCH_BEST_CUT_H_
