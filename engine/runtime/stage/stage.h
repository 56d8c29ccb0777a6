#ifndef STAGECOACH_ENGINE_RUNTIME_STAGE_STAGE_H_
#define STAGECOACH_ENGINE_RUNTIME_STAGE_STAGE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/data/feed.h"
#include "engine/models/model.h"
#include "engine/nn/boundary_tensors.h"
#include "engine/nn/parameter_table.h"
#include "engine/nn/sequential.h"
#include "engine/runtime/stage/gradient_tree.h"
#include "engine/runtime/stage/layer_cost.h"
#include "engine/runtime/stage/optimizer.h"
#include "engine/runtime/stage/trained_piece.h"
#include "partition/cost/replication.h"
#include "schedule/ir/action.h"
#include "schedule/memory/memory_plan.h"

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
  bool is_first = false;           // its input is data
  bool is_last = false;            // it computes the loss
  bool splits_backward = false;    // B and W are called separately
  bool trains = true;              // otherwise it has neither gradients nor states
  Shape input;                     // of one sample
  int64_t vocabulary = 0;          // of its input, if that has ids (Model::vocabulary)
  int64_t document_positions = 0;  // DocumentPositions (layer_cost.h)
  int64_t micro_batch_rows = 1;
  int micro_batches = 1;  // of one replica
  partition::Replication replication;
  int replica = 0;
  TensorPart part;                // of the stage, that this device performs
  PartSums* part_sums = nullptr;  // with the other parts
  Optimizer optimizer;
  // Model::cached_positions. If positive, there is neither a target nor a loss.
  int64_t cached_positions = 0;
  int64_t output_rows = 1;  // OutputRows: of a micro-batch, at most
  // Whether Backward and BackwardWeight will be given updates to apply.
  bool updates_in_backward = false;
  Skips skips;                  // of the model, at that size (ModelProfile::skips)
  std::vector<int> recomputed;  // layers that repeat F within B, counted from the first
  // The least scratch of each layer: what a device with more threads takes, for which the memory
  // was planned. Empty: that of this device.
  std::vector<int64_t> workspace_bytes;
};

// The blocks of one micro-batch of a stage (schedule::BlockKind). Null if the operation at hand has
// none.
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

// Parts of the last layer's results for a micro-batch that the host wants: at most one of both.
struct StageOutputs {
  Tensor values;  // those of its first rows, in host memory; empty if not wanted
  const kernels::HeadChoice* choice = nullptr;  // for a last layer that computes the loss
};

// One stage: its layers, parameters, gradients and optimizer state on one device. Knows neither
// schedules nor other stages. All functions except plain getters are called from jobs of the
// device's stream, and issue work in its order.
class Stage {
 public:
  // Prepares the layers. `parameters`: those of the whole model; they outlive the stage and do not
  // change.
  static absl::StatusOr<std::unique_ptr<Stage>> Create(kernels::Device& device, const Model& model,
                                                       const ParameterTable& parameters,
                                                       const StageOptions& options);

  const StageOptions& options() const { return options_; }
  // The stage's own parameters, in the order of the model; their ids are consecutive.
  absl::Span<const ModelParameter> parameters() const { return parameters_; }
  bool has(ParameterId id) const {
    return !parameters_.empty() && parameters_.front().id <= id && id <= parameters_.back().id;
  }
  // Returns whether this part counts a parameter in norms and hashes: the first part counts those
  // that all have alike, and each part its PiecesOf pieces, from FirstPieceOf on, of one that is
  // cut (ModelParameter::first_piece).
  bool Counts(const ModelParameter& parameter) const {
    return parameter.pieces() > 1 || options_.part.index == 0;
  }
  int PiecesOf(const ModelParameter& parameter) const {
    return parameter.pieces() > 1 ? parameter.pieces() / options_.part.parts : 1;
  }
  int FirstPieceOf(const ModelParameter& parameter) const {
    const int before = parameter.pieces() > 1 ? options_.part.index * PiecesOf(parameter) : 0;
    return parameter.first_piece + before;
  }
  // The memory that the stage takes, as laid out here.
  const schedule::StageMemory& memory() const { return chain_.memory(); }
  // True if a layer that computes the loss copies the outputs, so that this is part of what F
  // records.
  bool records_outputs() const { return options_.is_last && loss_spec_.is_computed_by_layer; }

  // Puts parameters, gradients and states at `resident`, which has the size of memory()'s resident
  // parts, each rounded up by AlignBlock; and what the host's memory holds at `host`, which has
  // the size of memory().host_resident_bytes. Both are 0 before. Parameters get their initial
  // values, or, unless `draws_all`, only adapters do; the stream has finished then.
  absl::Status Place(std::byte* resident, std::byte* host, uint64_t seed, bool draws_all);

