#ifndef STAGECOACH_ENGINE_PROFILE_H_
#define STAGECOACH_ENGINE_PROFILE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model.h"
#include "engine/optimizer.h"
#include "partition/layer_cost.h"
#include "partition/stage_memory.h"

namespace stagecoach::engine {

// What a model costs, layer by layer, at one micro-batch size: the planner's input.
struct ModelProfile {
  std::vector<partition::LayerCost> layers;
  partition::LossMemory loss;
  std::vector<Shape> inputs;           // of one sample, entering each layer
  std::vector<int> parameter_tensors;  // of each layer
  Shape output;                        // of one sample
  int64_t parameters() const;          // numbers, of all layers
};

struct ProfileOptions {
  int64_t micro_batch_rows = 1;
  int micro_batches = 1;
  Optimizer optimizer;
  int threads = 1;  // of the device: scratch memory depends on it
};

// Sizes from the layers themselves, times from the analytic model (partition/analytic.h).
// InvalidArgument names the layer that does not fit its input.
absl::StatusOr<ModelProfile> AnalyzeModel(const Model& model, const ProfileOptions& options);

// The same with times measured here: each layer runs alone, with random input, on a CPU device made
// for it, `repeats` times (at least 1) after a first one that does not count; times are medians.
absl::StatusOr<ModelProfile> MeasureModel(const Model& model, const ProfileOptions& options,
                                          int repeats);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_PROFILE_H_
