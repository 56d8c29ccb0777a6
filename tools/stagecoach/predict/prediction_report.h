#ifndef STAGECOACH_TOOLS_STAGECOACH_PREDICT_PREDICTION_REPORT_H_
#define STAGECOACH_TOOLS_STAGECOACH_PREDICT_PREDICTION_REPORT_H_

#include <memory>

#include "engine/session/predict_config.h"

namespace stagecoach::tools {

// Returns an observer that tells the user about a prediction, on standard output: for people, or
// for scripts, one JSON object a line.
std::unique_ptr<engine::PredictionObserver> MakePredictionReport(bool json);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_PREDICT_PREDICTION_REPORT_H_
