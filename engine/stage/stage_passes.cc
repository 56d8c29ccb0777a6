// What a stage does for one micro-batch: its layers' passes, and the loss.

#include <algorithm>
#include <cstddef>

#include "base/status_macros.h"
#include "engine/model/catch_exceptions.h"
#include "engine/stage/layer_cost.h"
#include "engine/stage/stage.h"
#include "kernels/ops/ops.h"

namespace stagecoach::engine {

using kernels::DType;

LayerArgs Stage::Args(const StageBlocks& blocks, const CallContext& call) const {
  return {.stream = device_.stream(),
          .call = call,
          .x = input_.At(0, blocks.input),
          .y = output_.At(0, blocks.output),
          .dx = input_.At(0, blocks.input_gradient),
          .dy = output_.At(0, blocks.output_gradient),
          .parameters = values_,
          .gradients = gradients_.front(),
          .stash = blocks.stash,
          .weight_stash = blocks.weight_stash,
          .gradient_stash = blocks.gradient_stash,
          .workspace = blocks.workspace,
          .cache = cache_};
}

absl::Status Stage::Forward(const StageBlocks& blocks, const CallContext& call, const Batch& batch,
                            MicroBatch micro_batch, const Tensor& outputs,
                            kernels::Recording& recording) {
  const LayerArgs args = Args(blocks, call);
  if (options_.is_first) {
    RETURN_IF_ERROR(feed_.Features(batch, micro_batch.value(), args.x));
  }
  if (loss_spec_.is_computed_by_layer) {
    return ForwardToLoss(args, batch, micro_batch, outputs, recording);
  }
  RETURN_IF_ERROR(Replay(recording, [&] { return chain_.Forward(args); }));
  const bool computes_loss = options_.is_last && batch.wants_loss;
  if (computes_loss) RETURN_IF_ERROR(ComputeLoss(args, batch, micro_batch));
  if (outputs.empty()) return absl::OkStatus();
  return device_.stream().CopyToHost(outputs.data, args.y.data, outputs.bytes());
}

absl::Status Stage::ForwardToLoss(LayerArgs args, const Batch& batch, MicroBatch micro_batch,
                                  const Tensor& outputs, kernels::Recording& recording) {
  if (args.call.is_training) {
    return Replay(recording, [&] { return chain_.Forward(args); });
  }
  // Layers share the workspace: the targets come to it when the others are done with it.
  RETURN_IF_ERROR(chain_.ForwardButLast(args));
  ASSIGN_OR_RETURN(LossTerms terms, TermsOf(batch, micro_batch, chain_.LastWorkspace(args)));
  terms.outputs = outputs;
  args.loss = &terms;
  return chain_.ForwardLast(args);
}

absl::StatusOr<LossTerms> Stage::TermsOf(const Batch& batch, MicroBatch micro_batch,
                                         std::byte* place) {
  const int64_t rows = options_.micro_batch_rows;
  LossTerms terms = {
      .targets = {},
      .valid_rows = static_cast<int64_t>(batch.RowsOf(micro_batch.value(), rows).size()),
      .scale = 1.0F / static_cast<float>(std::max<size_t>(batch.rows.size(), 1)),
      .result = {},
      .outputs = {}};
  if (!batch.wants_loss) return terms;
  const TargetSpec& target = loss_spec_.target;
  if (target.kind != TargetSpec::Kind::kNone) {
    terms.targets = {place, target.type(), target.shape.Batched(rows)};
    RETURN_IF_ERROR(feed_.Targets(batch, micro_batch.value(), terms.targets));
  }
  terms.result = {results_.f64() + int64_t{2} * micro_batch.value(), DType::kFloat64, Shape{2}};
  return terms;
}

absl::Status Stage::ComputeLoss(const LayerArgs& args, const Batch& batch, MicroBatch micro_batch) {
  // The layers are done with the workspace.
  ASSIGN_OR_RETURN(const LossTerms terms, TermsOf(batch, micro_batch, args.workspace));
  const LossArgs loss_args = {
      .stream = device_.stream(),
      .call = args.call,
      .y = args.y,
      .targets = terms.targets,
      .valid_rows = terms.valid_rows,
      .scale = terms.scale,
      .dy = args.dy,
      .result = terms.result,
      .workspace = args.workspace + BytesOfTargets(loss_spec_, options_.micro_batch_rows)};
  RETURN_IF_ERROR(CatchExceptions("the loss's Compute", [&] { return loss_->Compute(loss_args); }));
  if (watch_ == nullptr) return absl::OkStatus();
  return watch_->Saw(Pass::kLoss, options_.last_layer + 1, {terms.result, args.dy});
}

absl::Status Stage::BackwardInput(const StageBlocks& blocks, const CallContext& call,
                                  const Batch& batch, MicroBatch micro_batch,
                                  kernels::Recording& recording) {
  LayerArgs args = Args(blocks, call);
  if (!loss_spec_.is_computed_by_layer) {
    return Replay(recording, [&] { return chain_.BackwardInput(args); });
  }
  ASSIGN_OR_RETURN(const LossTerms terms, TermsOf(batch, micro_batch, chain_.LastWorkspace(args)));
  args.loss = &terms;
  return chain_.BackwardInput(args);
}

absl::Status Stage::BackwardWeight(const StageBlocks& blocks, const CallContext& call,
                                   MicroBatch micro_batch, const UpdateStep* update,
                                   kernels::Recording& recording) {
  return RunBackward(Args(blocks, call), micro_batch, update, recording,
                     [&](const LayerArgs& args, Chain::AfterLayer after_layer) {
                       return chain_.BackwardWeight(args, after_layer);
                     });
}

absl::Status Stage::Backward(const StageBlocks& blocks, const CallContext& call, const Batch& batch,
                             MicroBatch micro_batch, const UpdateStep* update,
                             kernels::Recording& recording) {
  LayerArgs args = Args(blocks, call);
  LossTerms terms;
  if (loss_spec_.is_computed_by_layer) {
    ASSIGN_OR_RETURN(terms, TermsOf(batch, micro_batch, chain_.LastWorkspace(args)));
    args.loss = &terms;
  }
  return RunBackward(args, micro_batch, update, recording,
                     [&](const LayerArgs& own, Chain::AfterLayer after_layer) {
                       return chain_.Backward(own, after_layer);
                     });
}

absl::Status Stage::RunBackward(
    LayerArgs args, MicroBatch micro_batch, const UpdateStep* update, kernels::Recording& recording,
    absl::FunctionRef<absl::Status(const LayerArgs&, Chain::AfterLayer)> run) {
  args.accumulate = !blocks_.is_first(micro_batch.value());
  args.gradients = gradients_[static_cast<size_t>(blocks_.CopyOf(micro_batch.value()))];
  const auto& folds = folds_[static_cast<size_t>(micro_batch.value())];
  if (update == nullptr && args.loss == nullptr) {
    return Replay(recording, [&] {
      return run(args, [&](int layer) { return FoldGradients(layer, folds); });
    });
  }
  // An update and the terms of a loss are different in every step: this cannot be a recording.
  return run(args, [&](int layer) -> absl::Status {
    RETURN_IF_ERROR(FoldGradients(layer, folds));
    if (update == nullptr) return absl::OkStatus();
    return UpdateParameters(options_.optimizer, *update, device_,
                            *layer_parameters_[static_cast<size_t>(layer)]);
  });
}

absl::Status Stage::FoldGradients(int layer, absl::Span<const GradientBlocks::Fold> folds) {
  const auto first = static_cast<size_t>(chain_.first_parameter(layer));
  const auto end = static_cast<size_t>(chain_.first_parameter(layer + 1));
  const auto copy = [this](int index, size_t parameter) -> const Tensor& {
    return gradients_[static_cast<size_t>(index)][parameter];
  };
  for (const GradientBlocks::Fold& fold : folds) {
    for (size_t i = first; i < end; ++i) {
      RETURN_IF_ERROR(device_.ops().elementwise().Add(device_.stream(), copy(fold.left, i),
                                                      copy(0, i), copy(fold.to, i)));
    }
  }
  return absl::OkStatus();
}

}  // namespace stagecoach::engine
