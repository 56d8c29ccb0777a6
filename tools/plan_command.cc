#include "tools/plan_command.h"

#include <memory>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "schedule/pictures/timeline.h"
#include "schedule/simulate.h"
#include "tools/exit_status.h"
#include "tools/report.h"
#include "tools/run_options.h"
#include "tools/terminal.h"

namespace stagecoach::tools {
namespace {

constexpr int kMaxTimelineRows = 64;

absl::StatusOr<int> PrintPlan(const RunOptions& options) {
  ASSIGN_OR_RETURN(const Run run, PrepareRun(options));
  if (options.json) {
    absl::PrintF("%s\n", PlanToJson(run).dump());
    return kExitOk;
  }
  absl::PrintF("%s", DescribeRun(run));
  if (run.plan.num_devices() <= kMaxTimelineRows) {
    ASSIGN_OR_RETURN(const schedule::Schedule lowered, LoweredSchedule(run.plan));
    ASSIGN_OR_RETURN(
        const schedule::Simulation simulation,
        schedule::Simulate(lowered, run.costs,
                           {.sends = schedule::Sends::kRendezvous, .keep_trace = true}));
    absl::PrintF("\none step, simulated with the times of the profile\n%s",
                 schedule::ToTimeline(simulation.trace, TerminalTimeline()));
  }
  return kExitOk;
}

}  // namespace

Command AddPlanCommand(CLI::App& app) {
  CLI::App* flags = app.add_subcommand("plan", "Show how a model is cut over devices");
  const auto options = std::make_shared<RunOptions>();
  AddPlanFlags(*flags, *options);
  return {flags, [options] { return PrintPlan(*options); }};
}

}  // namespace stagecoach::tools
