#include "partition/automatic_schedule.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "partition/stage_costs.h"
#include "schedule/automatic.h"
#include "schedule/generators.h"
#include "schedule/simulate.h"
#include "schedule/stash.h"

namespace stagecoach::partition {
namespace {

using schedule::Generator;
using schedule::Placement;
using schedule::Schedule;

// What a searched order leaves free of the stash limit, in turn until it fits: packing takes more
// than the sum of the blocks, and the cut changes with the order.
constexpr double kLimitShares[] = {1.0, 0.9, 0.75, 0.6, 0.45};

// The search among schedules of one number of devices.
class Search {
 public:
  Search(const PlanRequest& request, int micro_batches, int devices)
      : request_(request), micro_batches_(micro_batches) {
    request_.devices = devices;
  }

  // Considers the generated schedules and the searched ones of a placement.
  absl::Status Place(Placement placement, int chunks);

  // The best so far, or why there is none.
  absl::StatusOr<Schedule> Result() const;

 private:
  // The costs of a placement, from a cut that disregards memory.
  struct Setting {
    schedule::Costs costs;
    std::vector<schedule::StageStash> stash;
    std::vector<double> limit;  // of the stash; index: rank
  };

  absl::StatusOr<Setting> SettingOf(Placement placement, int chunks) const;
  // Cuts the model for the schedule, and keeps it if it fits and is the fastest. Returns whether it
  // fits.
  absl::StatusOr<bool> Consider(const Schedule& schedule);
  absl::Status ConsiderSearched(const Setting& setting, Placement placement, int chunks);

