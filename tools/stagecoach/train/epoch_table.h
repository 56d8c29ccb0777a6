#ifndef STAGECOACH_TOOLS_STAGECOACH_TRAIN_EPOCH_TABLE_H_
#define STAGECOACH_TOOLS_STAGECOACH_TRAIN_EPOCH_TABLE_H_

#include <functional>
#include <string>
#include <vector>

#include "engine/train/fit.h"
#include "tools/stagecoach/train/report.h"

namespace stagecoach::tools {

// The table of a run's evaluations, row by row:
//
//   epoch     loss  0      2.30  train acc.  test acc.  test loss     time     eval  samples/s
//
// Numbers have an RMSE instead of an accuracy and of the test loss; tokens have a perplexity
// instead of the test loss, and tokens instead of samples. The bar shows the loss; a full one is no
// better than guessing. It takes the columns that the others leave, up to 24; if these are fewer
// than 8, there is none. `time` is that of training, `eval` that of the evaluation.
class EpochTable {
 public:
  // `loss_of_guessing` is positive. `columns` is the width that the table may take. `metrics`: of
  // EpochResult::more.
  EpochTable(const Measures& measures, double loss_of_guessing, int columns,
             const std::vector<std::string>& metrics = {});

  // Returns two lines, each with its newline.
  std::string Header() const;

  // Returns a line with its newline. `epochs` have been trained by then.
  std::string Row(const std::string& epochs, const engine::EpochResult& result) const;

 private:
  struct Column {
    std::string name;
    int width = 0;  // at least that of the name
    std::function<std::string(const engine::EpochResult&)> cell;
  };

  double loss_of_guessing_ = 1.0;
  std::vector<Column> columns_;  // after the bar
  int bar_columns_ = 0;
};

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_TRAIN_EPOCH_TABLE_H_
