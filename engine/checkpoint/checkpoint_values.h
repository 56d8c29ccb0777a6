#ifndef STAGECOACH_ENGINE_CHECKPOINT_CHECKPOINT_VALUES_H_
#define STAGECOACH_ENGINE_CHECKPOINT_CHECKPOINT_VALUES_H_

#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/nn/parameter_table.h"
#include "kernels/tensor.h"

namespace stagecoach::engine {

// The values of parameters in a checkpoint, for Trainer::SetParameters and SetAdapters. Movable;
// thread-safe.
class CheckpointValues {
 public:
  static absl::StatusOr<CheckpointValues> Open(const std::string& path);

  const Checkpoint& checkpoint() const { return checkpoint_; }
  // Returns whether it has a value for any adapter of a model.
  bool HasAdapters(const ParameterTable& parameters) const;
  // Reads a parameter in the form of `values`: rounded or quantized anew if it is stored otherwise.
  // FailedPrecondition: the checkpoint has none of this name and shape. DataLoss: it is damaged.
  absl::Status Read(const ModelParameter& parameter, const kernels::Tensor& values) const;

 private:
  explicit CheckpointValues(Checkpoint checkpoint);

  Checkpoint checkpoint_;
  // By the parameter's name: a file, and a tensor in it, of the manifest.
  std::map<std::string, std::pair<size_t, size_t>> places_;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_CHECKPOINT_CHECKPOINT_VALUES_H_
