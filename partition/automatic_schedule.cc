#include "partition/automatic_schedule.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "partition/stage_costs.h"
#include "schedule/automatic.h"
#include "schedule/simulate.h"

namespace stagecoach::partition {
namespace {

using schedule::Placement;
using schedule::Schedule;

struct Found {
  Schedule schedule;
  int64_t step_ns = 0;
};

// What each device may stash: what is left of its memory beside everything else, or, without a
// limit, what 1F1B's first device stashes.
std::vector<double> StashLimit(const PlanReport& report,
                               const std::vector<schedule::StageStash>& stash,
                               int64_t device_memory_bytes) {
  std::vector<double> limit(report.ranks.size(), 0.0);
  if (device_memory_bytes > 0) {
    for (size_t r = 0; r < limit.size(); ++r) {
      const schedule::MemoryPlan& plan = report.ranks[r].training;
      limit[r] =
          static_cast<double>(device_memory_bytes - plan.peak_bytes() + plan.peak_stash_bytes);
    }
    return limit;
  }
  double per_device = 0.0;
  for (size_t r = 0; r < limit.size(); ++r) {
    double own = 0.0;
    for (size_t stage = 0; stage < stash.size(); ++stage) {
      if (report.stages[stage].rank.value() == static_cast<int>(r)) own += stash[stage].forward;
    }
    per_device = std::max(per_device, own);
  }
  std::fill(limit.begin(), limit.end(), per_device * static_cast<double>(limit.size()));
  return limit;
}

// `like`: a generated schedule of that placement with B and W apart, by which the model is cut.
absl::StatusOr<Found> Search(const PlanRequest& base, const std::string& like, Placement placement,
                             int chunks, int devices, int micro_batches) {
  PlanRequest request = base;
  request.devices = devices;
  request.device_memory_bytes = 0;
  request.schedule = GeneratedSchedule(like, micro_batches);
  ASSIGN_OR_RETURN(const Plan plan, MakePlan(request));
  ASSIGN_OR_RETURN(const PlanReport report, ReportPlan(plan, request.layers, request.loss));
  schedule::AutomaticRequest search{.ranks = devices,
                                    .micro_batches = micro_batches,
                                    .chunks = chunks,
                                    .placement = placement,
                                    .objective = schedule::Objective::kStep};
  ASSIGN_OR_RETURN(search.costs, StageCosts(plan, request.layers, request.loss));
  search.stash = StashBytes(search.costs.memory);
  search.stash_limit = StashLimit(report, search.stash, base.device_memory_bytes);
  Found found;
  ASSIGN_OR_RETURN(found.schedule, schedule::Automatic(search));
  ASSIGN_OR_RETURN(const schedule::Durations durations,
                   SimulateDurations(found.schedule, search.costs));
  found.step_ns = durations.step_ns;
  return found;
}

absl::StatusOr<Schedule> SearchAll(const PlanRequest& request, int micro_batches, int chunks,
                                   int devices) {
  if (chunks < 0 || chunks > 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("schedule auto: searches orders with 1 or 2 chunks per device, not ", chunks));
  }
  const bool has_layers_for_two = 2 * devices <= static_cast<int>(request.layers.size());
  absl::StatusOr<Found> best = absl::InvalidArgumentError("nothing was searched");
  if (chunks != 2) best = Search(request, "zb-h1", Placement::kLoop, 1, devices, micro_batches);
  if (chunks == 2 || (chunks == 0 && has_layers_for_two && devices > 1)) {
    absl::StatusOr<Found> found = Search(request, "zb-v", Placement::kV, 2, devices, micro_batches);
    // One of them may not fit into the memory.
    if (!best.ok() || (found.ok() && found->step_ns < best->step_ns)) best = std::move(found);
  }
  RETURN_IF_ERROR(best.status());
  return std::move(best->schedule);
}

}  // namespace

ScheduleMaker AutomaticSchedule(PlanRequest request, int micro_batches, int chunks) {
  return [request = std::move(request), micro_batches, chunks](int devices) {
    return SearchAll(request, micro_batches, chunks, devices);
  };
}

}  // namespace stagecoach::partition
