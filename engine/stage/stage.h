#ifndef STAGECOACH_ENGINE_STAGE_STAGE_H_
#define STAGECOACH_ENGINE_STAGE_STAGE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/data/feed.h"
#include "engine/model/bundle.h"
#include "engine/model/chain.h"
#include "engine/model/model.h"
#include "engine/model/parameter_table.h"
#include "engine/stage/gradient_blocks.h"
#include "engine/stage/optimizer.h"
#include "engine/stage/trained_piece.h"
#include "partition/replication.h"
#include "schedule/action.h"
#include "schedule/memory.h"

namespace stagecoach::engine {

using schedule::MicroBatch;
using schedule::StageId;

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
  bool trains = true;            // else it has neither gradients nor states
  Shape input;                   // of one sample
  int64_t vocabulary = 0;        // of its input, if that has ids (Model::vocabulary)
  int64_t micro_batch_rows = 1;
  int micro_batches = 1;  // of one replica
  partition::Replication replication;
  Optimizer optimizer;
  // Model::cached_positions. Above 0, there is neither a target nor a loss.
  int64_t cached_positions = 0;
  // Whether Backward and BackwardWeight will be given updates to apply.
  bool updates_in_backward = false;
  Skips skips;                  // of the model, at that size (ModelProfile::skips)
  std::vector<int> recomputed;  // layers that do F again within B, counted from the first
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

// What the host is to be given of what the last layer makes of a micro-batch: at most one of both.
struct StageOutputs {
  Tensor values;  // of its first rows, in host memory; empty if they are not wanted
  const kernels::HeadChoice* choice = nullptr;  // of a last layer that computes the loss
};

// One stage: its layers, parameters, gradients and optimizer state on one device. Knows neither
// schedules nor other stages. All functions but the plain getters are called from jobs of the
// device's stream, and issue work in its order.
class Stage {
 public:
  // Prepares the layers. `parameters`: of the whole model; it outlives the stage and stays as it
  // is.
  static absl::StatusOr<std::unique_ptr<Stage>> Create(kernels::Device& device, const Model& model,
                                                       const ParameterTable& parameters,
                                                       const StageOptions& options);

  const StageOptions& options() const { return options_; }
  // Its own, in the order of the model; their ids are consecutive.
  absl::Span<const ModelParameter> parameters() const { return parameters_; }
  bool has(ParameterId id) const {
    return !parameters_.empty() && parameters_.front().id <= id && id <= parameters_.back().id;
  }
  // What it takes, as laid out here.
  const schedule::StageMemory& memory() const { return chain_.memory(); }
  // Whether a layer that computes the loss copies the outputs, so that they are part of what F
  // records.
  bool records_outputs() const { return options_.is_last && loss_spec_.is_computed_by_layer; }

  // Puts parameters, gradients and states at `resident`, which has the size of memory()'s resident
  // parts, each rounded up by AlignBlock, and is 0. Parameters get their initial values, or,
  // without a seed, stay 0; on a stream that has finished then.
  absl::Status Place(std::byte* resident, std::optional<uint64_t> seed);

  // F: fills the input from the batch on the first stage; computes the loss, and its gradient, if
  // there is a block for it, on the last. A last layer that computes the loss itself does so in B
  // of training instead. `outputs`: of the last stage. `recording`, here and below: always the same
  // one for the same operation on the same blocks and call context of the same micro-batch and, if
  // records_outputs(), the same `outputs`.
  absl::Status Forward(const StageBlocks& blocks, const CallContext& call, const Batch& batch,
                       MicroBatch micro_batch, const StageOutputs& outputs,
                       kernels::Recording& recording);
  // What layers and the loss make is shown to `watch` from now on, and nothing is issued as a
  // recording, until it is null.
  void Watch(LayerWatch* watch) {
    watch_ = watch;
    chain_.Watch(watch);
  }
  // Of the largest tensor that a watch is shown.
  int64_t LargestShownBytes() const;
  // While the device is busy with a run: the host's part of feeding the next (Feed::Prepare).
  absl::Status PrepareNext(const Batch& next) { return feed_.Prepare(next); }
  // B, W and BW. Gradients are summed in the order of GradientBlocks, by micro-batches in order.
  // `update`, if not null, is applied to each layer once its gradients are complete with this
  // micro-batch.
  absl::Status BackwardInput(const StageBlocks& blocks, const CallContext& call,
                             MicroBatch micro_batch, kernels::Recording& recording);
  absl::Status BackwardWeight(const StageBlocks& blocks, const CallContext& call,
                              MicroBatch micro_batch, const UpdateStep* update,
                              kernels::Recording& recording);
  absl::Status Backward(const StageBlocks& blocks, const CallContext& call, MicroBatch micro_batch,
                        const UpdateStep* update, kernels::Recording& recording);

  // The gradients of all parameters, one after the other, once they are complete: (n) float32. What
  // lies between the parameters is 0.
  const Tensor& all_gradients() const { return all_gradients_; }
  // Their values, at the same places.
  const Tensor& all_values() const { return all_values_; }
  // For an OptimizerShard, if the optimizer is sharded: the parameters without states, and where
  // the states of a shard are.
  absl::Span<const kernels::ParameterTensors> tensors() const { return tensors_; }
  std::byte* shard_states() const { return shard_states_; }
  const Tensor& GradientOf(ParameterId id) const;  // of one that it has()
  // The sum of squares of each parameter's gradient, in order: (parameters().size()) float64. Of
  // copies (ModelParameter::is_copy) it is left as it is, which is 0.
  absl::Status SquaredNorms(const Tensor& squares);
  // Whether there is something to Update when the backward passes are done: tied parameters wait
  // for the gradients of another layer.
  bool updates_in_step() const {
    return !options_.updates_in_backward || tied_parameters_ != nullptr;
  }
  // Updates all that the backward passes have not. Pre-condition: updates_in_step(), and the
  // optimizer is not sharded.
  absl::Status Update(const UpdateStep& update);

