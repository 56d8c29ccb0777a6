#ifndef STAGECOACH_TOOLS_STAGECOACH_GENERATE_STOP_TEXT_H_
#define STAGECOACH_TOOLS_STAGECOACH_GENERATE_STOP_TEXT_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace stagecoach::tools {

// A text that comes in pieces and ends before the first of some strings, none of them empty. What
// one of them may begin with is held back until it is known.
class StopText {
 public:
  explicit StopText(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // Returns what surely is part of the text by now.
  std::string Append(absl::string_view more);
  // Returns what was held back: the text has ended without any of them.
  std::string Finish() { return std::exchange(held_, ""); }

  bool has_ended() const { return has_ended_; }

 private:
  const std::vector<std::string> stops_;
  std::string held_;
  bool has_ended_ = false;
};

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_GENERATE_STOP_TEXT_H_
