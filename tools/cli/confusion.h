#ifndef STAGECOACH_TOOLS_CLI_CONFUSION_H_
#define STAGECOACH_TOOLS_CLI_CONFUSION_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "engine/data/encoding.h"

namespace stagecoach::tools {

// The class that outputs speak for: the first of the largest, as losses count it.
int32_t ClassOf(absl::Span<const float> outputs);

// How often samples of each class were taken for each class.
class Confusion {
 public:
  explicit Confusion(int64_t classes) : of_class_(static_cast<size_t>(classes)) {}

  void Add(int32_t label, int32_t predicted);

  struct OfClass {
    int64_t rows = 0;       // that have the label
    int64_t correct = 0;    // of those, the ones that are predicted
    int64_t predicted = 0;  // rows that are taken for it, of whatever label
  };
  const std::vector<OfClass>& of_class() const { return of_class_; }
  // Rows by (label, predicted class), where there are any.
  const std::map<std::pair<int32_t, int32_t>, int64_t>& counts() const { return counts_; }

 private:
  std::vector<OfClass> of_class_;
  std::map<std::pair<int32_t, int32_t>, int64_t> counts_;
};

// A row for each class that occurs: accuracy, and how often it was taken for each class or, where
// that would be wider than `columns`, for which class most often by mistake.
std::string ConfusionTable(const Confusion& confusion, const engine::DataEncoding& encoding,
                           int columns);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_CLI_CONFUSION_H_
