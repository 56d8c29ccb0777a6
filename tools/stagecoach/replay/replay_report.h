#ifndef STAGECOACH_TOOLS_STAGECOACH_REPLAY_REPLAY_REPORT_H_
#define STAGECOACH_TOOLS_STAGECOACH_REPLAY_REPLAY_REPORT_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/checkpoint/compare.h"
#include "engine/train/prepared_run.h"
#include "engine/train/trainer.h"
#include "tools/stagecoach/replay/replay_checkpoint.h"

namespace stagecoach::tools {

// A step that was trained twice.
struct StepComparison {
  int64_t number = 0;  // in the run
  engine::StepResult first, second;
  bool has_norm = false;  // gradients, so that their norm is known

  // The bits of what is known.
  bool same() const;
};

// A later checkpoint of the run, and what the first time gives after the same step.
struct SavedComparison {
  std::string path;
  int64_t step = 0;
  // OK: it was compared. DataLoss: it is damaged. Any other: why that would mean nothing.
  absl::Status comparable;
  bool same_losses = true;                  // of all steps until then
  engine::CheckpointDifference difference;  // the left side is what was replayed

  bool same() const { return same_losses && difference.empty(); }
};

// What both times came to.
struct EndComparison {
  int64_t steps = 0;                        // that were trained twice
  std::string first_hash, second_hash;      // of the parameters
  engine::CheckpointDifference difference;  // of the second from the first
  // True if everything that was compared is the same.
  bool same = true;
};

// Tells the user about a replay, on standard output, as it goes.
class ReplayReport {
 public:
  virtual ~ReplayReport() = default;
  virtual void Start(const ReplayStart& start,
                     absl::Span<const engine::PreparedRun* const> times) = 0;
  // A step of the first time.
  virtual void First(int64_t done, int64_t steps) = 0;
  virtual void Saved(const SavedComparison& saved) = 0;
  virtual void Step(const StepComparison& step) = 0;
  virtual void End(const EndComparison& end) = 0;
};

// For people, or for scripts: one JSON object a line.
std::unique_ptr<ReplayReport> MakeReplayReport(bool json);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_REPLAY_REPLAY_REPORT_H_
