// MakePlan of partition/plan.h: the search for a cut that fits, and the message if there is none.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "partition/chain.h"
#include "partition/plan.h"
#include "partition/stage_peaks.h"

namespace stagecoach::partition {
namespace {

// The limits that a repair tries between one that is too loose and one that fits.
constexpr int kRepairSteps = 12;

absl::Status CheckRequest(const PlanRequest& request) {
  STAGECOACH_CHECK(request.schedule != nullptr, "a request needs a schedule");
  if (request.devices < 1 || request.micro_batch_rows < 1) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "cannot plan %d devices and micro-batches of %d rows: expected at least 1 of each",
        request.devices, request.micro_batch_rows));
  }
  if (request.device_memory_bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("device memory is %d bytes: expected a size, or 0 for no limit",
                        request.device_memory_bytes));
  }
  return CheckLayers(request.layers);
}

// Searches the cuts of a model over a given number of devices.
class CutSearch {
 public:
  // `request` must outlive the search; its own number of devices is not read.
  static absl::StatusOr<CutSearch> Create(const PlanRequest& request, int devices) {
    // The lowered schedules depend on the schedule alone, so any cut serves to get them: here, one
    // layer per stage.
    Plan plan = {.micro_batch_rows = request.micro_batch_rows};
    ASSIGN_OR_RETURN(plan.schedule, request.schedule(devices));
    plan.num_layers = plan.schedule.num_stages();
    for (int stage = 0; stage < plan.num_layers; ++stage) plan.first_layer.push_back(stage);
    const int layers = static_cast<int>(request.layers.size());
    if (plan.num_stages() > layers) {
      return absl::InvalidArgumentError(
          absl::StrFormat("cannot cut %d layers into %d stages: use at most %d stages", layers,
                          plan.num_stages(), layers));
    }
    ASSIGN_OR_RETURN(schedule::Schedule training, LoweredSchedule(plan));
    ASSIGN_OR_RETURN(schedule::Schedule evaluation, LoweredEvaluation(plan));
    return CutSearch(request, std::move(plan), std::move(training), std::move(evaluation));
  }

  bool has_one_stage_per_device() const { return plan_.num_stages() == plan_.num_devices(); }

  Plan PlanOf(std::vector<int> first_layer) const {
    Plan plan = plan_;
    plan.first_layer = std::move(first_layer);
    plan.num_layers = num_layers();
    return plan;
  }

  // The cut with the fastest slowest stage among those that are found to be within `budget_bytes`;
  // ResourceExhausted if there is none.
  absl::StatusOr<std::vector<int>> Find(int64_t budget_bytes) {
    ASSIGN_OR_RETURN(std::vector<int> cut, FastestWithin(budget_bytes));
    if (has_one_stage_per_device()) return cut;
    ASSIGN_OR_RETURN(const int64_t peak_bytes, LargestPeak(cut));
    return peak_bytes <= budget_bytes ? cut : Repair(budget_bytes);
  }

  // The cut whose stages, each alone on its device, have the least largest peak; found by
  // bisection.
  absl::StatusOr<std::vector<int>> Roomiest() {
    ASSIGN_OR_RETURN(std::vector<int> cut, FastestWithin(std::numeric_limits<int64_t>::max()));
    ASSIGN_OR_RETURN(int64_t enough_bytes, LargestPeakAlone(cut));
    int64_t too_small_bytes = -1;
    while (enough_bytes - too_small_bytes > 1) {
      const int64_t limit_bytes = too_small_bytes + (enough_bytes - too_small_bytes) / 2;
      absl::StatusOr<std::vector<int>> smaller = FastestWithin(limit_bytes);
      if (absl::IsResourceExhausted(smaller.status())) {
        too_small_bytes = limit_bytes;
        continue;
      }
      RETURN_IF_ERROR(smaller.status());
      cut = *std::move(smaller);
      ASSIGN_OR_RETURN(enough_bytes, LargestPeakAlone(cut));
    }
    return cut;
  }

