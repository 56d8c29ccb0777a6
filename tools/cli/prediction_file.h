#ifndef STAGECOACH_TOOLS_CLI_PREDICTION_FILE_H_
#define STAGECOACH_TOOLS_CLI_PREDICTION_FILE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/data/encoding.h"

namespace stagecoach::tools {

// One row of what `predict` writes.
struct PredictedRow {
  int64_t row = 0;  // of the data, from 0
  absl::Span<const float> outputs;
  int32_t predicted = 0;  // class
  int32_t label = -1;     // -1: not known
};

// What a file of predictions holds.
struct PredictionLayout {
  enum class Content : uint8_t {
    kOutputs,  // what the last layer gives, before the loss; numbers in the units of their labels
    kClasses,  // the class of the largest output and, where it is known, the label
  };
  Content content = Content::kOutputs;
  int64_t rows = 0;
  int64_t outputs = 0;  // of a row
  bool has_labels = false;
  engine::DataEncoding encoding;  // for the names of classes
};

// The text, or bytes, of such a file, by the end of its name:
//   .csv    a header and a line for each row: "row", then the outputs in columns that are called as
//           the classes, or "prediction" for a number; or "row,class,label", by names
//   .jsonl  {"row": 0, "outputs": [...]}, or {"row": 0, "class": "a", "label": "b"}; an output that
//           is not finite is null
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

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_CLI_PREDICTION_FILE_H_
