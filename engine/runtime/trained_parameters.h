#ifndef STAGECOACH_ENGINE_RUNTIME_TRAINED_PARAMETERS_H_
#define STAGECOACH_ENGINE_RUNTIME_TRAINED_PARAMETERS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/nn/parameter_table.h"
#include "engine/runtime/executor.h"
#include "engine/runtime/rank_group.h"

namespace stagecoach::engine {

// The parameters of a run, on whatever ranks they are. Among processes, all call these functions at
// the same place and get the same answer; if one fails, all do.

// The executors by device; null if a device is elsewhere.
using Executors = absl::Span<const std::unique_ptr<Executor>>;

// Returns a fingerprint of all parameters of the model, in the order of their ids. DataLoss, naming
// the first one, if replicas have different values.
absl::StatusOr<std::string> HashParameters(RankGroup& group, Executors executors,
                                           const ParameterTable& parameters);

// Returns a copy of a parameter, which is on the devices of a rank.
absl::StatusOr<std::vector<float>> CopyParameter(RankGroup& group, Executors executors,
                                                 const ModelParameter& parameter, Rank rank);

// Sets the values of a parameter on all devices that have it. InvalidArgument: the number of values
// is wrong.
absl::Status SetParameter(RankGroup& group, Executors executors, const ModelParameter& parameter,
                          absl::Span<const float> values);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_RUNTIME_TRAINED_PARAMETERS_H_
