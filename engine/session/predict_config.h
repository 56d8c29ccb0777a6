#ifndef STAGECOACH_ENGINE_SESSION_PREDICT_CONFIG_H_
#define STAGECOACH_ENGINE_SESSION_PREDICT_CONFIG_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/manifest.h"
#include "engine/runtime/device/device_report.h"
#include "engine/session/predict/prediction.h"
#include "engine/session/run_config.h"
#include "engine/train/trainer.h"

namespace stagecoach::engine {

// The model and the data of a prediction.
struct PredictConfig {
  RunConfig run;           // data and devices; the model is the checkpoint's
  std::string checkpoint;  // a checkpoint, or the folder of a run
  // Whether all rows of the data are predicted, which may have no labels; otherwise those that the
  // run was tested with.
  bool has_data = false;
  // Flags that say how to read the data, such as "--label": data that have no use for them are
  // refused.
  std::set<std::string> given;
  std::optional<int64_t> micro_batch_rows;  // unset: those of the run
  bool has_threads = false;      // otherwise each device gets its share of the processors
  std::string outputs, classes;  // files; "": none
  // A file for the log-likelihood of each sample (ScoreAll), which then is a micro-batch of its
  // own;
  // "": none. It excludes the others.
  std::string scores;
};

// Hears how a prediction goes, in the process of rank 0.
class PredictionObserver {
 public:
  virtual ~PredictionObserver() = default;
  virtual void Start(const Checkpoint& checkpoint, const Trainer& trainer,
                     const PredictionTask& task) = 0;
  virtual void Progress(int64_t rows) = 0;
  virtual void End(const PredictionTask& task, const Prediction& prediction,
                   const std::vector<DeviceReport>& devices) = 0;
};

// What a caller of Predict may add to its configuration. All may be null.
struct PredictHooks {
  PredictionObserver* observer = nullptr;
  // Completes the configuration with what the checkpoint says.
  std::function<absl::Status(const Manifest& manifest, PredictConfig& config)> complete;
  // Is called once it is known that the model fits, before devices are made.
  std::function<void()> on_planned;
  // Hears of the outputs, in order of rows, in every process.
  std::function<void(const Outputs&)> on_outputs;
  // Hears of an error of this process's own configuration, before the others of the run do.
  std::function<void(const absl::Status& error)> on_refused;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_SESSION_PREDICT_CONFIG_H_
