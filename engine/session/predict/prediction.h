#ifndef STAGECOACH_ENGINE_SESSION_PREDICT_PREDICTION_H_
#define STAGECOACH_ENGINE_SESSION_PREDICT_PREDICTION_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/data/chat/chat_dataset.h"
#include "engine/data/dataset.h"
#include "engine/data/encoding.h"
#include "engine/session/predict/confusion.h"
#include "engine/session/predict/prediction_file.h"
#include "engine/train/trainer.h"

namespace stagecoach::engine {

// The rows that are predicted, and where the outputs go.
struct PredictionTask {
  std::shared_ptr<const Dataset> data;
  DataEncoding encoding;
  struct File {
    std::string path;
    PredictionLayout::Content content = PredictionLayout::Content::kOutputs;
  };
  std::vector<File> files;
  bool wants_scores = false;    // log-likelihoods (ScoreAll), and no outputs
  std::string scores;           // the file for them; "": none
  std::vector<ChatLine> lines;  // of a file of examples, for scores; empty: of other data
  std::function<void(const Outputs&)> on_outputs;  // hears of the outputs, in order of rows
  std::function<void(int64_t rows)> on_rows;       // hears of the number of rows done
  std::function<bool()> is_stopped;                // null: it is not

  bool has_labels() const;     // classes or numbers
  bool has_one_label() const;  // a class per row, rather than one at each of its positions
  // Returns whether classes are counted: rows have one label, and the classes are few enough to
  // read.
  bool counts_classes() const;
};

struct Prediction {
  Evaluation evaluation;                  // without labels, it has the number of rows alone
  Confusion confusion;                    // if the classes are counted
  std::map<std::string, double> metrics;  // of them (ClassMetrics)
  std::vector<double> label_rmse;         // of each number to predict, in its own units
  int64_t not_finite = 0;                 // the number of outputs that are NaN or infinity
  std::string outputs_hash;               // of all outputs, in order of rows: equal for equal bits
                             // (with wants_scores, both are those of the losses of rows)
  absl::Duration elapsed;
};

// Predicts all rows. A file appears once all of it has been written, or not at all. Cancelled: the
// task was stopped.
absl::StatusOr<Prediction> PredictAll(Trainer& trainer, const PredictionTask& task);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_SESSION_PREDICT_PREDICTION_H_
