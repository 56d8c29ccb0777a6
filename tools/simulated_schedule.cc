#include "tools/simulated_schedule.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "schedule/automatic.h"
#include "schedule/generators.h"
#include "schedule/lowering.h"
#include "schedule/simulate.h"
#include "schedule/stash.h"
#include "schedule/validator.h"
#include "tools/exit_status.h"
#include "tools/schedule_option.h"
#include "tools/times_file.h"

namespace stagecoach::tools {
namespace {

using schedule::Costs;
using schedule::Placement;
using schedule::Schedule;

int64_t Nanoseconds(double ms) { return std::llround(1e6 * ms); }

absl::StatusOr<Costs> CostsOf(const ScheduleRequest& request,
                              const std::vector<schedule::Rank>& rank_of_stage) {
  if (request.times_file.empty()) {
    Costs costs = schedule::UniformCosts(rank_of_stage,
                                         {.forward_ns = Nanoseconds(request.forward_ms),
                                          .backward_input_ns = Nanoseconds(request.backward_ms),
                                          .backward_weight_ns = Nanoseconds(request.weight_ms)},
                                         Nanoseconds(request.latency_ms));
    costs.overlap_share = request.overlap;
    return costs;
  }
  ASSIGN_OR_RETURN(Costs costs, From(Origin::kData, ReadTimesFile(request.times_file)));
  if (costs.stages.size() == rank_of_stage.size()) return costs;
  return From(Origin::kConfiguration,
              absl::InvalidArgumentError(absl::StrCat(
                  request.times_file, ": gives the times of ", costs.stages.size(),
                  " stages, the schedule has ", rank_of_stage.size(), " (ranks x chunks)")));
}

// The fastest that the search finds over the placements which `request` allows.
absl::StatusOr<Schedule> SearchSchedule(const ScheduleRequest& request) {
  const int ranks = request.stages.value_or(ScheduleRequest::kDefaultStages);
  std::vector<std::pair<Placement, int>> placements;  // with the number of chunks
  int chunks = request.chunks;
  if (chunks == 0 && !request.times_file.empty()) {
    ASSIGN_OR_RETURN(const Costs costs, From(Origin::kData, ReadTimesFile(request.times_file)));
    chunks = static_cast<int>(costs.stages.size()) / ranks;
  }
  if (chunks == 0 || chunks == 1) placements.emplace_back(Placement::kLoop, 1);
  if (chunks == 0 || chunks == 2) placements.emplace_back(Placement::kV, 2);
  if (chunks >= 2) placements.emplace_back(Placement::kLoop, chunks);
  std::optional<std::tuple<int64_t, int64_t, Schedule>> best;
  for (const auto& [placement, v] : placements) {
    schedule::AutomaticRequest search{
        .ranks = ranks,
        .micro_batches = request.micro_batches.value_or(ScheduleRequest::kDefaultMicroBatches),
        .chunks = v,
        .placement = placement};
    ASSIGN_OR_RETURN(search.costs, CostsOf(request, PlaceStages(placement, ranks, v)));
    search.stash.assign(static_cast<size_t>(ranks * v),
                        {.forward = 1.0 / v, .weight = request.weight_stash / v});
    if (request.stash_limit.has_value()) {
      search.stash_limit.assign(static_cast<size_t>(ranks), *request.stash_limit);
    }
    ASSIGN_OR_RETURN(Schedule found, From(Origin::kConfiguration, schedule::Automatic(search)));
    ASSIGN_OR_RETURN(const schedule::Durations durations, SimulateDurations(found, search.costs));
    if (!best.has_value() || std::tie(durations.span_ns, durations.step_ns) <
                                 std::tie(std::get<0>(*best), std::get<1>(*best))) {
      best.emplace(durations.span_ns, durations.step_ns, std::move(found));
    }
  }
  return std::get<2>(*std::move(best));
}

absl::StatusOr<Schedule> AskedSchedule(const ScheduleRequest& request) {
  if (IsScheduleFile(request.schedule)) {
    return ReadScheduleOption(request.schedule, request.stages, request.micro_batches);
  }
  if (request.schedule == kAutomatic) return SearchSchedule(request);
  return From(
      Origin::kConfiguration,
      schedule::Generate(
          request.schedule,
          {.ranks = request.stages.value_or(ScheduleRequest::kDefaultStages),
           .micro_batches = request.micro_batches.value_or(ScheduleRequest::kDefaultMicroBatches),
           .chunks = request.chunks}));
}

}  // namespace

absl::StatusOr<SimulatedSchedule> FindSchedule(const ScheduleRequest& request) {
  SimulatedSchedule found;
  ASSIGN_OR_RETURN(found.as_given, AskedSchedule(request));
  ASSIGN_OR_RETURN(found.costs, CostsOf(request, found.as_given.rank_of_stage));
  found.lowered = found.as_given;
  if (!found.as_given.IsLowered()) {
    const bool reduces =
        std::any_of(found.costs.stages.begin(), found.costs.stages.end(),
                    [](const schedule::StageTimes& times) { return times.reduce_ns > 0; });
    ASSIGN_OR_RETURN(found.lowered, schedule::Lower(found.as_given, {.reduce_gradients = reduces}));
  }
  RETURN_IF_ERROR(schedule::Validate(found.lowered));
  return found;
}

}  // namespace stagecoach::tools
