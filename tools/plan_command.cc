#include "tools/plan_command.h"

#include <memory>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "schedule/generators.h"
#include "schedule/grid.h"
#include "tools/exit_status.h"
#include "tools/report.h"
#include "tools/run_options.h"

namespace stagecoach::tools {
namespace {

constexpr int kMaxGridRows = 16;
constexpr int kMaxGridPasses = 256;
constexpr int kGridColumns = 100;

absl::StatusOr<int> PrintPlan(const RunOptions& options) {
  ASSIGN_OR_RETURN(const Run run, PrepareRun(options));
  if (options.json) {
    absl::PrintF("%s\n", PlanToJson(run).dump());
    return kExitOk;
  }
  absl::PrintF("%s", DescribeRun(run));
  const int stages = run.plan.num_stages();
  if (stages <= kMaxGridRows && stages * run.plan.micro_batches <= kMaxGridPasses) {
    ASSIGN_OR_RETURN(
        const schedule::Schedule compute,
        schedule::Generate(run.plan.schedule,
                           {.ranks = stages, .micro_batches = run.plan.micro_batches}));
    absl::PrintF("\n%s", schedule::ToGrid(compute, {.max_columns = kGridColumns}));
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
