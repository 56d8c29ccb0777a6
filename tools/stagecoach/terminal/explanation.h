#ifndef STAGECOACH_TOOLS_STAGECOACH_TERMINAL_EXPLANATION_H_
#define STAGECOACH_TOOLS_STAGECOACH_TERMINAL_EXPLANATION_H_

#include <string>
#include <vector>

#include "engine/train/prepared_run.h"

namespace stagecoach::tools {

// How the shapes of a batch change in one step, for people who want to see it once.
struct Explanation {
  struct Row {
    std::string step;    // "stage 0"
    std::string shapes;  // "25 x 10 -> 25 x 64"
    std::string note;    // "layers 0-2: linear 10 -> 64, gelu"
  };
  std::string summary;  // "batch 100 x 10 -> 2 replicas x 50 x 10 -> ... -> gather 100 x 2"
  std::vector<Row> rows;
};

// Returns the explanation. Consecutive layers of a stage that are alike share a row.
Explanation ExplainStep(const engine::PreparedRun& run);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_TERMINAL_EXPLANATION_H_
