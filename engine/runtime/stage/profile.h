#ifndef STAGECOACH_ENGINE_RUNTIME_STAGE_PROFILE_H_
#define STAGECOACH_ENGINE_RUNTIME_STAGE_PROFILE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/models/model.h"
#include "engine/nn/parameter_table.h"
#include "engine/runtime/device/device_spec.h"
#include "engine/runtime/stage/optimizer.h"
#include "partition/cost/profile.h"
#include "schedule/transforms/lowering.h"

namespace stagecoach::engine {

// The costs of a model, layer by layer, at one micro-batch size. The names of the layers describe
// them: "linear 784 -> 10".
struct ModelProfile : partition::SizedLayers {
  LossSpec loss_spec;
  schedule::CollectiveMemory collectives;  // as in partition::Profile
  bool updates_in_backward = true;         // as in partition::Profile
  std::vector<partition::Tie> ties;        // as in partition::Profile
  partition::Overheads overheads;          // as in partition::Profile
  std::vector<Shape> inputs;               // of one sample, entering each layer
  Shape output;                            // of one sample
  ParameterTable parameters;
  Skips skips;
  std::vector<int> attention_layers;  // those with LayerSpec::has_attention, ascending
};

struct ProfileOptions {
  int64_t micro_batch_rows = 1;
  Optimizer optimizer;
  DeviceSpec device;     // determines sizes: scratch memory, the type of activations
  int tensor_parts = 1;  // devices that perform a stage together (TensorPart); costs are of one
  // Not kNowhere if every rank is a process, and needs the results of the loss.
  schedule::ResultsPlace results = schedule::ResultsPlace::kNowhere;
};

// Returns sizes from the layers themselves, and times from the analytic model
// (partition/cost/analytic.h). InvalidArgument names the layer that does not fit its input.
absl::StatusOr<ModelProfile> AnalyzeModel(const Model& model, const ProfileOptions& options);

// Joins the profiles of one model at ascending micro-batch sizes: the planner's input. A layer is
// named by the first words of its description and its index: "linear.0", "layer_norm.1".
// Pre-condition: at least one, all of the same model.
partition::Profile JoinProfiles(std::string model_name, absl::Span<const ModelProfile> sizes);

// Calls AnalyzeModel for each of the sizes, which ascend, and joins the results. micro_batch_rows
// is not read from `options`.
absl::StatusOr<partition::Profile> AnalyzeProfile(const Model& model, std::string model_name,
                                                  absl::Span<const int64_t> micro_batch_rows,
                                                  ProfileOptions options);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_RUNTIME_STAGE_PROFILE_H_
