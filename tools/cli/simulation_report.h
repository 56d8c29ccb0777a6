#ifndef STAGECOACH_TOOLS_CLI_SIMULATION_REPORT_H_
#define STAGECOACH_TOOLS_CLI_SIMULATION_REPORT_H_

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "schedule/pictures/timeline.h"
#include "tools/cli/simulated_schedule.h"

namespace stagecoach::tools {

// What a simulation found, for people and for programs.

// {"schedule", "devices", "chunks" (of a device), "stages" (of all devices), "microbatches",
// "step_ms", "span_ms", "bubble_rate", "ranks": [{"rank", "stages": [0, ...], "busy_ms",
// "idle_ms": {"dependency", "imbalance", "communication"}, "peak_stash"}]}, and "peak_stash_bytes"
// and "peak_bytes" per rank if sizes are known (KnowsSizes).
nlohmann::ordered_json ToJson(const SimulatedSchedule& simulated);

// A title, a timeline, a table of the ranks, and the totals.
std::string ToText(const SimulatedSchedule& simulated, const schedule::TimelineOptions& timeline);

// Share of the step that ranks are idle on average.
double IdleRate(const schedule::Simulation& simulation);

// How reports write a time of the simulation.
std::string FormatMs(int64_t ns);

// Whether peaks in bytes are known.
bool KnowsSizes(const SimulatedSchedule& simulated);

// "1f1b: 4 devices, 8 micro-batches"; "zb-v: 2 devices, 2 chunks each, 8 micro-batches".
std::string Title(const SimulatedSchedule& simulated);

// A page with the timeline, the totals, and the table of the ranks.
std::string ToHtml(const SimulatedSchedule& simulated);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_CLI_SIMULATION_REPORT_H_
