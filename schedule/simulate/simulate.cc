#include "schedule/simulate/simulate.h"

#include <algorithm>
#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/parallel.h"
#include "base/status_macros.h"
#include "schedule/simulate/virtual_time.h"

namespace stagecoach::schedule {
namespace {

// A smaller simulation completes before a thread has started.
constexpr int64_t kLeastActionsForThreads = 200'000;

absl::Status CheckSends(const Schedule& schedule, Sends sends) {
  if (sends == Sends::kBuffered || schedule.IsLowered()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "a compute schedule says nothing about when messages are posted: call Lower first, or "
      "simulate it with buffered sends");
}

// Adds the peaks of memory, and what is stashed at each action of the trace if there is one.
absl::Status AddMemory(const Schedule& schedule, const Costs& costs, Simulation& simulation) {
  if (costs.memory.empty() || !schedule.IsLowered()) return absl::OkStatus();
  for (Rank rank(0); rank.value() < schedule.num_ranks(); ++rank) {
    ASSIGN_OR_RETURN(const MemoryPlan plan,
                     PlanMemory(schedule, rank, costs.memory, costs.collective_memory));
    RankTimes& times = simulation.ranks[static_cast<size_t>(rank.value())];
    times.peak_bytes = plan.peak_bytes();
    times.peak_stash_bytes = plan.peak_stash_bytes;
    times.host_bytes = plan.host_bytes();
    if (simulation.trace.actions.empty()) continue;
    std::vector<TimedAction>& list = simulation.trace.actions[static_cast<size_t>(rank.value())];
    for (size_t i = 0; i < list.size(); ++i) {
      if (!IsCompute(list[i].action.op)) continue;
      list[i].bytes = plan.stash_bytes_after[i];
      list[i].peak_stash_bytes = plan.stash_bytes_during[i];
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Simulation> Simulate(const Schedule& schedule, const Costs& costs,
                                    const SimulationOptions& options) {
  RETURN_IF_ERROR(CheckCosts(schedule, costs));
  RETURN_IF_ERROR(CheckSends(schedule, options.sends));
  Simulation simulation;
  // The same order with messages, copies, reductions and collectives that take no time shows what
  // is due to communication. It is never slower: under a fixed order, every start is a maximum of
  // sums of durations.
  Costs free_messages = costs;
  free_messages.links.clear();
  free_messages.collectives = {};
  if (!costs.host_link.occupies_rank) free_messages.host_link.link = {};
  for (StageTimes& times : free_messages.stages) times.reduce_ns = 0;
  int64_t least_step_ns = 0;
  const auto run = [&](VirtualTime& time) -> absl::Status {
    RETURN_IF_ERROR(time.Run(costs, options.keep_trace ? &simulation.trace : nullptr));
    simulation.step_ns = time.step_ns();
    simulation.ranks = time.ranks();
    return absl::OkStatus();
  };
  const auto run_free = [&](VirtualTime& time) -> absl::Status {
    RETURN_IF_ERROR(time.Run(free_messages, nullptr));
    least_step_ns = time.step_ns();
    return absl::OkStatus();
  };
  VirtualTime time(schedule, options.sends);
  if (schedule.num_actions() < kLeastActionsForThreads) {
    RETURN_IF_ERROR(run(time));
    RETURN_IF_ERROR(run_free(time));
  } else {
    VirtualTime free_time(schedule, options.sends);
    absl::Status status, free_status;
    base::ForEachInParallel(2, base::AvailableCpus(), [&](int64_t i) {
      if (i == 0) status = run(time);
      if (i == 1) free_status = run_free(free_time);
    });
    RETURN_IF_ERROR(status);
    RETURN_IF_ERROR(free_status);
  }

  int64_t busiest_ns = 0;
  double mean_busy_ns = 0.0;
  for (const RankTimes& rank : simulation.ranks) {
    busiest_ns = std::max(busiest_ns, rank.busy_ns);
    mean_busy_ns +=
        static_cast<double>(rank.busy_ns) / static_cast<double>(simulation.ranks.size());
    simulation.span_ns = std::max(simulation.span_ns, rank.span_ns());
  }
  for (RankTimes& rank : simulation.ranks) {
    rank.imbalance_ns = busiest_ns - rank.busy_ns;
    rank.dependency_ns = least_step_ns - busiest_ns;
    rank.communication_ns = simulation.step_ns - least_step_ns;
  }
  if (simulation.span_ns > 0) {
    simulation.bubble_rate = 1.0 - mean_busy_ns / static_cast<double>(simulation.span_ns);
  }
  RETURN_IF_ERROR(AddMemory(schedule, costs, simulation));
  return simulation;
}

absl::StatusOr<Durations> SimulateDurations(const Schedule& schedule, const Costs& costs,
                                            Sends sends) {
  RETURN_IF_ERROR(CheckCosts(schedule, costs));
  RETURN_IF_ERROR(CheckSends(schedule, sends));
  VirtualTime time(schedule, sends);
  RETURN_IF_ERROR(time.Run(costs, nullptr));
  Durations durations{.step_ns = time.step_ns(), .span_ns = 0};
  for (const RankTimes& rank : time.ranks()) {
    durations.span_ns = std::max(durations.span_ns, rank.span_ns());
  }
  return durations;
}

}  // namespace stagecoach::schedule
