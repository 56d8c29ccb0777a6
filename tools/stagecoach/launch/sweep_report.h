#ifndef STAGECOACH_TOOLS_STAGECOACH_LAUNCH_SWEEP_REPORT_H_
#define STAGECOACH_TOOLS_STAGECOACH_LAUNCH_SWEEP_REPORT_H_

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "tools/stagecoach/launch/sweep_grid.h"

namespace stagecoach::tools {

// The result of one run of a sweep.
struct SweptRun {
  SweptValues values;
  int status = 0;       // that it ended with
  std::string failure;  // its last line on stderr, if the status is not 0
  // Those of its last evaluation: "loss", "test_accuracy", ...
  std::vector<std::pair<std::string, double>> metrics;
  double seconds = 0;

  std::optional<double> ValueOf(absl::string_view metric) const;
};

// Reads what `train --json` prints: fills in `metrics`. They stay empty if it was not evaluated.
void ReadMetrics(const std::string& output, SweptRun& run);

// Runs that differ in their seeds alone; without seeds, each run is one.
struct SweptGroup {
  std::vector<const SweptRun*> runs;  // that ended well

  // Over the runs that have the metric; nullopt: none has.
  std::optional<double> Mean(absl::string_view metric) const;
  // Of the sample (n - 1); nullopt: there are fewer than two.
  std::optional<double> Deviation(absl::string_view metric) const;
};

// Returns the groups, in the order of their first runs. Those without a run that ended well are
// left out. `runs` outlives them.
std::vector<SweptGroup> GroupOverSeeds(absl::Span<const SweptFlag> flags,
                                       absl::Span<const SweptRun> runs);

// Returns the group whose mean of the metric is best; null: none has it.
const SweptGroup* BestOf(absl::Span<const SweptGroup> groups, const std::string& metric);

// Returns the table of all runs; if seeds are swept, a table with the mean and the deviation of
// each group; and a line with the best by `metric`.
std::string SweepText(absl::Span<const SweptFlag> flags, absl::Span<const SweptRun> runs,
                      const std::string& metric);

// Return the events of `--json`.
nlohmann::ordered_json RunToJson(absl::Span<const SweptFlag> flags, const SweptRun& run);
nlohmann::ordered_json SweepToJson(absl::Span<const SweptFlag> flags,
                                   absl::Span<const SweptRun> runs, const std::string& metric);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_LAUNCH_SWEEP_REPORT_H_
