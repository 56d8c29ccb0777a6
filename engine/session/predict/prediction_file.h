#ifndef STAGECOACH_ENGINE_SESSION_PREDICT_PREDICTION_FILE_H_
#define STAGECOACH_ENGINE_SESSION_PREDICT_PREDICTION_FILE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/data/encoding.h"

namespace stagecoach::engine {

// One predicted row.
struct PredictedRow {
  int64_t row = 0;  // from 0
  absl::Span<const float> outputs;
  int32_t predicted = 0;  // the class
  int32_t label = -1;     // -1: unknown
  std::string name;       // Dataset::NameOf
};

// What a file of predictions holds.
struct PredictionLayout {
  enum class Content : uint8_t {
    kOutputs,  // the outputs of the last layer, before the loss; numbers in the units of their
               // labels
    kClasses,  // the class of the largest output and the label, if it is known
  };
  Content content = Content::kOutputs;
  int64_t rows = 0;
  int64_t outputs = 0;  // per row
  bool has_labels = false;
  bool has_names = false;
  DataEncoding encoding;  // for the names of classes
};

// Writes such a file in the format that the end of its name says:
//   .csv    a header and a line for each row: "row", then the outputs in columns that are called as
//           the classes, or "prediction" for a number; or "row,class,label", by names
//   .jsonl  {"row": 0, "outputs": [...]}, or {"row": 0, "class": "a", "label": "b"}; an output that
//           is not finite is null
//           In both, "file" follows "row" if the rows are files.
//   .npy    (rows, outputs) float32, or (rows) int32: the numbers of classes, without labels
// Numbers are the shortest texts that read as the same float32.
class PredictionFormat {
 public:
  // InvalidArgument: the name ends otherwise.
  static absl::StatusOr<std::unique_ptr<PredictionFormat>> Create(const std::string& path,
                                                                  const PredictionLayout& layout);
  explicit PredictionFormat(const PredictionLayout& layout) : layout_(layout) {}
  virtual ~PredictionFormat() = default;

  virtual void AppendHeader(std::string& to) const = 0;
  // Rows come in order.
  virtual void AppendRow(const PredictedRow& row, std::string& to) const = 0;

 protected:
  bool has_outputs() const { return layout_.content == PredictionLayout::Content::kOutputs; }

  const PredictionLayout layout_;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_SESSION_PREDICT_PREDICTION_FILE_H_
