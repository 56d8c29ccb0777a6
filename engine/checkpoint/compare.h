#ifndef STAGECOACH_ENGINE_CHECKPOINT_COMPARE_H_
#define STAGECOACH_ENGINE_CHECKPOINT_COMPARE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint.h"

namespace stagecoach::engine {

// The differences between the tensors of two checkpoints, in the order of the first one's files.
struct CheckpointDifference {
  struct Tensor {
    std::string name, file;
    std::vector<int64_t> index;  // of the first element whose bits differ
    float left = 0.0F, right = 0.0F;
    int64_t elements = 0;  // number that differ
  };
  std::vector<Tensor> tensors;
  int64_t compared = 0;                            // tensors that both have
  std::vector<std::string> only_left, only_right;  // names; another shape counts as another tensor
                                                   // on either side

  bool empty() const { return tensors.empty() && only_left.empty() && only_right.empty(); }
};

// Reads only files whose hashes differ. Errors: those of Checkpoint::Load.
absl::StatusOr<CheckpointDifference> Compare(const Checkpoint& left, const Checkpoint& right);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_CHECKPOINT_COMPARE_H_
