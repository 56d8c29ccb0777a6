#ifndef STAGECOACH_TOOLS_CLI_PREDICTION_H_
#define STAGECOACH_TOOLS_CLI_PREDICTION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/data/dataset.h"
#include "engine/data/encoding.h"
#include "engine/train/trainer.h"
#include "tools/cli/confusion.h"
#include "tools/cli/prediction_file.h"

namespace stagecoach::tools {

// What is predicted, and where to.
struct PredictionTask {
  std::shared_ptr<const engine::Dataset> data;
  engine::DataEncoding encoding;
  struct File {
    std::string path;
    PredictionLayout::Content content = PredictionLayout::Content::kOutputs;
  };
  std::vector<File> files;
  std::function<void(int64_t rows)> on_rows;  // so many have been done

  bool has_labels() const;     // classes or numbers
  bool has_one_label() const;  // a class of a row, rather than one at each of its positions
  // Whether the classes are counted: of rows with one label, if they are few enough to look at.
  bool counts_classes() const;
};

struct Prediction {
  engine::Evaluation evaluation;  // of the rows alone, if there are no labels
  Confusion confusion;            // if the classes are counted
  int64_t not_finite = 0;         // outputs
  std::string outputs_hash;       // of all, in order of rows: equal for equal bits
  absl::Duration elapsed;
};

// Predicts all rows. A file appears once all of it has been written, or not at all. Cancelled: the
// user asked for a stop. Errors of files are marked as such (tools/cli/exit_status.h).
absl::StatusOr<Prediction> PredictAll(engine::Trainer& trainer, const PredictionTask& task);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_CLI_PREDICTION_H_
