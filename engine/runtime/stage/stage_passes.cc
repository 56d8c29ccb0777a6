// The passes of one micro-batch through a stage's layers, and the loss.

#include <cstddef>
#include <cstdint>

#include "base/catch_exceptions.h"
#include "base/status_macros.h"
#include "engine/runtime/stage/stage.h"
#include "kernels/ops/ops.h"

namespace stagecoach::engine {

using kernels::DType;

LayerArgs Stage::Args(const StageBlocks& blocks, const CallContext& call,
                      MicroBatch micro_batch) const {
  return {.stream = device_.stream(),
          .call = call,
          .x = input_.At(0, blocks.input),
          .y = output_.At(0, blocks.output),
          .dx = input_.At(0, blocks.input_gradient),
          .dy = output_.At(0, blocks.output_gradient),
          .documents = feed_.DocumentsOf(micro_batch.value()),
          .parameters = values_,
          .gradients = gradients_.front(),
          .stash = blocks.stash,
          .weight_stash = blocks.weight_stash,
          .gradient_stash = blocks.gradient_stash,
          .workspace = blocks.workspace,
          .cache = cache_};
}

const Stage::OtherChain* Stage::OtherChainFor(int64_t rows, bool rows_are_sequences) const {
  for (const OtherChain& other : others_) {
    const bool are_sequences = rows_are_sequences || rows == 1;
    if (other.pass.rows >= rows && other.pass.rows_are_sequences == are_sequences) return &other;
  }
  return nullptr;
}

absl::Status Stage::Forward(const StageBlocks& blocks, const CallContext& call, const Batch& batch,
                            MicroBatch micro_batch, const StageOutputs& outputs,
                            kernels::Recording& recording) {
  const auto rows = std::ssize(batch.RowsOf(micro_batch.value(), options_.micro_batch_rows));
  // Nobody reads what the padding of a micro-batch without rows gives.
  if (generates() && device_.memory_is_host() && rows == 0) return absl::OkStatus();
  LayerArgs args = Args(blocks, call, micro_batch);
  const OtherChain* const other = OtherChainFor(rows, batch.rows_are_sequences);
  const Sequential& chain = other == nullptr ? chain_ : other->chain;
  RETURN_IF_ERROR(feed_.Documents(batch, micro_batch.value()));
  if (options_.is_first && !batch.continues) {
    RETURN_IF_ERROR(feed_.Features(batch, micro_batch.value(), args.x));
  }
  if (other != nullptr) {
    args.x = other->input.At(0, blocks.input);
    args.y = other->output.At(0, blocks.output);
  }
  if (!options_.is_last) {
    RETURN_IF_ERROR(ReleaseFeed());
    return Replay(recording, [&] { return chain.Forward(args); });
  }
  if (has_loss()) RETURN_IF_ERROR(feed_.Loss(batch, micro_batch.value()));
  if (loss_spec_.is_computed_by_layer) {
    return ForwardToLoss(chain, args, micro_batch, outputs, recording);
  }
  RETURN_IF_ERROR(Replay(recording, [&]() -> absl::Status {
    RETURN_IF_ERROR(chain.Forward(args));
    return has_loss() ? ComputeLoss(args, micro_batch) : absl::OkStatus();
  }));
  RETURN_IF_ERROR(ReleaseFeed());
  if (outputs.values.empty()) return absl::OkStatus();
  return device_.stream().CopyToHost(outputs.values.data, args.y.data, outputs.values.bytes());
}

absl::Status Stage::ForwardToLoss(const Sequential& chain, LayerArgs args, MicroBatch micro_batch,
                                  const StageOutputs& outputs, kernels::Recording& recording) {
  const auto forward = [&] { return chain.Forward(args); };
  if (args.call.is_training) return Replay(recording, forward);
  LayerLoss loss = LossOf(micro_batch);
  loss.outputs = outputs.values;
  kernels::HeadChoice choice;
  if (outputs.choice != nullptr) {
    choice = *outputs.choice;
    if (options_.is_first) choice.next = args.x.i32();
    loss.choice = &choice;
  }
  if (has_loss() || !loss.outputs.empty() || loss.choice != nullptr) args.loss = &loss;
  RETURN_IF_ERROR(Replay(recording, forward));
  return ReleaseFeed();
}

LayerLoss Stage::LossOf(MicroBatch micro_batch) const {
  if (!has_loss()) return {};
  const int i = micro_batch.value();
  return {.targets = feed_.TargetsOf(i),
          .terms = feed_.TermsOf(i),
          .result = {results_.f64() + int64_t{2} * i, DType::kFloat64, Shape{2}},
          .outputs = {}};
}

absl::Status Stage::WithLayerLoss(LayerArgs args, MicroBatch micro_batch,
                                  absl::FunctionRef<absl::Status(const LayerArgs&)> pass) {
  if (!loss_spec_.is_computed_by_layer) return pass(args);
  const LayerLoss loss = LossOf(micro_batch);
  args.loss = &loss;
  RETURN_IF_ERROR(pass(args));
  return feed_.Release();
}

absl::Status Stage::ComputeLoss(const LayerArgs& args, MicroBatch micro_batch) {
  const LayerLoss loss = LossOf(micro_batch);
  const LossArgs loss_args = {.stream = device_.stream(),
                              .call = args.call,
                              .y = args.y,
                              .targets = loss.targets,
                              .terms = loss.terms,
                              .dy = args.dy,
                              .result = loss.result,
                              .workspace = args.workspace};  // the layers no longer need it
  RETURN_IF_ERROR(
      base::CatchExceptions("the loss's Compute", [&] { return loss_->Compute(loss_args); }));
  if (watch_ == nullptr) return absl::OkStatus();
  return watch_->OnTensor(Pass::kLoss, options_.last_layer + 1, {loss.result, args.dy});
}

absl::Status Stage::BackwardInput(const StageBlocks& blocks, const CallContext& call,
                                  MicroBatch micro_batch, kernels::Recording& recording) {
  return WithLayerLoss(Args(blocks, call, micro_batch), micro_batch, [&](const LayerArgs& args) {
    return Replay(recording, [&] { return chain_.BackwardInput(args); });
  });
}

absl::Status Stage::BackwardWeight(const StageBlocks& blocks, const CallContext& call,
                                   MicroBatch micro_batch, const UpdateStep* update,
                                   kernels::Recording& recording) {
  return RunBackward(Args(blocks, call, micro_batch), micro_batch, update, recording,
                     [&](const LayerArgs& args, Sequential::AfterLayer after_layer) {
                       return chain_.BackwardWeight(args, after_layer);
                     });
}

absl::Status Stage::Backward(const StageBlocks& blocks, const CallContext& call,
                             MicroBatch micro_batch, const UpdateStep* update,
                             kernels::Recording& recording) {
  return WithLayerLoss(Args(blocks, call, micro_batch), micro_batch, [&](const LayerArgs& args) {
    return RunBackward(args, micro_batch, update, recording,
                       [&](const LayerArgs& own, Sequential::AfterLayer after_layer) {
                         return chain_.Backward(own, after_layer);
                       });
  });
}

absl::Status Stage::RunBackward(
    LayerArgs args, MicroBatch micro_batch, const UpdateStep* update, kernels::Recording& recording,
    absl::FunctionRef<absl::Status(const LayerArgs&, Sequential::AfterLayer)> run) {
  args.accumulate = !blocks_.is_first(micro_batch.value());
  args.gradients = gradients_[static_cast<size_t>(blocks_.CopyOf(micro_batch.value()))];
  if (update == nullptr) {
    return Replay(recording, [&] {
      return run(args, [&](int layer) { return FoldGradients(layer, micro_batch); });
    });
  }
  // An update is different in every step, so this cannot be a recording.
  return run(args, [&](int layer) -> absl::Status {
    RETURN_IF_ERROR(FoldGradients(layer, micro_batch));
    return UpdateParameters(options_.optimizer, *update, device_,
                            *layer_parameters_[static_cast<size_t>(layer)]);
  });
}

absl::Status Stage::FoldGradients(int layer, MicroBatch micro_batch) {
  const auto first = static_cast<size_t>(chain_.first_parameter(layer));
  const auto end = static_cast<size_t>(chain_.first_parameter(layer + 1));
  auto top = static_cast<size_t>(blocks_.CopyOf(micro_batch.value()));
  for (int merges = blocks_.MergesAfter(micro_batch.value()); merges > 0; --merges, --top) {
    for (size_t i = first; i < end; ++i) {
      const Tensor& left = gradients_[top - 1][i];
      if (left.empty()) continue;  // it is frozen
      RETURN_IF_ERROR(
          device_.ops().elementwise().Add(device_.stream(), left, gradients_[top][i], left));
    }
  }
  return absl::OkStatus();
}

}  // namespace stagecoach::engine