  PlanRequest request_;
  const int micro_batches_;
  std::optional<Schedule> best_;
  int64_t best_step_ns_ = 0;
};

ScheduleMaker Only(const Schedule& schedule) {
  return [schedule](int devices) -> absl::StatusOr<Schedule> {
    if (devices == schedule.num_ranks()) return schedule;
    return absl::InvalidArgumentError("made for another number of devices");
  };
}

// A generated schedule of that placement with B and W apart where there is one: those take memory
// of their own.
std::string LikeOf(Placement placement, int chunks) {
  if (placement == Placement::kV) return "zb-v";
  return chunks == 1 ? "zb-h1" : "looped-bfs";
}

absl::StatusOr<Search::Setting> Search::SettingOf(Placement placement, int chunks) const {
  PlanRequest request = request_;
  request.device_memory_bytes = 0;
  request.schedule = GeneratedSchedule(LikeOf(placement, chunks), micro_batches_, chunks);
  ASSIGN_OR_RETURN(const Plan plan, MakePlan(request));
  ASSIGN_OR_RETURN(const PlanReport report, ReportPlan(plan, request.layers, request.loss));
  Setting setting;
  setting.costs = StageCosts(report, request.layers);
  setting.stash = StashBytes(setting.costs.memory);
  std::vector<double> per_micro_batch(report.ranks.size(), 0.0);
  for (size_t stage = 0; stage < setting.stash.size(); ++stage) {
    per_micro_batch[static_cast<size_t>(report.stages[stage].rank.value())] +=
        setting.stash[stage].forward;
  }
  const double most = *std::max_element(per_micro_batch.begin(), per_micro_batch.end());
  for (const RankReport& rank : report.ranks) {
    const int64_t other_bytes = rank.training.peak_bytes() - rank.training.peak_stash_bytes;
    const auto room = static_cast<double>(request_.device_memory_bytes - other_bytes);
    setting.limit.push_back(request_.device_memory_bytes > 0
                                ? std::max(room, 0.0)
                                : most * static_cast<double>(report.ranks.size()));
  }
  return setting;
}

absl::StatusOr<bool> Search::Consider(const Schedule& schedule) {
  PlanRequest request = request_;
  request.schedule = Only(schedule);
  const absl::StatusOr<Plan> plan = MakePlan(request);
  if (absl::IsResourceExhausted(plan.status())) return false;
  RETURN_IF_ERROR(plan.status());
  ASSIGN_OR_RETURN(const PlanReport report, ReportPlan(*plan, request.layers, request.loss));
  const schedule::Costs costs = StageCosts(report, request.layers);
  ASSIGN_OR_RETURN(const Schedule lowered, LoweredSchedule(*plan));
  ASSIGN_OR_RETURN(const schedule::Durations durations,
                   SimulateDurations(lowered, costs, schedule::Sends::kRendezvous));
  if (!best_.has_value() || durations.step_ns < best_step_ns_) {
    best_ = schedule;
    best_->name = "auto";
    best_step_ns_ = durations.step_ns;
  }
  return true;
}

absl::Status Search::ConsiderSearched(const Setting& setting, Placement placement, int chunks) {
  schedule::AutomaticRequest search{.ranks = request_.devices,
                                    .micro_batches = micro_batches_,
                                    .chunks = chunks,
                                    .placement = placement,
                                    .costs = setting.costs,
                                    .stash = setting.stash,
                                    .stash_limit = setting.limit,
                                    .objective = schedule::Objective::kStep,
                                    .sends = schedule::Sends::kRendezvous};
  for (const double share : kLimitShares) {
    for (size_t r = 0; r < setting.limit.size(); ++r) {
      search.stash_limit[r] = share * setting.limit[r];
    }
    const absl::StatusOr<Schedule> found = schedule::Automatic(search);
    if (absl::IsResourceExhausted(found.status())) return absl::OkStatus();
    RETURN_IF_ERROR(found.status());
    ASSIGN_OR_RETURN(const bool fits, Consider(*found));
    if (fits) break;
  }
  return absl::OkStatus();
}

absl::Status Search::Place(Placement placement, int chunks) {
  ASSIGN_OR_RETURN(const Setting setting, SettingOf(placement, chunks));
  for (const Generator& generator : schedule::Generators()) {
    if (generator.placement != placement) continue;
    if (generator.chunks != chunks && !generator.any_chunks) continue;
    const absl::StatusOr<Schedule> schedule =
        generator.generate({request_.devices, micro_batches_, chunks});
    if (!schedule.ok()) continue;  // it refuses the shape
    if (request_.device_memory_bytes == 0 &&
        !CheckStash(*schedule, setting.stash, setting.limit).ok()) {
      continue;
    }
    RETURN_IF_ERROR(Consider(*schedule).status());
  }
  return ConsiderSearched(setting, placement, chunks);
}

absl::StatusOr<Schedule> Search::Result() const {
  if (best_.has_value()) return *best_;
  PlanRequest request = request_;
  request.schedule = GeneratedSchedule("1f1b", micro_batches_);
  RETURN_IF_ERROR(MakePlan(request).status());
  return absl::ResourceExhaustedError("schedule auto: no order was found to fit");
}

absl::StatusOr<Schedule> SearchAll(const PlanRequest& request, int micro_batches, int chunks,
                                   int devices) {
  if (chunks < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("schedule auto: needs at least 1 chunk per device, got ", chunks));
  }
  const bool has_layers_for_two = 2 * devices <= static_cast<int>(request.layers.size());
  const bool takes_two = chunks == 2 || (chunks == 0 && has_layers_for_two && devices > 1);
  Search search(request, micro_batches, devices);
  if (chunks <= 1) RETURN_IF_ERROR(search.Place(Placement::kLoop, 1));
  if (takes_two) RETURN_IF_ERROR(search.Place(Placement::kV, 2));
  if (takes_two) RETURN_IF_ERROR(search.Place(Placement::kLoop, 2));
  if (chunks > 2) RETURN_IF_ERROR(search.Place(Placement::kLoop, chunks));
  return search.Result();
}

}  // namespace

ScheduleMaker AutomaticSchedule(PlanRequest request, int micro_batches, int chunks) {
  return [request = std::move(request), micro_batches, chunks](int devices) {
    return SearchAll(request, micro_batches, chunks, devices);
  };
}

}  // namespace stagecoach::partition
