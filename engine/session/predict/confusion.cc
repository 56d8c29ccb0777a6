#include "engine/session/predict/confusion.h"

#include <algorithm>

namespace stagecoach::engine {

int32_t ClassOf(absl::Span<const float> outputs) {
  return static_cast<int32_t>(std::max_element(outputs.begin(), outputs.end()) - outputs.begin());
}

void Confusion::Add(int32_t label, int32_t predicted) {
  OfClass& own = of_class_[static_cast<size_t>(label)];
  ++own.rows;
  if (label == predicted) ++own.correct;
  ++of_class_[static_cast<size_t>(predicted)].predicted;
  ++counts_[{label, predicted}];
}

}  // namespace stagecoach::engine
