#ifndef STAGECOACH_PARTITION_SEARCH_BEST_CUT_H_
#define STAGECOACH_PARTITION_SEARCH_BEST_CUT_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "partition/plan/receipt.h"
#include "partition/search/cutoff.h"
#include "partition/search/pipeline.h"

namespace stagecoach::partition {

struct BestCutOptions {
  PlanObjective objective = PlanObjective::kStep;
  bool may_recompute = true;
  // Whether to improve the cuts of CutSearch where there are too many to consider all.
  bool may_refine = true;
  std::vector<int> only_cut = {};  // first layers of the stages; empty: any
};

struct BestCut {
  Pipeline::Cut cut;
  double objective_ns = 0;
  bool is_optimal = false;  // no cut of this pipeline is better
  bool is_final = false;    // may_refine would change nothing
  int simulated = 0;        // cuts whose objective was computed
};

// The cut of a pipeline with the least objective of those that fit. All of them are considered if
// there are at most kMaxEnumeratedCuts, unless every rank has one stage and CutSearch finds none
// that fits: then none would be found to fit. With more cuts it starts from the cuts of CutSearch
// and moves single layers between neighboring stages, or along several, as long as that helps
// (always the best such move; at most kMaxSimulatedActions simulated actions). If only one cut is
// allowed, it is that one, with as much recomputation as it needs. ResourceExhausted: none was
// found to fit. Once the cutoff is reached, it is the best so far, and if there is none, the status
// of the cutoff.
absl::StatusOr<BestCut> FindBestCut(Pipeline& pipeline, const BestCutOptions& options,
                                    Cutoff& cutoff);

// Ways to cut `layers` into `stages` non-empty ranges; returns at most kMaxEnumeratedCuts + 1.
int64_t CountCuts(int layers, int stages);

inline constexpr int64_t kMaxEnumeratedCuts = 2'000;
inline constexpr int64_t kMaxSimulatedActions = 3'000'000;

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_SEARCH_BEST_CUT_H_
