// A stage whose layers are watched.

#include <algorithm>

#include "engine/runtime/stage/stage.h"

namespace stagecoach::engine {

int64_t Stage::LargestShownBytes() const {
  // Every gradient of an activation is as large as the activation.
  int64_t bytes = std::max(input_.bytes(), results_.bytes());
  for (int i = 0; i < chain_.size(); ++i) {
    const Shape output = chain_.spec(i).output.Batched(options_.micro_batch_rows);
    bytes = std::max(bytes, Tensor{nullptr, device_.activation_type(), output}.bytes());
  }
  for (const kernels::ParameterTensors& tensors : tensors_) {
    bytes = std::max(bytes, tensors.gradient.bytes());
  }
  return bytes;
}

absl::Status Stage::Replay(kernels::Recording& recording, absl::FunctionRef<absl::Status()> issue) {
  // Messages between parts are no part of a recording.
  const bool is_plain = watch_ != nullptr || options_.part_sums != nullptr;
  return is_plain ? issue() : device_.stream().Replay(recording, issue);
}

}  // namespace stagecoach::engine
