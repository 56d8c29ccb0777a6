#ifndef STAGECOACH_TOOLS_CLI_PREDICTION_REPORT_H_
#define STAGECOACH_TOOLS_CLI_PREDICTION_REPORT_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "engine/device/device_report.h"
#include "engine/train/trainer.h"
#include "tools/cli/prediction.h"

namespace stagecoach::tools {

// Tells the user about a prediction, on standard output.
class PredictionReport {
 public:
  virtual ~PredictionReport() = default;
  virtual void Start(const engine::Checkpoint& checkpoint, const engine::Trainer& trainer,
                     const PredictionTask& task) = 0;
  virtual void Progress(int64_t rows) = 0;
  virtual void End(const PredictionTask& task, const Prediction& prediction,
                   const std::vector<engine::DeviceReport>& devices) = 0;
};

// For people, or for scripts: one JSON object a line.
std::unique_ptr<PredictionReport> MakePredictionReport(bool json);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_CLI_PREDICTION_REPORT_H_