  // Runs F: fills the input from the batch on the first stage; computes the loss, and its gradient,
  // if there is a block for it, on the last. A last layer that computes the loss itself does so in
  // B of training instead. `outputs`: for the last stage. `recording`, here and below: always the
  // same one for the same operation on the same blocks and call context of the same micro-batch
  // and, if records_outputs(), the same `outputs`.
  absl::Status Forward(const StageBlocks& blocks, const CallContext& call, const Batch& batch,
                       MicroBatch micro_batch, const StageOutputs& outputs,
                       kernels::Recording& recording);
  // Shows what layers and the loss produce to `watch` from now on, and issues nothing as a
  // recording, until it is null.
  void Watch(ActivationObserver* watch) {
    watch_ = watch;
    chain_.Watch(watch);
  }
  // Returns the bytes of the largest tensor that a watch is shown.
  int64_t LargestShownBytes() const;
  // Does the host's part of feeding the next run while the device is busy with one (Feed::Prepare).
  absl::Status PrepareNext(const Batch& next) { return feed_.Prepare(next); }
  // Run B, W and BW. Gradients are summed in the order of GradientTree, by micro-batches in order.
  // `update`, if not null, is applied to each layer once its gradients are complete with this
  // micro-batch.
  absl::Status BackwardInput(const StageBlocks& blocks, const CallContext& call,
                             MicroBatch micro_batch, kernels::Recording& recording);
  absl::Status BackwardWeight(const StageBlocks& blocks, const CallContext& call,
                              MicroBatch micro_batch, const UpdateStep* update,
                              kernels::Recording& recording);
  absl::Status Backward(const StageBlocks& blocks, const CallContext& call, MicroBatch micro_batch,
                        const UpdateStep* update, kernels::Recording& recording);

  // The gradients of all trained parameters, one after the other, once they are complete: (n)
  // float32. The gaps between parameters are 0.
  const Tensor& all_gradients() const { return all_gradients_; }
  // The values of these parameters, at the same places, if all are on the device.
  const Tensor& all_values() const { return all_values_; }
  // For an OptimizerShard, if the optimizer is sharded: the parameters without states, and the
  // place of a shard's states.
  absl::Span<const kernels::ParameterTensors> tensors() const { return tensors_; }
  std::byte* shard_states() const { return shard_states_; }
  const Tensor& GradientOf(ParameterId id) const;  // Pre-condition: has(id); empty if frozen
  // Computes the sum of squares of the gradient of each piece of the parameters
  // (ModelParameter::first_piece) that this part counts: float64, those of the whole stage, in
  // order. The elements of copies (ModelParameter::is_copy), of frozen parameters and of other
  // parts' pieces are not written; they are 0. What all parts have alike is the first one's.
  absl::Status SquaredNorms(const Tensor& squares);
  // True if there is something to Update when the backward passes are done: tied parameters wait
  // for the gradients of another layer.
  bool updates_in_step() const {
    return !options_.updates_in_backward || tied_parameters_ != nullptr;
  }
  // Updates all that the backward passes have not. Pre-condition: updates_in_step(), and the
  // optimizer is not sharded.
  absl::Status Update(const UpdateStep& update);

  // Sets the averages of parameters (Optimizer::has_ema) to their values; exchanges both, so that
  // layers read the averages, or again the values. Pre-condition: the optimizer is not sharded.
  absl::Status StartAverages();
  absl::Status SwapAverages();

  // Copies the loss stage's results to the host, in the stream's order: for Result, once the stream
  // has finished, about a micro-batch whose F and, in training, B came before. Does nothing without
  // a loss.
  absl::Status FetchResults();
  const Tensor& results() const { return results_; }  // (micro_batches, 2) float64, on the device
  LossResult Result(MicroBatch micro_batch) const;
  // Returns a copy of the values of a parameter that it has(), as far as this part holds them, in
  // the order of storage; waits for the stream. The values are rounded if layers read rounded ones
  // and nothing is trained.
  absl::StatusOr<std::vector<float>> CopyParameter(ParameterId id);

  // Sets a parameter to all of its values, in the order of its shape; waits for the stream.
  absl::Status SetParameter(ParameterId id, absl::Span<const float> values);

  // Returns what a run must keep of the stage: the parameters' values, those of frozen ones too,
  // and, unless the optimizer is sharded, its states.
  std::vector<TrainedPiece> TrainedPieces() const;
  // Converts values that were written from outside to the form that layers read.
  absl::Status RoundParameters();

