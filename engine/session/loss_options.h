#ifndef STAGECOACH_ENGINE_SESSION_LOSS_OPTIONS_H_
#define STAGECOACH_ENGINE_SESSION_LOSS_OPTIONS_H_

#include <vector>

#include "absl/status/status.h"
#include "engine/data/dataset.h"
#include "engine/models/model.h"
#include "engine/session/run_config.h"

namespace stagecoach::engine {

// Smooths the labels of a model's cross-entropy and weighs its classes, as the configuration says.
// UsageError: the model has another loss, or there are not as many weights as classes. `data`: what
// is trained on.
absl::Status SetLossOptions(const RunConfig& options, const TrainTest& data, Model& model);

// Returns weights by which all classes together weigh alike: of N labels, n of which are of this
// class of C, N / (C n). A class without labels has the weight 1.
std::vector<float> BalancedWeights(const Dataset& data);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_SESSION_LOSS_OPTIONS_H_
