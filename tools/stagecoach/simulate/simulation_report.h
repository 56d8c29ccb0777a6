#ifndef STAGECOACH_TOOLS_STAGECOACH_SIMULATE_SIMULATION_REPORT_H_
#define STAGECOACH_TOOLS_STAGECOACH_SIMULATE_SIMULATION_REPORT_H_

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "schedule/render/timeline.h"
#include "tools/stagecoach/simulate/simulated_schedule.h"

namespace stagecoach::tools {

// The result of a simulation, for people and for programs.

// Returns {"schedule", "devices", "chunks" (of a device), "stages" (of all devices),
// "micro_batches", "step_ms", "span_ms", "bubble_rate", "ranks": [{"rank", "stages": [0, ...],
// "busy_ms", "idle_ms": {"dependency", "imbalance", "communication"}, "peak_stash"}]}, and
// "peak_stash_bytes" and "peak_bytes" per rank if sizes are known (KnowsSizes).
nlohmann::ordered_json ToJson(const SimulatedSchedule& simulated);

// Returns a title, a timeline, a table of the ranks, and the totals.
std::string ToText(const SimulatedSchedule& simulated, const schedule::TimelineOptions& timeline);

// Returns the share of the step that ranks are idle on average.
double IdleRate(const schedule::Simulation& simulation);

// Formats a time of the simulation for reports.
std::string FormatMs(int64_t ns);

// Returns whether peaks in bytes are known.
bool KnowsSizes(const SimulatedSchedule& simulated);

// Returns "1f1b: 4 devices, 8 micro-batches" or "zb-v: 2 devices, 2 chunks each, 8 micro-batches".
std::string Title(const SimulatedSchedule& simulated);

// Returns a page with the timeline, the totals, and the table of the ranks.
std::string ToHtml(const SimulatedSchedule& simulated);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_SIMULATE_SIMULATION_REPORT_H_
