#ifndef STAGECOACH_ENGINE_CHECKPOINT_EXPORT_H_
#define STAGECOACH_ENGINE_CHECKPOINT_EXPORT_H_

#include <string>

#include "absl/status/status.h"
#include "engine/checkpoint/checkpoint.h"

namespace stagecoach::engine {

// Writes the values of all parameters of a checkpoint into one safetensors file, as
// base::WriteFileAtomically does, layer by layer, so that it needs the memory of one layer. Errors:
// those of Checkpoint::Load, and of the system.
absl::Status ExportParameters(const Checkpoint& checkpoint, const std::string& path);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_CHECKPOINT_EXPORT_H_
