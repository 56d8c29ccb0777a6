// MakePlan of partition/plan.h: the search for a cut that fits, and the message if there is none.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "partition/chain.h"
#include "partition/plan.h"
#include "partition/stage_peaks.h"

namespace stagecoach::partition {
namespace {

absl::Status CheckRequest(const PlanRequest& request) {
  const int layers = static_cast<int>(request.layers.size());
  if (request.stages < 1 || request.micro_batches < 1 || request.micro_batch_rows < 1) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "cannot plan %d stages and %d micro-batches of %d rows: expected at least 1 of each",
        request.stages, request.micro_batches, request.micro_batch_rows));
  }
  if (request.stages > layers) {
    return absl::InvalidArgumentError(
        absl::StrFormat("cannot cut %d layers into %d stages: use at most %d stages", layers,
                        request.stages, layers));
  }
  if (request.device_memory_bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("device memory is %d bytes: expected a size, or 0 for no limit",
                        request.device_memory_bytes));
  }
  return CheckLayers(request.layers);
}

Plan PlanOf(const PlanRequest& request, std::vector<int> first_layer) {
  return {.first_layer = std::move(first_layer),
          .num_layers = static_cast<int>(request.layers.size()),
          .schedule = request.schedule,
          .micro_batches = request.micro_batches,
          .micro_batch_rows = request.micro_batch_rows};
}

// Searches the cuts of a model into a given number of stages.
class CutSearch {
 public:
  // `request` must outlive the search; its own number of stages is not read.
  static absl::StatusOr<CutSearch> Create(const PlanRequest& request, int stages) {
    // The schedule depends on the number of stages alone, so any cut serves to get it.
    std::vector<int> first_layer(stages);
    for (int stage = 0; stage < stages; ++stage) first_layer[stage] = stage;
    ASSIGN_OR_RETURN(schedule::Schedule lowered,
                     LoweredSchedule(PlanOf(request, std::move(first_layer))));
    return CutSearch(request, stages, std::move(lowered));
  }

  // The cut with the fastest slowest stage among those whose peaks are all within `budget_bytes`;
  // ResourceExhausted if there is none.
  absl::StatusOr<std::vector<int>> Fastest(int64_t budget_bytes) {
    problem_.fits = [this, budget_bytes](int first, int last, int stage) {
      return peaks_.AtLeast({first, last, stage}) <= budget_bytes;
    };
    // Bounds admit every cut that fits and perhaps some that do not. Each of those leaves an exact
    // peak behind that rules it out next time, so the first cut that passes is the best that fits.
    while (true) {
      ASSIGN_OR_RETURN(ChainCut cut, PartitionChain(problem_));
      ASSIGN_OR_RETURN(const int64_t peak_bytes, LargestPeak(cut.first_layer));
      if (peak_bytes <= budget_bytes) return std::move(cut.first_layer);
    }
  }

  // The cut whose largest peak is least, found by bisection. `too_small_bytes`: a budget that no
  // cut is within.
  absl::StatusOr<std::vector<int>> Roomiest(int64_t too_small_bytes) {
    ASSIGN_OR_RETURN(std::vector<int> cut, Fastest(std::numeric_limits<int64_t>::max()));
    ASSIGN_OR_RETURN(int64_t enough_bytes, LargestPeak(cut));
    while (enough_bytes - too_small_bytes > 1) {
      const int64_t budget_bytes = too_small_bytes + (enough_bytes - too_small_bytes) / 2;
      absl::StatusOr<std::vector<int>> smaller = Fastest(budget_bytes);
      if (absl::IsResourceExhausted(smaller.status())) {
        too_small_bytes = budget_bytes;
        continue;
      }
      RETURN_IF_ERROR(smaller.status());
      cut = *std::move(smaller);
      ASSIGN_OR_RETURN(enough_bytes, LargestPeak(cut));
    }
    return cut;
  }