 private:
  CutSearch(const PlanRequest& request, Plan plan, schedule::Schedule training,
            schedule::Schedule evaluation)
      : plan_(std::move(plan)),
        peaks_(request.layers, request.loss, std::move(training), std::move(evaluation)) {
    problem_.stages = plan_.num_stages();
    for (const LayerCost& layer : request.layers) {
      problem_.layer_ns.push_back(layer.batch_ns(plan_.micro_batches()));
    }
  }

  int num_layers() const { return static_cast<int>(problem_.layer_ns.size()); }

  // The cut with the fastest slowest stage among those whose stages, each alone on its device, peak
  // within `limit_bytes`; ResourceExhausted if there is none.
  absl::StatusOr<std::vector<int>> FastestWithin(int64_t limit_bytes) {
    problem_.fits = [this, limit_bytes](int first, int last, int stage) {
      return peaks_.AtLeast({first, last, stage}) <= limit_bytes;
    };
    // Bounds admit every cut that fits and perhaps some that do not. Each of those leaves an exact
    // peak behind that rules it out next time, so the first cut that passes is the best that fits.
    while (true) {
      ASSIGN_OR_RETURN(ChainCut cut, PartitionChain(problem_));
      ASSIGN_OR_RETURN(const int64_t peak_bytes, LargestPeakAlone(cut.first_layer));
      if (peak_bytes <= limit_bytes) return std::move(cut.first_layer);
    }
  }

  // For devices with several stages, which are within the budget alone but not together: the
  // tighter the limit of each, the more even is what devices take, and the slower the cut. Finds
  // about the loosest limit at which the devices fit.
  absl::StatusOr<std::vector<int>> Repair(int64_t budget_bytes) {
    ASSIGN_OR_RETURN(std::vector<int> fitting, Roomiest());
    ASSIGN_OR_RETURN(const int64_t least_bytes, LargestPeak(fitting));
    if (least_bytes > budget_bytes) return absl::ResourceExhaustedError("no cut was found to fit");
    ASSIGN_OR_RETURN(int64_t tight_bytes, LargestPeakAlone(fitting));
    int64_t loose_bytes = budget_bytes;
    for (int step = 0; step < kRepairSteps; ++step) {
      const int64_t limit_bytes = tight_bytes + (loose_bytes - tight_bytes) / 2;
      ASSIGN_OR_RETURN(std::vector<int> cut, FastestWithin(limit_bytes));
      ASSIGN_OR_RETURN(const int64_t peak_bytes, LargestPeak(cut));
      if (peak_bytes > budget_bytes) {
        loose_bytes = limit_bytes;
      } else {
        tight_bytes = limit_bytes;
        fitting = std::move(cut);
      }
    }
    return fitting;
  }

  std::vector<StageRange> RangesOf(const std::vector<int>& first_layer) const {
    std::vector<StageRange> ranges;
    const Plan plan = PlanOf(first_layer);
    for (int stage = 0; stage < plan.num_stages(); ++stage) {
      ranges.push_back({plan.first(stage), plan.last(stage), stage});
    }
    return ranges;
  }

  absl::StatusOr<int64_t> LargestPeak(const std::vector<int>& first_layer) {
    return peaks_.LargestPeakBytes(RangesOf(first_layer));
  }

  absl::StatusOr<int64_t> LargestPeakAlone(const std::vector<int>& first_layer) {
    int64_t largest_bytes = 0;
    for (const StageRange& range : RangesOf(first_layer)) {
      ASSIGN_OR_RETURN(const int64_t peak_bytes, peaks_.PeakBytes(range));
      largest_bytes = std::max(largest_bytes, peak_bytes);
    }
    return largest_bytes;
  }

  Plan plan_;  // of one layer per stage
  ChainProblem problem_;
  StagePeaks peaks_;
};

