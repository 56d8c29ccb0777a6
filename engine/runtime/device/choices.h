#ifndef STAGECOACH_ENGINE_RUNTIME_DEVICE_CHOICES_H_
#define STAGECOACH_ENGINE_RUNTIME_DEVICE_CHOICES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace stagecoach::engine {

// Checks the choices of each rank's device that affect bits: texts "what: way"
// (kernels::Device::choices). FailedPrecondition, naming two ranks and the remedy, if they compute
// the same "what" (all before the last ": ") in different ways: then bits would depend on which
// rank has which layer.
absl::Status CheckSameChoices(absl::Span<const std::vector<std::string>> choices);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_RUNTIME_DEVICE_CHOICES_H_
