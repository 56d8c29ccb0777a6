#ifndef STAGECOACH_TOOLS_STAGECOACH_TRAIN_RUN_PAGE_H_
#define STAGECOACH_TOOLS_STAGECOACH_TRAIN_RUN_PAGE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "engine/session/training_observer.h"
#include "partition/report/evaluation_report.h"
#include "tools/stagecoach/train/report.h"
#include "tools/stagecoach/train/run_history.h"
#include "tools/stagecoach/train/run_log.h"

namespace stagecoach::tools {

// A page about a run: how it goes, its devices, its plan, and what was to note. It needs a browser
// and nothing from elsewhere, and is written anew, each time as a whole, at each evaluation, every
// few seconds between them, and at the end. For one thread.
class RunPage final : public RunLog {
 public:
  struct Options {
    std::string path;
    std::string metrics;  // the file of the events of a run that resumes; "": there is none
    Measures measures;
    int64_t steps = 0;  // of the whole run
  };
  RunPage(Options options, const engine::RunConfig& config, const engine::TrainingRun& run);

  void Step(const engine::FitProgress& progress) override;
  void Epoch(const engine::EpochResult& result) override;
  void Evaluation(const engine::EpochResult& result) override;
  const absl::Status& status() const override { return status_; }

  // Adds a line to the notes.
  void Note(const std::string& text);
  void Saved(const std::string& checkpoint, int64_t bytes);
  void End(const engine::TrainingOutcome& outcome);
  // The run has ended before its end.
  void Fail(const absl::Status& error);

 private:
  std::string ToHtml() const;
  std::string Tiles() const;
  std::string Plots() const;
  std::string Devices() const;
  std::string Notes() const;
  void Write();

  const Options options_;
  const std::string title_;
  const int replicas_;
  std::vector<engine::DeviceReport> devices_;  // predictions, until the end
  partition::PageParts plan_;                  // empty: it cannot be evaluated
  RunHistory history_;
  std::vector<std::pair<absl::Time, std::string>> notes_;
  std::string state_ = "running";
  std::string saved_;  // the newest checkpoint, and its size
  bool is_over_ = false;
  absl::Time written_ = absl::InfinitePast();
  absl::Duration took_;  // by the last write
  absl::Status status_;
};

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_TRAIN_RUN_PAGE_H_
