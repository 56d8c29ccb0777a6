#ifndef STAGECOACH_SCHEDULE_TRACES_TRACE_DIFF_H_
#define STAGECOACH_SCHEDULE_TRACES_TRACE_DIFF_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "schedule/traces/trace.h"

namespace stagecoach::schedule {

// The uses of a rank's time during a step. Every ns belongs to exactly one of these.
enum class Cause : uint8_t {
  kForward,         // F
  kBackwardInput,   // B
  kBackwardWeight,  // W
  kBackward,        // BW
  kOverlapped,      // F and B meant to be performed together, whether they were or not
  kOfStage,         // STEP and NORM, also waiting for REDUCE; UNSHARD, RESHARD, RESULTS
  kActivations,     // an F has been reached and waits until it can start
  kGradients,       // the same of B or BW
  kSends,  // a send waits for the one before it, or keeps its rank until its message was taken; at
           // the end of the list, the rank waits for messages that were not taken
  kExecutor,  // the executor's own time, between one action and the next; and anything else that an
              // action waits for
  kTail,      // the rank is at the end of its list, the step is not
};
inline constexpr int kNumCauses = 11;

// Returns "F", "B", "W", "BW", "F+B", "step", "activations", "gradients", "sends", "executor" or
// "tail".
const char* CauseName(Cause cause);

// How a rank's step divides into causes; in a diff, how much longer each is. In ns.
class TimeSplit {
 public:
  int64_t& operator[](Cause cause) { return ns_[static_cast<size_t>(cause)]; }
  int64_t operator[](Cause cause) const { return ns_[static_cast<size_t>(cause)]; }
  int64_t compute_ns() const;  // the causes up to kOfStage
  int64_t sum_ns() const;      // all

  friend bool operator==(const TimeSplit&, const TimeSplit&) = default;

 private:
  std::array<int64_t, kNumCauses> ns_ = {};
};

// Splits each rank's step by cause. Index: rank. Every split sums to step_ns. Pre-condition: the
// trace passes CheckTrace.
std::vector<TimeSplit> SplitByCause(const Trace& trace);

// The contribution of one action to one cause.
struct DelayCause {
  Rank rank;
  size_t position = 0;  // in the rank's list
  Action action;
  Cause cause = Cause::kForward;
  int64_t simulated_ns = 0;
  int64_t measured_ns = 0;
  int64_t started_ns = 0;  // measured

  int64_t difference_ns() const { return measured_ns - simulated_ns; }
};

// An action that started at another time than simulated.
struct Divergence {
  Rank rank;
  size_t position = 0;
  Action action;
  int64_t simulated_ns = 0;  // its start
  int64_t measured_ns = 0;
};

// The departure of a measured run of a schedule from the simulated one. Differences are measured
// minus simulated.
struct TraceDiff {
  int64_t simulated_step_ns = 0;
  int64_t measured_step_ns = 0;
  // Means over the ranks, each rounded so that the causes still sum to the step exactly.
  TimeSplit simulated;
  TimeSplit measured;
  std::vector<TimeSplit> ranks;      // differences, each summing to that of the step; index: rank
  std::vector<DelayCause> most;      // largest differences first, earlier ones first among equals
  std::optional<Divergence> parted;  // among the actions whose start is off by more than 5 % of the
                                     // simulated step, the one simulated to start first

  int64_t difference_ns() const { return measured_step_ns - simulated_step_ns; }
  // These sum to difference_ns().
  int64_t difference_ns(Cause cause) const { return measured[cause] - simulated[cause]; }
};

// Compares two traces of the same schedule. InvalidArgument: one of them fails CheckTrace, or they
// differ in their stages, micro-batches or actions; names the first rank and position where they
// do. `num_most`: how many contributions to keep.
absl::StatusOr<TraceDiff> DiffTraces(const Trace& simulated, const Trace& measured,
                                     size_t num_most = 10);

// Times as people read them. The first column names what they belong to.
struct TimeTable {
  std::string unit;  // "ms"
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;
};

// Returns how much of its step a rank spends on each cause that occurs, as the mean over the ranks:
// simulated, measured, and the difference. The last row is their sum.
TimeTable CausesOf(const TraceDiff& diff);

// Returns how much of its step each rank spends on each operation, on all of them (busy), on
// waiting for messages (activations, gradients and sends), in the executor and at its tail, as far
// as they occur; and the share of the step in which it is not busy (idle). Pre-condition: the trace
// passes CheckTrace.
TimeTable RankTimesOf(const Trace& trace);

std::string ToText(const TimeTable& table);

// Returns tables for people, 80 columns wide unless their numbers need more.
std::string ToText(const TraceDiff& diff);

// Returns the whole diff, in ns.
nlohmann::ordered_json ToJson(const TraceDiff& diff);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_TRACES_TRACE_DIFF_H_
