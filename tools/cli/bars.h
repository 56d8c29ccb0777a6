#ifndef STAGECOACH_TOOLS_CLI_BARS_H_
#define STAGECOACH_TOOLS_CLI_BARS_H_

#include <cstdint>
#include <string>

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

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_CLI_BARS_H_
