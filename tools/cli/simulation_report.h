#ifndef STAGECOACH_TOOLS_CLI_SIMULATION_REPORT_H_
#define STAGECOACH_TOOLS_CLI_SIMULATION_REPORT_H_

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "schedule/pictures/html.h"
#include "schedule/pictures/timeline.h"
#include "schedule/schedule.h"
#include "schedule/simulate.h"

namespace stagecoach::tools {

// What a simulation found, for people and for programs.
struct SimulationReport {
  const schedule::Schedule& schedule;
  const schedule::Simulation& simulation;
  std::vector<double> peak_stash;  // per rank, in what a device stashes of a micro-batch
};

// {"schedule", "stages" (ranks), "chunks" (per rank), "microbatches", "step_ms", "span_ms",
// "bubble_rate", "ranks": [{"busy_ms", "idle_ms": {"dependency", "imbalance", "communication"},
// "peak_stash"}]}, and "peak_bytes" per rank if sizes are known.
nlohmann::ordered_json ToJson(const SimulationReport& report);

// A title, a timeline, a table of the ranks, and the totals. Pre-condition:
// the simulation has its trace.
std::string ToText(const SimulationReport& report, const schedule::TimelineOptions& timeline);

// Title, facts and table of an HTML page.
schedule::PageText ToPageText(const SimulationReport& report);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_CLI_SIMULATION_REPORT_H_
