#ifndef STAGECOACH_TOOLS_CLI_REPORT_H_
#define STAGECOACH_TOOLS_CLI_REPORT_H_

#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "engine/data/dataset.h"
#include "engine/model/loss.h"
#include "engine/train/fit.h"
#include "engine/train/trainer.h"
#include "tools/cli/run_options.h"
#include "tools/cli/stop_condition.h"

namespace stagecoach::tools {

// What a report says of tokens, of other classes and of numbers.
struct Measures {
  static Measures Of(const engine::Dataset& data, const engine::LossSpec& loss,
                     const engine::DataEncoding& encoding);

  int64_t tokens = 0;           // of a row; 0: the data has none
  bool has_perplexity = false;  // the exponential of the loss, of tokens
  // Of labels that are numbers, which have an RMSE in their own units in place of an accuracy; 0:
  // they are classes.
  double label_stddev = 0.0;

  bool has_rmse() const { return label_stddev > 0.0; }
  double Rmse(double loss) const { return std::sqrt(loss) * label_stddev; }
};

// How a run ended.
struct Outcome {
  engine::FitResult fit;
  std::optional<StopCondition> stop_when;
  std::string parameters_hash;
  std::vector<engine::DeviceReport> devices;
  absl::Duration elapsed;  // training and evaluation
};

// Tells the user about a run, on standard output, as it goes.
class Report {
 public:
  virtual ~Report() = default;
  virtual void Start(const Run& run) = 0;
  virtual void Step(const engine::FitProgress& progress) = 0;
  virtual void Epoch(const engine::EpochResult& result) = 0;
  // Within an epoch.
  virtual void Evaluation(const engine::EpochResult& result) = 0;
  // It goes on from a checkpoint.
  virtual void Resumed(const engine::RestoredCheckpoint& checkpoint) = 0;
  // It goes on with what other replicas have, after a process was lost.
  virtual void WentOn(int64_t steps, int epoch) = 0;
  virtual void Saved(const engine::SaveReport& save) = 0;
  virtual void End(const Run& run, const Outcome& outcome) = 0;
};

struct ReportOptions {
  bool explains = false;        // starts with ExplainStep, too
  int64_t log_every_steps = 0;  // tells of these steps; 0: of none

  bool Logs(int64_t step) const { return log_every_steps > 0 && step % log_every_steps == 0; }
};

// For people: tables, and between their rows a progress bar if standard output is a terminal, and
// elsewhere a line at the pace of ProgressPace (bars.h), unless steps are told of anyway.
std::unique_ptr<Report> MakeTextReport(int epochs, const ReportOptions& options);

// For scripts: one JSON object a line (tools/cli/run_events.h).
std::unique_ptr<Report> MakeJsonReport(const ReportOptions& options);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_CLI_REPORT_H_
