#ifndef STAGECOACH_PARTITION_SEARCH_CUT_SEARCH_H_
#define STAGECOACH_PARTITION_SEARCH_CUT_SEARCH_H_

#include <cstdint>
#include <tuple>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "partition/evaluate/cut_evaluator.h"
#include "partition/exact/chain.h"
#include "partition/exact/recompute.h"
#include "partition/search/search_budget.h"

namespace stagecoach::partition {

// The measure of the slowest stage of a cut. It only leads the search to good cuts: plans are
// judged by their PlanObjective.
enum class StageMeasure : uint8_t {
  kBottleneck,  // its time for a batch
  // The same, plus the forward passes of the stages before it and their backward passes after it:
  // the step under 1F1B. In an equal pipeline, nothing is faster with fused backward passes.
  kFillAndDrain,
};

// Searches the cuts of a pipeline by PartitionChain over the exact peaks of its stages.
class CutSearch {
 public:
  // Layers that can repeat F within B do so if `may_recompute` and memory is short. If memory is
  // limited, Find ends with the status of the budget once that is reached, and Roomiest with the
  // best cut so far. Both must outlive the search.
  CutSearch(CutEvaluator& pipeline, bool may_recompute, SearchBudget& budget);

  // Finds the cut with the fastest slowest stage whose peaks are within the memory of every rank.
  // Exact if every rank has one stage, except for recomputation (is_exact). With several, a cut
  // that exceeds the memory is repaired by bounding what each stage may take, and a cut that would
  // fit can be missed. ResourceExhausted: none was found.
  absl::StatusOr<CutEvaluator::Cut> Find(StageMeasure measure);

  // Finds a cut quickly, from what layers take alone: room for everything else is left free on the
  // ranks that were too full, or on all ranks (`is_even`), a few times. ResourceExhausted: none was
  // found that fits, or the budget was reached.
  absl::StatusOr<std::vector<int>> Quick(StageMeasure measure, bool is_even);

  // Finds the cut whose stages, each alone on its device, have the least largest peak (as a share
  // of the device's memory if devices differ), to within 1 part in `precision`, by bisection.
  absl::StatusOr<CutEvaluator::Cut> Roomiest(int64_t precision = kToTheByte);

  // Returns true if every choice of layers to recompute was the best one so far
  // (FitOfRange::is_exact).
  bool is_exact() const { return is_exact_; }

  // Adds to a given cut the layers that must repeat F for it to fit, in least time if every rank
  // has one stage. ResourceExhausted: it does not fit.
  absl::StatusOr<CutEvaluator::Cut> WithRecomputation(std::vector<int> first_layer);

  static constexpr int64_t kToTheByte = int64_t{1} << 62;

 private:
  bool IsLimited(int rank) const {
    return pipeline_.devices_of(rank).memory_bytes != kUnlimitedBytes;
  }
  // Returns the memory of every limited rank if the largest of them had `bytes`.
  std::vector<int64_t> LimitsFor(int64_t bytes) const;
  // Returns by how much each rank is too full, at least; 0 or less: it may fit. Index: rank.
  std::vector<int64_t> ExcessAtLeast(absl::Span<const schedule::StageMemory> memory) const;
  // Returns the excess of a cut with all the recomputation that is allowed: none above 0 if it
  // fits.
  absl::StatusOr<std::vector<int64_t>> LeastExcess(const std::vector<int>& first_layer);
  absl::StatusOr<CutEvaluator::Cut> FastestWithin(const std::vector<int64_t>& limits);
  absl::StatusOr<CutEvaluator::Cut> Repair();
  // Returns the largest peak of a stage, alone on its limited rank, if each had as much as the
  // largest.
  absl::StatusOr<int64_t> LargestPeakAlone(const CutEvaluator::Cut& cut);
  // Fills in what PartitionChain knows of memory: lower bounds.
  void FillMemory(const std::vector<int64_t>& limits);
  // Returns what layers of the range must save by recomputation, at least, for it to fit, if it
  // cost nothing; see LeastRecomputation.
  int64_t LeastSavedBytes(const StageRange& range, int64_t limit_bytes);
  // Returns CutEvaluator::Memory without recomputation.
  schedule::StageMemory PlainMemory(const StageRange& range);
  const FitOfRange& FitOf(const std::vector<int64_t>& limits, int first, int last, int stage);
  ChainProblem ProblemFor(StageMeasure measure) const;

  CutEvaluator& pipeline_;
  const bool may_recompute_;
  SearchBudget& budget_;
  int64_t largest_memory_bytes_ = kUnlimitedBytes;  // of limited ranks; or there are none
  bool is_exact_ = true;
  ChainProblem problem_;
  absl::flat_hash_map<StageRange, FitOfRange> fits_;  // within the limits of one problem
  // The stages that begin with a layer, by what else they depend on (the first stage or not; B and
  // W apart or not): those that end with it, with the next one, and so on, as far as requested.
  absl::flat_hash_map<std::tuple<int, bool, bool>, std::vector<schedule::StageMemory>>
      plain_memory_;
};

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_SEARCH_CUT_SEARCH_H_