// 0 if no number of devices fits. More devices need not need less: they also keep more
// micro-batches in flight. So all numbers are tried.
absl::StatusOr<int> SmallestFit(const PlanRequest& request) {
  for (int devices = 1; devices <= static_cast<int>(request.layers.size()); ++devices) {
    absl::StatusOr<CutSearch> search = CutSearch::Create(request, devices);
    if (absl::IsInvalidArgument(search.status())) continue;  // the schedule refuses this shape
    RETURN_IF_ERROR(search.status());
    const absl::Status found = search->Find(request.device_memory_bytes).status();
    if (found.ok()) return devices;
    if (!absl::IsResourceExhausted(found)) return found;
  }
  return 0;
}

// "stage 2 (layers 4-5)", or for devices with several stages "device 0 (stages 0, 7 with layers
// 0-3, 20-23)".
std::string Describe(const PlanReport& report, schedule::Rank rank, bool has_one_stage_per_device) {
  const std::vector<schedule::StageId>& stages = report.of(rank).stages;
  const std::string layers =
      absl::StrJoin(stages, ", ", [&](std::string* text, schedule::StageId id) {
        absl::StrAppend(text, report.of(id).first_layer, "-", report.of(id).last_layer);
      });
  if (has_one_stage_per_device) {
    return absl::StrCat("stage ", stages[0].value(), " (layers ", layers, ")");
  }
  const std::string ids = absl::StrJoin(stages, ", ", [](std::string* text, schedule::StageId id) {
    absl::StrAppend(text, id.value());
  });
  return absl::StrCat("device ", rank.value(), " (stages ", ids, " with layers ", layers, ")");
}

absl::Status DoesNotFit(const PlanRequest& request, CutSearch& search) {
  ASSIGN_OR_RETURN(std::vector<int> cut, search.Roomiest());
  ASSIGN_OR_RETURN(const PlanReport report,
                   ReportPlan(search.PlanOf(std::move(cut)), request.layers, request.loss));
  const auto largest = std::max_element(
      report.ranks.begin(), report.ranks.end(),
      [](const RankReport& a, const RankReport& b) { return a.peak_bytes() < b.peak_bytes(); });
  const int64_t peak_bytes = largest->peak_bytes();
  std::string needed = base::FormatBytes(peak_bytes);
  std::string available = base::FormatBytes(request.device_memory_bytes);
  if (needed == available) {  // rounding hides what is missing
    needed = absl::StrCat(base::FormatCount(peak_bytes), " bytes");
    available = absl::StrCat(base::FormatCount(request.device_memory_bytes), " bytes");
  }
  ASSIGN_OR_RETURN(const int smallest, SmallestFit(request));
  const char* const unit = search.has_one_stage_per_device() ? "stages" : "devices";
  const std::string advice =
      smallest > 0
          ? absl::StrCat("the smallest number of ", unit, " that fits is ", smallest)
          : absl::StrCat("no number of ", unit, " fits: use smaller micro-batches or more memory");
  const schedule::Rank rank(static_cast<int32_t>(largest - report.ranks.begin()));
  return absl::ResourceExhaustedError(
      absl::StrFormat("the model does not fit: %s needs %s, device memory is %s; %s\n%s",
                      Describe(report, rank, search.has_one_stage_per_device()), needed, available,
                      advice, PlanTable(report)));
}

}  // namespace

absl::StatusOr<Plan> MakePlan(const PlanRequest& request) {
  RETURN_IF_ERROR(CheckRequest(request));
  ASSIGN_OR_RETURN(CutSearch search, CutSearch::Create(request, request.devices));
  const int64_t budget_bytes = request.device_memory_bytes > 0
                                   ? request.device_memory_bytes
                                   : std::numeric_limits<int64_t>::max();
  absl::StatusOr<std::vector<int>> cut = search.Find(budget_bytes);
  if (absl::IsResourceExhausted(cut.status())) return DoesNotFit(request, search);
  RETURN_IF_ERROR(cut.status());
  return search.PlanOf(*std::move(cut));
}

}  // namespace stagecoach::partition