 private:
  CutSearch(const PlanRequest& request, int stages, schedule::Schedule lowered)
      : peaks_(request.layers, request.loss, std::move(lowered)) {
    problem_.stages = stages;
    for (const LayerCost& layer : request.layers) {
      problem_.layer_ns.push_back(layer.batch_ns(request.micro_batches));
    }
  }

  absl::StatusOr<int64_t> LargestPeak(const std::vector<int>& first_layer) {
    int64_t largest_bytes = 0;
    int last = static_cast<int>(problem_.layer_ns.size()) - 1;
    for (int stage = problem_.stages - 1; stage >= 0; --stage) {
      const int first = first_layer[stage];
      ASSIGN_OR_RETURN(const int64_t peak_bytes, peaks_.PeakBytes({first, last, stage}));
      largest_bytes = std::max(largest_bytes, peak_bytes);
      last = first - 1;
    }
    return largest_bytes;
  }

  ChainProblem problem_;
  StagePeaks peaks_;
};

// 0 if no number of stages fits. More stages need not need less: they also keep more micro-batches
// in flight. So all numbers are tried.
absl::StatusOr<int> SmallestFit(const PlanRequest& request) {
  for (int stages = 1; stages <= static_cast<int>(request.layers.size()); ++stages) {
    absl::StatusOr<CutSearch> search = CutSearch::Create(request, stages);
    if (absl::IsInvalidArgument(search.status())) continue;  // the schedule refuses this shape
    RETURN_IF_ERROR(search.status());
    const absl::Status found = search->Fastest(request.device_memory_bytes).status();
    if (found.ok()) return stages;
    if (!absl::IsResourceExhausted(found)) return found;
  }
  return 0;
}

absl::Status DoesNotFit(const PlanRequest& request, CutSearch& search) {
  ASSIGN_OR_RETURN(std::vector<int> cut, search.Roomiest(request.device_memory_bytes));
  ASSIGN_OR_RETURN(const std::vector<StageReport> reports,
                   ReportPlan(PlanOf(request, std::move(cut)), request.layers, request.loss));
  const auto largest = std::max_element(
      reports.begin(), reports.end(), [](const StageReport& a, const StageReport& b) {
        return a.memory_plan.peak_bytes() < b.memory_plan.peak_bytes();
      });
  const int64_t peak_bytes = largest->memory_plan.peak_bytes();
  std::string needed = base::FormatBytes(peak_bytes);
  std::string available = base::FormatBytes(request.device_memory_bytes);
  if (needed == available) {  // rounding hides what is missing
    needed = absl::StrCat(base::FormatCount(peak_bytes), " bytes");
    available = absl::StrCat(base::FormatCount(request.device_memory_bytes), " bytes");
  }
  ASSIGN_OR_RETURN(const int smallest, SmallestFit(request));
  const std::string advice =
      smallest > 0 ? absl::StrCat("the smallest number of stages that fits is ", smallest)
                   : "no number of stages fits: use smaller micro-batches or more memory";
  return absl::ResourceExhaustedError(absl::StrFormat(
      "the model does not fit: stage %d (layers %d-%d) needs %s, device memory is %s; %s\n%s",
      largest - reports.begin(), largest->first_layer, largest->last_layer, needed, available,
      advice, PlanTable(reports)));
}

}  // namespace

absl::StatusOr<Plan> MakePlan(const PlanRequest& request) {
  RETURN_IF_ERROR(CheckRequest(request));
  ASSIGN_OR_RETURN(CutSearch search, CutSearch::Create(request, request.stages));
  const int64_t budget_bytes = request.device_memory_bytes > 0
                                   ? request.device_memory_bytes
                                   : std::numeric_limits<int64_t>::max();
  absl::StatusOr<std::vector<int>> cut = search.Fastest(budget_bytes);
  if (absl::IsResourceExhausted(cut.status())) return DoesNotFit(request, search);
  RETURN_IF_ERROR(cut.status());
  return PlanOf(request, *std::move(cut));
}

}  // namespace stagecoach::partition
