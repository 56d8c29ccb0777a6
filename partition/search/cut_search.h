#ifndef STAGECOACH_PARTITION_SEARCH_CUT_SEARCH_H_
#define STAGECOACH_PARTITION_SEARCH_CUT_SEARCH_H_

#include <cstdint>
#include <tuple>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "partition/exact/chain.h"
#include "partition/exact/recompute.h"
#include "partition/search/cutoff.h"
#include "partition/search/pipeline.h"

namespace stagecoach::partition {

// What the slowest stage of a cut is measured by. It only leads the search to good cuts: plans are
// judged by their PlanObjective.
enum class StageMeasure : uint8_t {
  kBottleneck,  // its time for a batch
  // The same, plus the forward passes of the stages before it and their backward passes after it:
  // what the step takes under 1F1B. In an equal pipeline, nothing is faster with fused backward
  // passes.
  kFillAndDrain,
};

// Searches the cuts of a pipeline by PartitionChain over the exact peaks of its stages.
class CutSearch {
 public:
  // Layers that can do F again within B do so where `may_recompute` and memory is short.
  // Where memory is limited, Find ends with the status of the cutoff once that is reached, and
  // Roomiest with the best cut so far. Both must outlive the search.
  CutSearch(Pipeline& pipeline, bool may_recompute, Cutoff& cutoff);

  // The cut with the fastest slowest stage whose peaks are within the memory of every rank. Exact
  // where every rank has one stage, but for recomputation (is_exact). With several, a cut that
  // exceeds the memory is repaired by bounding what each stage may take, and a cut that would fit
  // can be missed. ResourceExhausted: none was found.
  absl::StatusOr<Pipeline::Cut> Find(StageMeasure measure);

  // The cut whose stages, each alone on its device, have the least largest peak (as a share of the
  // device's memory where devices differ), to within 1 part in `precision`; found by bisection.
  absl::StatusOr<Pipeline::Cut> Roomiest(int64_t precision = kToTheByte);

  // Whether every choice of layers to recompute was the best one so far (FitOfRange::is_exact).
  bool is_exact() const { return is_exact_; }

  // The layers of a given cut that must do F again for it to fit, so that the time for it is least
  // where every rank has one stage. ResourceExhausted: it does not fit.
  absl::StatusOr<Pipeline::Cut> WithRecomputation(std::vector<int> first_layer);

  static constexpr int64_t kToTheByte = int64_t{1} << 62;

 private:
  bool IsLimited(int rank) const {
    return pipeline_.devices_of(rank).memory_bytes != kUnlimitedBytes;
  }
  // The memory of every limited rank if the largest of them had `bytes`.
  std::vector<int64_t> LimitsFor(int64_t bytes) const;
  absl::StatusOr<Pipeline::Cut> FastestWithin(const std::vector<int64_t>& limits);
  absl::StatusOr<Pipeline::Cut> Repair();
  // The largest peak of a stage, alone on its limited rank, if each had as much as the largest.
  absl::StatusOr<int64_t> LargestPeakAlone(const Pipeline::Cut& cut);
  // Fills what PartitionChain knows of memory: lower bounds.
  void FillMemory(const std::vector<int64_t>& limits);
  // What layers of the range must save by recomputation, at least, for it to fit, if it cost
  // nothing; see LeastRecomputation.
  int64_t LeastSavedBytes(const StageRange& range, int64_t limit_bytes);
  // Pipeline::Memory without recomputation.
  schedule::StageMemory PlainMemory(const StageRange& range);
  const FitOfRange& FitOf(const std::vector<int64_t>& limits, int first, int last, int stage);
  ChainProblem ProblemFor(StageMeasure measure) const;

  Pipeline& pipeline_;
  const bool may_recompute_;
  Cutoff& cutoff_;
  int64_t largest_memory_bytes_ = kUnlimitedBytes;  // of limited ranks; or there are none
  bool is_exact_ = true;
  ChainProblem problem_;
  absl::flat_hash_map<StageRange, FitOfRange> fits_;  // within the limits of one problem
  // Of the stages that begin with a layer, by what else it depends on (the first stage or not; B
  // and W apart or not): those that end with it, with the next one, and so on, as far as was asked.
  absl::flat_hash_map<std::tuple<int, bool, bool>, std::vector<schedule::StageMemory>>
      plain_memory_;
};

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_SEARCH_CUT_SEARCH_H_
