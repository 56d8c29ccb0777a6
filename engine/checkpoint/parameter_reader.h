#ifndef STAGECOACH_ENGINE_CHECKPOINT_PARAMETER_READER_H_
#define STAGECOACH_ENGINE_CHECKPOINT_PARAMETER_READER_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/checkpoint/checkpoint.h"

namespace stagecoach::engine {

// Reads the parameters of a checkpoint, keeping one file, a layer's, in memory.
class ParameterReader {
 public:
  // The checkpoint outlives it.
  explicit ParameterReader(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  // Returns the values, which are valid until the next call for a parameter of another layer, or
  // for one that is quantized. FailedPrecondition: there is no parameter of that name. Errors of
  // Checkpoint::Load.
  absl::StatusOr<absl::Span<const float>> Read(const std::string& name);

 private:
  const Checkpoint& checkpoint_;
  std::string file_name_;
  std::optional<LoadedFile> loaded_;
  std::vector<float> space_;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_CHECKPOINT_PARAMETER_READER_H_
