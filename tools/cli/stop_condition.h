#ifndef STAGECOACH_TOOLS_CLI_STOP_CONDITION_H_
#define STAGECOACH_TOOLS_CLI_STOP_CONDITION_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "engine/checkpoint/manifest.h"

namespace stagecoach::tools {

// When a run has reached what it is for: a figure of an evaluation compared with a number, such as
// "test_accuracy>0.9".
struct StopCondition {
  enum class Comparison : uint8_t { kAbove, kAtLeast, kBelow, kAtMost };

  std::string metric;  // train_loss, test_loss, train_accuracy or test_accuracy
  Comparison comparison = Comparison::kAbove;
  double bound = 0.0;  // of an accuracy, a share in [0, 1]
  std::string text;    // from which it was read

  bool is_accuracy() const;
  double ValueIn(const engine::Figures& figures) const;
  // False of a figure that is not a number.
  bool IsMet(const engine::Figures& figures) const;
};

// Reads a metric, one of > >= < <=, and a number, without spaces. InvalidArgument says what was
// expected.
absl::StatusOr<StopCondition> ParseStopCondition(const std::string& text);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_CLI_STOP_CONDITION_H_
