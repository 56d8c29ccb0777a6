#ifndef STAGECOACH_ENGINE_TRAIN_TRAINED_PARAMETERS_H_
#define STAGECOACH_ENGINE_TRAIN_TRAINED_PARAMETERS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/model/parameter_table.h"
#include "engine/run/executor.h"
#include "engine/run/rank_group.h"

namespace stagecoach::engine {

// The parameters of a run, on whatever ranks they are. Among processes all call these at the same
// place and have the same answer; if one fails, all do.

// By device; null where a device is elsewhere.
using Executors = absl::Span<const std::unique_ptr<Executor>>;

// Fingerprint of all parameters of the model, in the order of their ids. DataLoss, naming the first
// one, if replicas have different values.
absl::StatusOr<std::string> HashParameters(RankGroup& group, Executors executors,
                                           const ParameterTable& parameters);

// A copy of a parameter, which is on the device `owner`.
absl::StatusOr<std::vector<float>> CopyParameter(RankGroup& group, Executors executors,
                                                 const ModelParameter& parameter, int owner);

// Gives a parameter other values, on all devices that have it. InvalidArgument: another number of
// them than it has.
absl::Status SetParameter(RankGroup& group, Executors executors, const ModelParameter& parameter,
                          absl::Span<const float> values);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_TRAIN_TRAINED_PARAMETERS_H_
