#ifndef STAGECOACH_TOOLS_STAGECOACH_TERMINAL_BARS_H_
#define STAGECOACH_TOOLS_STAGECOACH_TERMINAL_BARS_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "engine/train/fit.h"

namespace stagecoach::tools {

// Returns a horizontal bar of block characters, in steps of an eighth of a column, filled up to
// `share` (taken as 0 if negative or NaN, as 1 above 1) and padded with spaces to `width` columns.
std::string Bar(double share, int width);

// Returns one line, without a newline, on the progress of a run of `epochs`: at most `columns`
// wide. Parts that have no room are left out, the bar first.
//   epoch 1/2  ████████▌           43 %  loss 0.8123  352 samples/s  41.0 s left
// `tokens` is the number per sample; if positive, tokens are counted rather than samples.
std::string ProgressLine(const engine::FitProgress& progress, int epochs, int columns,
                         int64_t tokens = 0);

// Returns the same for a file: without a bar, and whole.
std::string PlainProgress(const engine::FitProgress& progress, int epochs, int64_t tokens = 0);

// Decides when a run reports its progress if lines cannot be redrawn: once kInterval has passed
// since the last report, and a tenth of an epoch has been trained.
class ProgressPace {
 public:
  static constexpr absl::Duration kInterval = absl::Seconds(30);

  explicit ProgressPace(absl::Time start) : last_(start) {}
  // Must be called after every step; starts the next interval if it returns true.
  bool IsDue(const engine::FitProgress& progress, absl::Time now);

 private:
  absl::Time last_;
  int64_t steps_ = 0;  // since then
};

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_TERMINAL_BARS_H_
