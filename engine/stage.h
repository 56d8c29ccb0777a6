#ifndef STAGECOACH_ENGINE_STAGE_H_
#define STAGECOACH_ENGINE_STAGE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/hash.h"
#include "engine/chain.h"
#include "engine/data/dataset.h"
#include "engine/model.h"
#include "engine/optimizer.h"
#include "schedule/action.h"
#include "schedule/memory.h"

namespace stagecoach::engine {

using schedule::MicroBatch;
using schedule::StageId;

// Samples of one step: rows of a data set, cut into equal micro-batches in order. Fewer than a
// whole batch only in evaluation: the missing rows at the end are padding.
struct Batch {
  const Dataset* data = nullptr;
  absl::Span<const int64_t> rows;
};

// Sums over rows of one micro-batch.
struct LossResult {
  double loss = 0.0;
  int64_t correct = 0;
};

struct StageOptions {
  StageId id;
  int first_layer = 0, last_layer = 0;
  bool is_first = false;         // its input is data
  bool is_last = false;          // it computes the loss
  bool splits_backward = false;  // it is asked for B and W apart
  Shape input;                   // of one sample
  int64_t micro_batch_rows = 1;
  int micro_batches = 1;
  Optimizer optimizer;
};

// Where one micro-batch of a stage has its blocks (schedule::BlockKind). Null where the operation
// at hand has none.
struct StageBlocks {
  std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::byte* stash = nullptr;
  std::byte* weight_stash = nullptr;
  std::byte* gradient_stash = nullptr;
  std::byte* output_gradient = nullptr;
  std::byte* input_gradient = nullptr;
  std::byte* workspace = nullptr;
};

// One stage: its layers, parameters, gradients and optimiser state on one device. Knows neither
// schedules nor other stages. All functions but the plain getters are called from jobs of the
// device's stream.
class Stage {
 public:
  // Prepares the layers.
  static absl::StatusOr<std::unique_ptr<Stage>> Create(kernels::Device& device, const Model& model,
                                                       const StageOptions& options);

  const StageOptions& options() const { return options_; }
  int num_parameters() const { return static_cast<int>(parameters_.size()); }  // tensors
  int64_t parameter_count() const { return parameter_count_; }                 // numbers
  // What it takes, as laid out here.
  const schedule::StageMemory& memory() const { return memory_; }

  // Puts parameters, gradients and states at `resident`, which has the size of memory()'s resident
  // parts, each rounded up by AlignBlock. Parameters get their initial values, everything else is
  // 0.
  void Place(std::byte* resident, uint64_t seed);

  // F: fills the input from the batch on the first stage; computes the loss, and its gradient if
  // there is a block for it, on the last.
  absl::Status Forward(const StageBlocks& blocks, const Batch& batch, MicroBatch micro_batch);
  // B, W and BW. Gradients are overwritten by micro-batch 0 and added to by the others. `update`,
  // if not null, is applied to each layer once its gradients are complete with this micro-batch.
  absl::Status BackwardInput(const StageBlocks& blocks);
  absl::Status BackwardWeight(const StageBlocks& blocks, MicroBatch micro_batch,
                              const UpdateStep* update);
  absl::Status Backward(const StageBlocks& blocks, MicroBatch micro_batch,
                        const UpdateStep* update);

  // The sum of squares of each parameter's gradient, in order. `norms`: num_parameters() values.
  absl::Status SquaredNorms(absl::Span<double> norms);
  // Updates all layers.
  absl::Status Update(const UpdateStep& update);

  // The loss stage's result of a micro-batch, after its F.
  LossResult Result(MicroBatch micro_batch) const;
  // The values of one parameter, in memory of the device.
  const Tensor& parameter(int i) const { return parameters_[static_cast<size_t>(i)].value; }
  const std::string& parameter_name(int i) const {
    return parameters_[static_cast<size_t>(i)].name;  // "layer 3: 1.weight"
  }

 private:
  struct Parameter {
    std::string name;
    ParameterSpec spec;
    uint64_t random_stream = 0;
    Tensor value, gradient;
    std::vector<Tensor> states;
    Tensor squared_norm;
  };

  Stage(kernels::Device& device, const StageOptions& options, LossKind loss, Chain chain);
  absl::Status PrepareLoss();
  void ComputeMemory();
  LayerArgs Args(const StageBlocks& blocks) const;
  absl::Status ComputeLoss(const StageBlocks& blocks, const Batch& batch, MicroBatch micro_batch);
  absl::Status UpdateLayer(int layer, const UpdateStep& update);

  kernels::Device& device_;
  const StageOptions options_;
  const LossKind loss_kind_;
  const Chain chain_;
  schedule::StageMemory memory_;
  int64_t parameter_count_ = 0;
  std::vector<Parameter> parameters_;
  std::vector<Tensor> values_, gradients_;  // of parameters_, as layers take them
  std::unique_ptr<kernels::LossOp> loss_;
  Tensor results_;  // (micro_batches, 2) float64
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_STAGE_H_
