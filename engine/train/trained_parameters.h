#ifndef STAGECOACH_ENGINE_TRAIN_TRAINED_PARAMETERS_H_
#define STAGECOACH_ENGINE_TRAIN_TRAINED_PARAMETERS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/run/executor.h"
#include "engine/run/rank_group.h"

namespace stagecoach::engine {

// The parameters of a run, on whatever ranks they are. Among processes all call these at the same
// place and have the same answer; if one fails, all do.

// By rank; null where a rank is elsewhere.
using Executors = absl::Span<const std::unique_ptr<Executor>>;

// Fingerprint of all parameters, in order of layers. `first_parameter`: of each stage, the position
// of its first tensor among all `total` of the model.
absl::StatusOr<std::string> HashParameters(RankGroup& group, Executors executors,
                                           const std::vector<int>& first_parameter, int total);

// A copy of the parameter of that name. NotFound lists the names.
absl::StatusOr<std::vector<float>> CopyParameter(RankGroup& group, Executors executors,
                                                 const std::string& name);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_TRAIN_TRAINED_PARAMETERS_H_
