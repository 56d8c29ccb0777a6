#include "tools/stagecoach/simulate/simulated_schedule.h"

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "schedule/generators/generators.h"
#include "schedule/io/asked_schedule.h"
#include "schedule/io/schedule_file.h"
#include "schedule/memory/stash.h"
#include "schedule/search/automatic.h"
#include "schedule/simulate/simulate.h"
#include "schedule/transforms/host_copies.h"
#include "schedule/transforms/lowering.h"
#include "schedule/verify/validator.h"
#include "tools/stagecoach/simulate/times_file.h"
#include "tools/stagecoach/values/schedule_option.h"

namespace stagecoach::tools {
namespace {

using schedule::Costs;
using schedule::OrderObjective;
using schedule::Placement;
using schedule::Schedule;

absl::Status Misconfigured(const std::string& message) {
  return absl::InvalidArgumentError(message);
}

// Finds the schedule and its costs, and performs it; reads the times file once.
class Finder {
 public:
  explicit Finder(const ScheduleRequest& request)
      : request_(request),
        ranks_(request.stages.value_or(ScheduleRequest::kDefaultStages)),
        micro_batches_(request.micro_batches.value_or(ScheduleRequest::kDefaultMicroBatches)) {}

  absl::StatusOr<SimulatedSchedule> Find();

 private:
  struct Placed {
    Placement placement;
    int chunks;
  };
  struct Found {
    int64_t objective_ns;
    int64_t other_ns;    // breaks ties
    bool has_no_bubble;  // nothing can be faster
    Schedule schedule;
  };

  absl::StatusOr<Costs> CostsOf(const std::vector<schedule::Rank>& rank_of_stage) const;
  absl::StatusOr<Schedule> AskedSchedule() const;
  std::vector<Placed> PlacementsToSearch() const;
  absl::StatusOr<Schedule> SearchAll() const;
  absl::StatusOr<Found> Search(const Placed& placed) const;
  absl::Status CheckLimit(const Schedule& schedule) const;
  OrderObjective objective() const { return request_.objective.value_or(OrderObjective::kStep); }

