#ifndef STAGECOACH_TOOLS_STAGECOACH_TRAIN_REPORT_H_
#define STAGECOACH_TOOLS_STAGECOACH_TRAIN_REPORT_H_

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>

#include "engine/data/dataset.h"
#include "engine/nn/loss.h"
#include "engine/session/training_observer.h"

namespace stagecoach::tools {

// How a report names tokens, other classes and numbers.
struct Measures {
  static Measures Of(const engine::Dataset& data, const engine::LossSpec& loss,
                     const engine::DataEncoding& encoding);

  int64_t tokens = 0;           // of a sample; 0: the data have none
  bool has_perplexity = false;  // the exponential of the loss, for tokens
  // For labels that are numbers, which have an RMSE in their own units instead of an accuracy, or,
  // if a sample has several, which have no unit in common, in standard deviations: 1. 0: they are
  // classes.
  double label_stddev = 0.0;

  bool has_rmse() const { return label_stddev > 0.0; }
  double Rmse(double loss) const { return std::sqrt(loss) * label_stddev; }
};

// How fast devices trained a model.
struct Speed {
  // `samples_per_second`: over all devices. `finds_peak`: of the devices, for `mfu`, which takes a
  // moment; a run of one process can.
  static Speed Of(const engine::TrainingRun& run, double samples_per_second, bool finds_peak);

  int devices = 1;              // of all replicas
  double flops_per_second = 0;  // of forward and backward passes, nothing repeated; 0: unknown
  // Model FLOPs utilization: the share of what matrix products can reach on these devices
  // (MatrixPeakFlops); 0: unknown.
  double mfu = 0;
};

struct ReportOptions {
  // Also tells of each device: its stages, memory and time; and how far they are from their peak.
  bool is_verbose = false;
  bool explains = false;        // also starts with ExplainStep
  int64_t log_every_steps = 0;  // interval of the steps that are reported; 0: none

  bool Logs(int64_t step) const { return log_every_steps > 0 && step % log_every_steps == 0; }
};

// Returns the size of the files in a folder, such as a checkpoint.
int64_t FolderBytes(const std::string& folder);

// For people: tables, and between their rows a progress bar if standard output is a terminal, and
// elsewhere a line at the pace of ProgressPace (bars.h), unless steps are told of anyway.
std::unique_ptr<engine::TrainingObserver> MakeTextReport(int epochs, const ReportOptions& options);

// For scripts: one JSON object a line (tools/stagecoach/train/run_events.h).
std::unique_ptr<engine::TrainingObserver> MakeJsonReport(const ReportOptions& options);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_TRAIN_REPORT_H_