  // Copies the loss stage's results to the host, in the stream's order: for Result, once the stream
  // has finished, of a micro-batch whose F and, in training, B came before. If it has a loss.
  absl::Status FetchResults();
  const Tensor& results() const { return results_; }  // (micro_batches, 2) float64, on the device
  LossResult Result(MicroBatch micro_batch) const;
  // A copy of the values of a parameter that it has(), which waits for the stream: rounded ones, if
  // layers read those and nothing is trained.
  absl::StatusOr<std::vector<float>> CopyParameter(ParameterId id);

  // The other way; waits for the stream.
  absl::Status SetParameter(ParameterId id, absl::Span<const float> values);

  // All that it trains: the parameters' values and, unless the optimizer is sharded, its states.
  std::vector<TrainedPiece> TrainedPieces() const;
  // Brings values that were written from outside into the form that layers read.
  absl::Status RoundParameters();

 private:
  Stage(kernels::Device& device, absl::Span<const ModelParameter> parameters,
        const StageOptions& options, Chain chain);
  absl::Status PrepareLoss(const LossFactory& factory);
  absl::Status PrepareFeed();
  void LayOut();
  void PlaceParameters(std::byte* resident);
  absl::Status InitializeParameters(uint64_t seed);
  absl::Status GroupParameters();
  // By when they are updated, if layers are in backward passes.
  absl::Status GroupByTime();
  absl::Status Finish();
  kernels::DType input_type() const { return InputType(device_, options_.vocabulary > 0); }
  const Tensor& ValueOf(ParameterId id) const;
  LayerArgs Args(const StageBlocks& blocks, const CallContext& call) const;
  LayerLoss LossOf(MicroBatch micro_batch) const;  // without outputs; on the last stage
  // Runs a backward pass, with the loss in its arguments where a layer computes it.
  absl::Status WithLayerLoss(LayerArgs args, MicroBatch micro_batch,
                             absl::FunctionRef<absl::Status(const LayerArgs&)> pass);
  absl::Status Replay(kernels::Recording& recording, absl::FunctionRef<absl::Status()> issue);
  bool generates() const { return options_.cached_positions > 0; }
  bool has_loss() const { return options_.is_last && !generates(); }
  // Feed::Release, if anything may be copied ahead.
  absl::Status ReleaseFeed() { return generates() ? absl::OkStatus() : feed_.Release(); }
  absl::Status ComputeLoss(const LayerArgs& args, MicroBatch micro_batch);
  // F, if the last layer computes the loss.
  absl::Status ForwardToLoss(const Chain& chain, LayerArgs args, MicroBatch micro_batch,
                             const StageOutputs& outputs, kernels::Recording& recording);
  // What BackwardWeight and Backward share: `run` is given where gradients go, and what to do after
  // each layer.
  absl::Status RunBackward(
      LayerArgs args, MicroBatch micro_batch, const UpdateStep* update,
      kernels::Recording& recording,
      absl::FunctionRef<absl::Status(const LayerArgs&, Chain::AfterLayer)> run);
  // Adds copies of the gradients of a layer.
  absl::Status FoldGradients(int layer, absl::Span<const GradientBlocks::Fold> folds);

  kernels::Device& device_;
  const StageOptions options_;
  LayerWatch* watch_ = nullptr;
  Chain chain_;
  const Bundle input_, output_;  // what passes from the stage before, and to the next
  // For micro-batches of one row, where they have their own (HasSingleRows).
  struct SingleRows {
    Chain chain;
    Bundle input, output;
  };
  std::optional<SingleRows> single_;
  const absl::Span<const ModelParameter> parameters_;
  // Index: position among parameters_.
  std::vector<kernels::ParameterTensors> tensors_;
  std::vector<Tensor> values_;  // as layers take them
  const GradientBlocks blocks_;
  std::vector<std::vector<GradientBlocks::Fold>> folds_;  // index: micro-batch
  std::vector<std::vector<Tensor>> gradients_;            // by copy (GradientBlocks)
  Tensor all_gradients_, all_values_;
  std::byte* shard_states_ = nullptr;
  std::byte* cache_ = nullptr;  // of its layers (LayerArgs::cache)
  std::unique_ptr<kernels::ParameterGroup> all_parameters_;
  // Consecutive ones that norms count.
  struct CountedParameters {
    std::unique_ptr<kernels::ParameterGroup> group;
    int64_t first = 0, count = 0;
  };
  std::vector<CountedParameters> counted_parameters_;
  // If layers are updated in backward passes: those that are, by layer, and the others, if any.
  std::vector<std::unique_ptr<kernels::ParameterGroup>> layer_parameters_;
  std::unique_ptr<kernels::ParameterGroup> tied_parameters_;
  Feed feed_;
  std::unique_ptr<Loss> loss_;  // on the last stage
  LossSpec loss_spec_;          // elsewhere it takes no targets
  Tensor results_;              // (micro_batches, 2) float64
  kernels::HostBuffer host_results_;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_STAGE_STAGE_H_
