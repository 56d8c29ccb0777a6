#ifndef STAGECOACH_TESTS_ENGINE_TRAIN_RUNS_SMALL_RUN_H_
#define STAGECOACH_TESTS_ENGINE_TRAIN_RUNS_SMALL_RUN_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/data/dataset.h"
#include "engine/models/model.h"
#include "engine/nn/layer.h"
#include "engine/train/trainer.h"
#include "kernels/device.h"
#include "partition/plan/plan.h"
#include "schedule/ir/action.h"

// Models, data and layers that tests of whole runs share.
namespace stagecoach::engine {

inline constexpr int64_t kSmallFeatures = 20;
inline constexpr int64_t kSmallClasses = 4;

// Returns eight layers of every kind. One is wide enough for several tiles of a product, so that
// the threads of a device share work.
Model SmallModel();

// Returns the same except for the last layers, which predict a number, by a sigmoid and a tanh: for
// SmallNumbers.
Model SmallNumbersModel();

// Returns a generated schedule whose stages have as equal numbers of layers as possible; `chunks`
// stages per device (0: the schedule's own number). `devices` are those of each replica,
// `micro_batches` those of all. Aborts if the schedule refuses the shape.
partition::Plan EvenPlan(const Model& model, int devices, const std::string& schedule,
                         int micro_batches, int64_t micro_batch_rows, int chunks = 0,
                         const partition::Replication& replication = {});

// Returns synthetic data for SmallModel; the same in every call.
std::shared_ptr<const Dataset> SmallData(int64_t rows);

// Returns the same samples, each with a standardized number as its target.
std::shared_ptr<const Dataset> SmallNumbers(int64_t rows);

// Returns the same samples, except that one row has this label, which no reader of files would
// return.
std::shared_ptr<const Dataset> Mislabeled(std::shared_ptr<const Dataset> samples, int64_t row,
                                          int32_t label);

// Returns the row numbers first, first + 1, ...
std::vector<int64_t> Rows(int64_t first, int64_t count);

// Returns a tensor of all values of a parameter.
inline kernels::Tensor TensorOf(std::vector<float>& values) {
  return kernels::Float32(values.data(), Shape{std::ssize(values)});
}

// Aborts if there is none: for tests of what a trainer does, not of its creation.
std::unique_ptr<Trainer> MakeTrainer(const Model& model, const partition::Plan& plan,
                                     const TrainerOptions& options);

// Callbacks that a test runs inside a training run.
struct ProbeHooks {
  // Called when a layer is being prepared for this device.
  std::function<void(kernels::Device& device)> on_prepare;
  // Called before the F or B (or BW, which replaces it) number `call` of a layer, from 0 on.
  std::function<absl::Status(schedule::Op op, int call)> before;
};

// Returns a layer that passes everything on unchanged and calls the hooks, which must outlive it.
// Either may be empty.
LayerFactory Probe(const ProbeHooks* hooks);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_TESTS_ENGINE_TRAIN_RUNS_SMALL_RUN_H_
