#ifndef STAGECOACH_ENGINE_STAGE_PROFILE_H_
#define STAGECOACH_ENGINE_STAGE_PROFILE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/device/device_spec.h"
#include "engine/model/model.h"
#include "engine/model/parameter_table.h"
#include "engine/stage/optimizer.h"
#include "partition/profile.h"
#include "schedule/lowering.h"

namespace stagecoach::engine {

// What a model costs, layer by layer, at one micro-batch size. The names of the layers describe
// them: "linear 784 -> 10".
struct ModelProfile : partition::SizedLayers {
  LossSpec loss_spec;
  schedule::CollectiveMemory collectives;  // partition::Profile has the same
  bool updates_in_backward = true;         // partition::Profile has the same
  std::vector<partition::Tie> ties;        // partition::Profile has the same
  std::vector<Shape> inputs;               // of one sample, entering each layer
  Shape output;                            // of one sample
  ParameterTable parameters;
  Skips skips;
  std::vector<int> attention_layers;  // those with LayerSpec::has_attention, ascending
};

struct ProfileOptions {
  int64_t micro_batch_rows = 1;
  Optimizer optimizer;
  DeviceSpec device;  // sizes depend on it: scratch memory, the type of activations
  // Somewhere where every rank is a process, and is to know the results of the loss.
  schedule::ResultsPlace results = schedule::ResultsPlace::kNowhere;
};

// Sizes from the layers themselves, times from the analytic model (partition/analytic.h).
// InvalidArgument names the layer that does not fit its input.
absl::StatusOr<ModelProfile> AnalyzeModel(const Model& model, const ProfileOptions& options);

// Profiles of one model at ascending micro-batch sizes as one: the planner's input. A layer is
// called by the first words of its description and its index: "linear.0", "layer_norm.1".
// Pre-condition: at least one, all of the same model.
partition::Profile JoinProfiles(std::string model_name, absl::Span<const ModelProfile> sizes);

// AnalyzeModel for each of the sizes, which ascend. `options`: its micro_batch_rows are not read.
absl::StatusOr<partition::Profile> AnalyzeProfile(const Model& model, std::string model_name,
                                                  absl::Span<const int64_t> micro_batch_rows,
                                                  ProfileOptions options);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_STAGE_PROFILE_H_