 private:
  // For micro-batches that pass otherwise than by the main one (OtherPasses).
  struct OtherChain {
    RowPass pass;
    Sequential chain;
    BoundaryTensors input, output;
  };

  Stage(kernels::Device& device, absl::Span<const ModelParameter> parameters,
        const StageOptions& options, Sequential chain);
  absl::Status PrepareLoss(const LossFactory& factory);
  absl::Status PrepareFeed();
  void LayOut();
  void PlaceParameters(std::byte* resident, std::byte* host);
  absl::Status InitializeParameters(uint64_t seed, bool draws_all);
  std::vector<kernels::ParameterTensors> TrainedTensors() const;  // without the frozen ones
  absl::Status GroupParameters();
  absl::Status GroupCounted();
  // Groups parameters by the time of their update, if layers are updated in backward passes.
  absl::Status GroupByTime();
  absl::Status Finish();
  kernels::DType input_type() const { return InputType(device_, options_.vocabulary > 0); }
  size_t IndexOf(ParameterId id) const;  // Pre-condition: has(id)
  // Returns the shape of what this part holds of a parameter.
  Shape HeldShape(const ModelParameter& parameter) const;
  LayerArgs Args(const StageBlocks& blocks, const CallContext& call, MicroBatch micro_batch) const;
  LayerLoss LossOf(MicroBatch micro_batch) const;  // without outputs; on the last stage
  // Runs a backward pass, with the loss in its arguments if a layer computes it.
  absl::Status WithLayerLoss(LayerArgs args, MicroBatch micro_batch,
                             absl::FunctionRef<absl::Status(const LayerArgs&)> pass);
  // Null: by the main one.
  const OtherChain* OtherChainFor(int64_t rows, bool rows_are_sequences) const;
  absl::Status Replay(kernels::Recording& recording, absl::FunctionRef<absl::Status()> issue);
  bool generates() const { return options_.cached_positions > 0; }
  bool has_loss() const { return options_.is_last && !generates(); }
  // Calls Feed::Release, if anything may be copied ahead.
  absl::Status ReleaseFeed() { return generates() ? absl::OkStatus() : feed_.Release(); }
  absl::Status ComputeLoss(const LayerArgs& args, MicroBatch micro_batch);
  // Runs F, if the last layer computes the loss.
  absl::Status ForwardToLoss(const Sequential& chain, LayerArgs args, MicroBatch micro_batch,
                             const StageOutputs& outputs, kernels::Recording& recording);
  // Does what BackwardWeight and Backward share: `run` gets arguments with the places of gradients,
  // and the function to call after each layer.
  absl::Status RunBackward(
      LayerArgs args, MicroBatch micro_batch, const UpdateStep* update,
      kernels::Recording& recording,
      absl::FunctionRef<absl::Status(const LayerArgs&, Sequential::AfterLayer)> run);
  // Adds copies of the gradients of a layer.
  absl::Status FoldGradients(int layer, MicroBatch micro_batch);

  kernels::Device& device_;
  const StageOptions options_;
  ActivationObserver* watch_ = nullptr;
  Sequential chain_;
  const BoundaryTensors input_, output_;  // what passes from the stage before, and to the next
  std::vector<OtherChain> others_;        // of each kind in order of their rows
  const absl::Span<const ModelParameter> parameters_;
  // Index: position among parameters_.
  std::vector<kernels::ParameterTensors> tensors_;
  std::vector<Tensor> values_;  // as layers take them
  const GradientTree blocks_;
  std::vector<std::vector<Tensor>> gradients_;  // by copy (GradientTree)
  Tensor all_gradients_, all_values_;
  std::byte* shard_states_ = nullptr;
  std::byte* cache_ = nullptr;  // of its layers (LayerArgs::cache)
  std::unique_ptr<kernels::ParameterGroup> all_parameters_;
  // Consecutive pieces of parameters that count in norms.
  struct CountedParameters {
    std::unique_ptr<kernels::ParameterGroup> group;
    int64_t first = 0, count = 0;  // pieces, from the first one of the stage
  };
  std::vector<CountedParameters> counted_parameters_;
  // If layers are updated in backward passes: the updated ones, by layer, and the others, if any.
  std::vector<std::unique_ptr<kernels::ParameterGroup>> layer_parameters_;
  std::unique_ptr<kernels::ParameterGroup> tied_parameters_;
  Feed feed_;
  std::unique_ptr<Loss> loss_;  // on the last stage
  LossSpec loss_spec_;          // no targets if elsewhere
  Tensor results_;              // (micro_batches, 2) float64
  kernels::HostBuffer host_results_;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_RUNTIME_STAGE_STAGE_H_
