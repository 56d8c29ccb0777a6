#ifndef STAGECOACH_TOOLS_CLI_BARS_H_
#define STAGECOACH_TOOLS_CLI_BARS_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "engine/train/fit.h"

namespace stagecoach::tools {

// A horizontal bar of block characters, in steps of an eighth of a column, filled up to `share`
// (taken as 0 below 0 or if not a number, as 1 above 1) and padded with spaces to `width` columns.
std::string Bar(double share, int width);

// One line, without a newline, on how far a run of `epochs` is: at most `columns` wide. What has no
// room is left out, the bar first.
//   epoch 1/2  ████████▌           43 %  loss 0.8123  352 samples/s  41.0 s left
// `tokens`: of a sample; with them, tokens are counted rather than samples.
std::string ProgressLine(const engine::FitProgress& progress, int epochs, int columns,
                         int64_t tokens = 0);

// The same for a file: without a bar, and whole.
std::string PlainProgress(const engine::FitProgress& progress, int epochs, int64_t tokens = 0);

// When a run says how far it is where lines cannot be redrawn: once kInterval has passed since it
// last did, and a tenth of an epoch has been trained.
class ProgressPace {
 public:
  static constexpr absl::Duration kInterval = absl::Seconds(30);

  explicit ProgressPace(absl::Time start) : last_(start) {}
  // To be called after every step; starts the next interval if it is true.
  bool IsDue(const engine::FitProgress& progress, absl::Time now);

 private:
  absl::Time last_;
  int64_t steps_ = 0;  // since then
};

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_CLI_BARS_H_
