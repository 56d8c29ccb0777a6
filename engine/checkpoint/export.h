#ifndef STAGECOACH_ENGINE_CHECKPOINT_EXPORT_H_
#define STAGECOACH_ENGINE_CHECKPOINT_EXPORT_H_

#include <string>

#include "absl/status/status.h"
#include "base/system_calls.h"
#include "engine/checkpoint/checkpoint.h"

namespace stagecoach::engine {

// Writes the values of all parameters of a checkpoint into one safetensors file, layer by layer, so
// that it takes the memory of a layer: replaces the file at `path`, or creates it, once all of it
// is on disk. Errors: those of Checkpoint::Load, and of the system.
absl::Status ExportParameters(base::SystemCalls& calls, const Checkpoint& checkpoint,
                              const std::string& path);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_CHECKPOINT_EXPORT_H_
