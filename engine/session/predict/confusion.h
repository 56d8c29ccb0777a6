#ifndef STAGECOACH_ENGINE_SESSION_PREDICT_CONFUSION_H_
#define STAGECOACH_ENGINE_SESSION_PREDICT_CONFUSION_H_

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/types/span.h"

namespace stagecoach::engine {

// Returns the class of the outputs: the first of the largest, as losses count it.
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
  // Returns the rows of each pair (label, predicted class) that occurs.
  const std::map<std::pair<int32_t, int32_t>, int64_t>& counts() const { return counts_; }

 private:
  std::vector<OfClass> of_class_;
  std::map<std::pair<int32_t, int32_t>, int64_t> counts_;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_SESSION_PREDICT_CONFUSION_H_
