#ifndef STAGECOACH_SCHEDULE_SIMULATE_SIMULATE_H_
#define STAGECOACH_SCHEDULE_SIMULATE_SIMULATE_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "schedule/ir/schedule.h"
#include "schedule/simulate/costs.h"
#include "schedule/traces/trace.h"

namespace stagecoach::schedule {

// How messages pass in a simulation: as the runtime performs transfers (SendsOf), or as published
// tables or other runtimes assume.
enum class Sends : uint8_t {
  // A message leaves as soon as it is made, takes its link's time, and keeps no rank busy: what the
  // published tables assume, and what a receiver with room for everything achieves.
  kBuffered,
  // The runtime's way: a message passes once its send and its receive are posted, and at most one
  // per lane is outstanding (schedule.h); the ranks continue meanwhile.
  kRendezvous,
  // Like kRendezvous, but the sender continues only once its message has passed, and a rank only
  // once its REDUCE is done.
  kBlocking,
  // Messages pass as Transfers::kGrouped says (schedule.h): in groups, on a separate stream. A
  // message takes its link's time from when the groups of both its ends have started and the one
  // before it in its group, if that is between the same ranks, has passed.
  kGrouped,
};
// Returns how to lower the transfers of a schedule that is to be simulated with such sends.
constexpr Transfers TransfersOf(Sends sends) {
  return sends == Sends::kGrouped ? Transfers::kGrouped : Transfers::kSeparate;
}
// Returns how the runtime sends if it performs transfers this way.
constexpr Sends SendsOf(Transfers transfers) {
  return transfers == Transfers::kGrouped ? Sends::kGrouped : Sends::kRendezvous;
}

struct SimulationOptions {
  Sends sends = Sends::kBuffered;
  bool keep_trace = false;
};

// One rank's share of a step. busy_ns and the three kinds of idle time sum to the step exactly.
struct RankTimes {
  int64_t busy_ns = 0;   // in compute actions and step, and in copies that occupy the rank
  int64_t start_ns = 0;  // of its first action that takes time
  int64_t end_ns = 0;    // of its last
  // The rank is idle because
  int64_t imbalance_ns = 0;  // other ranks have more to do: the busiest one's busy_ns minus its own
  int64_t dependency_ns = 0;     // of the order: what the step would take beyond the busiest rank's
                                 // time if messages took none
  int64_t communication_ns = 0;  // messages, copies, reductions and collectives take time: the step
                                 // minus what it would take if they took none
  // The memory planner's results (memory_plan.h); 0 if the costs have no sizes.
  int64_t peak_bytes = 0;
  int64_t peak_stash_bytes = 0;
  int64_t host_bytes = 0;

  int64_t idle_ns() const { return imbalance_ns + dependency_ns + communication_ns; }
  int64_t span_ns() const { return end_ns - start_ns; }
};

struct Simulation {
  int64_t step_ns = 0;  // until the last rank is done
  int64_t span_ns = 0;  // largest span of a rank: the "cost" of the published tables
  // Share of the span that ranks are idle on average: 1 - (mean busy_ns) / span_ns. On equal ranks
  // this is the published (cost - m (F + B + W)) / cost.
  double bubble_rate = 0.0;
  std::vector<RankTimes> ranks;
  Trace trace;  // empty unless requested
};

// Performs a schedule in virtual time, every action as early as the order of its rank, its inputs
// and the rules of its sends allow. Exact: integer ns throughout, and the same schedule and costs
// always yield the same result. Linear in the number of actions.
//
// Accepts lowered schedules, and compute schedules under kBuffered sends (their messages then leave
// at the end of the action that makes them). InvalidArgument: errors of CheckCosts; a compute
// schedule under other sends. FailedPrecondition, naming the ranks that cannot continue, if the
// schedule never finishes: pass it to Validate first, which says why.
absl::StatusOr<Simulation> Simulate(const Schedule& schedule, const Costs& costs,
                                    const SimulationOptions& options = {});

// The two durations alone, at a quarter of the price, for searches.
struct Durations {
  int64_t step_ns = 0;
  int64_t span_ns = 0;
};
absl::StatusOr<Durations> SimulateDurations(const Schedule& schedule, const Costs& costs,
                                            Sends sends = Sends::kBuffered);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_SIMULATE_SIMULATE_H_