  const ScheduleRequest& request_;
  const int ranks_;
  const int micro_batches_;
  std::optional<Costs> times_;  // of the times file, if there is one
};

absl::StatusOr<Costs> Finder::CostsOf(const std::vector<schedule::Rank>& rank_of_stage) const {
  if (times_.has_value()) {
    if (times_->stages.size() == rank_of_stage.size()) return *times_;
    return Misconfigured(absl::StrCat(request_.times_file, ": gives the times of ",
                                      times_->stages.size(), " stages, the schedule has ",
                                      rank_of_stage.size(), " (ranks x chunks)"));
  }
  Costs costs = schedule::UniformCosts(rank_of_stage,
                                       {.forward_ns = Nanoseconds(request_.forward_ms),
                                        .backward_input_ns = Nanoseconds(request_.backward_ms),
                                        .backward_weight_ns = Nanoseconds(request_.weight_ms)},
                                       Nanoseconds(request_.latency_ms));
  costs.overlap_share = request_.overlap;
  // A byte for each ns, on a link that takes as long.
  costs.host_link.link.bytes_per_second = 1e9;
  const schedule::Costs copies =
      schedule::UniformCosts(rank_of_stage, {.forward_ns = Nanoseconds(request_.host_copy_ms)}, 0);
  for (size_t stage = 0; stage < costs.stages.size(); ++stage) {
    costs.stages[stage].host_copy_bytes = copies.stages[stage].forward_ns;
  }
  return costs;
}

std::vector<Finder::Placed> Finder::PlacementsToSearch() const {
  int chunks = request_.chunks;
  if (chunks == 0 && times_.has_value()) {
    chunks = std::max(1, static_cast<int>(times_->stages.size()) / ranks_);
  }
  std::vector<Placed> placements;
  // A V comes first: among schedules whose span has no bubble, its step is the shortest.
  const bool takes_two = chunks == 0 || chunks == 2;
  if (takes_two) placements.push_back({Placement::kV, 2});
  if (chunks <= 1) placements.push_back({Placement::kLoop, 1});
  if (takes_two) placements.push_back({Placement::kLoop, 2});
  if (chunks > 2) placements.push_back({Placement::kLoop, chunks});
  return placements;
}

absl::StatusOr<Finder::Found> Finder::Search(const Placed& placed) const {
  // The check precedes anything of that size.
  const double passes = static_cast<double>(ranks_) * placed.chunks * micro_batches_;
  if (ranks_ * passes > static_cast<double>(schedule::kMaxSearched)) {
    return Misconfigured(absl::StrCat("schedule auto: ", ranks_, " ranks x ", placed.chunks,
                                      " chunks x ", micro_batches_,
                                      " micro-batches are too many to search"));
  }
  schedule::AutomaticRequest search{.ranks = ranks_,
                                    .micro_batches = micro_batches_,
                                    .chunks = placed.chunks,
                                    .placement = placed.placement,
                                    .objective = objective(),
                                    .sends = request_.sends};
  const std::vector<schedule::Rank> rank_of_stage =
      PlaceStages(placed.placement, ranks_, placed.chunks);
  ASSIGN_OR_RETURN(search.costs, CostsOf(rank_of_stage));
  search.stash = schedule::UnitStash(rank_of_stage, request_.weight_stash);
  if (request_.stash_limit.has_value()) {
    search.stash_limit.assign(static_cast<size_t>(ranks_), *request_.stash_limit);
  }
  ASSIGN_OR_RETURN(Schedule found, schedule::Automatic(search));
  ASSIGN_OR_RETURN(const Schedule lowered,
                   schedule::Lower(found, {.transfers = TransfersOf(request_.sends)}));
  ASSIGN_OR_RETURN(const schedule::Simulation simulation,
                   schedule::Simulate(lowered, search.costs, {.sends = request_.sends}));
  int64_t busiest_ns = 0;
  for (const schedule::RankTimes& rank : simulation.ranks) {
    busiest_ns = std::max(busiest_ns, rank.busy_ns);
  }
  const auto [objective_ns, other_ns] = objective() == OrderObjective::kStep
                                            ? std::pair(simulation.step_ns, simulation.span_ns)
                                            : std::pair(simulation.span_ns, simulation.step_ns);
  return Found{objective_ns, other_ns, objective_ns == busiest_ns, std::move(found)};
}

// Returns the fastest over the placements that the request allows. One that is too large or does
// not fit is skipped if another is not.
absl::StatusOr<Schedule> Finder::SearchAll() const {
  absl::StatusOr<Found> best = absl::InternalError("no placement was searched");
  absl::Status first_error;
  for (const Placed& placed : PlacementsToSearch()) {
    absl::StatusOr<Found> found = Search(placed);
    first_error.Update(found.status());
    if (!found.ok()) continue;
    if (!best.ok() || std::tie(found->objective_ns, found->other_ns) <
                          std::tie(best->objective_ns, best->other_ns)) {
      best = std::move(found);
    }
    if (best->has_no_bubble) break;
  }
  if (!best.ok()) return first_error;
  return std::move(best->schedule);
}

absl::StatusOr<Schedule> Finder::AskedSchedule() const {
  if (schedule::IsScheduleFile(request_.schedule)) {
    return schedule::ReadAskedSchedule(request_.schedule, {.stages = request_.stages,
                                                           .micro_batches = request_.micro_batches,
                                                           .chunks = request_.chunks});
  }
  if (request_.schedule == kAutomatic) return SearchAll();
  return schedule::Generate(
      request_.schedule,
      {.ranks = ranks_, .micro_batches = micro_batches_, .chunks = request_.chunks});
}

absl::Status Finder::CheckLimit(const Schedule& schedule) const {
  if (!request_.stash_limit.has_value()) return absl::OkStatus();
  const std::vector<double> limit(schedule.actions.size(), *request_.stash_limit);
  return CheckStash(schedule, schedule::UnitStash(schedule.rank_of_stage, request_.weight_stash),
                    limit);
}

absl::StatusOr<SimulatedSchedule> Finder::Find() {
  if (request_.objective.has_value() && request_.schedule != kAutomatic) {
    return base::UsageError(absl::StrCat("--objective is what --schedule auto minimizes; schedule ",
                                         request_.schedule, " is performed as it is"));
  }
  if (!request_.times_file.empty()) {
    ASSIGN_OR_RETURN(times_, ReadTimesFile(request_.times_file));
  }
  SimulatedSchedule found;
  ASSIGN_OR_RETURN(found.as_given, AskedSchedule());
  ASSIGN_OR_RETURN(const Costs costs, CostsOf(found.as_given.rank_of_stage));
  found.lowered = found.as_given;
  if (!found.as_given.IsLowered()) {
    const bool reduces =
        std::any_of(costs.stages.begin(), costs.stages.end(),
                    [](const schedule::StageTimes& times) { return times.reduce_ns > 0; });
    ASSIGN_OR_RETURN(found.lowered,
                     schedule::Lower(found.as_given, {.reduce_gradients = reduces,
                                                      .offload = request_.offload,
                                                      .transfers = TransfersOf(request_.sends)}));
  } else {
    AddHostCopies(request_.offload, found.lowered);
  }
  RETURN_IF_ERROR(schedule::Validate(found.lowered, TransfersOf(request_.sends)));
  RETURN_IF_ERROR(CheckLimit(found.lowered));
  ASSIGN_OR_RETURN(
      found.simulation,
      schedule::Simulate(found.lowered, costs, {.sends = request_.sends, .keep_trace = true}));
  found.unit_stash = schedule::UnitStash(found.as_given.rank_of_stage, request_.weight_stash);
  found.peak_stash = PeakStash(found.lowered, found.unit_stash);
  return found;
}

}  // namespace

absl::StatusOr<SimulatedSchedule> SimulateSchedule(const ScheduleRequest& request) {
  return Finder(request).Find();
}

}  // namespace stagecoach::tools
