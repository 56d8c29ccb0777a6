#ifndef STAGECOACH_TESTS_ENGINE_TRAIN_SMALL_RUN_H_
#define STAGECOACH_TESTS_ENGINE_TRAIN_SMALL_RUN_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/data/dataset.h"
#include "engine/model/layer.h"
#include "engine/model/model.h"
#include "engine/train/trainer.h"
#include "kernels/device.h"
#include "partition/plan/plan.h"
#include "schedule/action.h"

// Models, data and layers that tests of whole runs share.
namespace stagecoach::engine {

inline constexpr int64_t kSmallFeatures = 20;
inline constexpr int64_t kSmallClasses = 4;

// Eight layers of every kind. One is wide enough for several tiles of a product, so that the
// threads of a device share work.
Model SmallModel();

// The same but for its last layers, which predict a number, by a sigmoid and a tanh: for
// SmallNumbers.
Model SmallNumbersModel();

// A generated schedule whose stages have as equal numbers of layers as possible; `chunks` stages
// per device (0: the schedule's own number). `devices` are those of each replica, `micro_batches`
// those of all. Aborts if the schedule refuses the shape.
partition::Plan EvenPlan(const Model& model, int devices, const std::string& schedule,
                         int micro_batches, int64_t micro_batch_rows, int chunks = 0,
                         const partition::Replication& replication = {});

// Synthetic data for SmallModel; the same in every call.
std::shared_ptr<const Dataset> SmallData(int64_t rows);

// The same samples with a number each, standardized, as a target.
std::shared_ptr<const Dataset> SmallNumbers(int64_t rows);

// The same samples, of which one row has this label, as no reader of files would give it.
std::shared_ptr<const Dataset> Mislabeled(std::shared_ptr<const Dataset> samples, int64_t row,
                                          int32_t label);

// The row numbers first, first + 1, ...
std::vector<int64_t> Rows(int64_t first, int64_t count);

// Of all values of a parameter.
inline kernels::Tensor TensorOf(std::vector<float>& values) {
  return kernels::Float32(values.data(), Shape{std::ssize(values)});
}

// Aborts if there is none: for tests of what a trainer does, not of how it comes into being.
std::unique_ptr<Trainer> MakeTrainer(const Model& model, const partition::Plan& plan,
                                     const TrainerOptions& options);

// What a test does inside a run.
struct ProbeHooks {
  // A layer is being prepared for this device.
  std::function<void(kernels::Device& device)> on_prepare;
  // Before the F or B (which takes the place of BW) number `call` of a layer, from 0 on.
  std::function<absl::Status(schedule::Op op, int call)> before;
};

// A layer that passes everything on as it is and calls the hooks, which must outlive it. Either may
// be empty.
LayerFactory Probe(const ProbeHooks* hooks);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_TESTS_ENGINE_TRAIN_SMALL_RUN_H_
