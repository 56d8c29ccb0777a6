#include "engine/stage/layer_cost.h"

#include "engine/data/feed.h"

namespace stagecoach::engine {

using kernels::DType;
using partition::AlignTensor;

int64_t BytesOfLoss(const LossSpec& loss, int64_t micro_batch_rows) {
  return BytesOfTargets(loss.target, micro_batch_rows) + kResultBytesPerMicroBatch;
}

int64_t BytesOfFeed(const kernels::Device& device, const Bundle& input) {
  return device.memory_is_host() ? 0 : input.bytes();
}

partition::EndMemory BytesOfEnds(const kernels::Device& device, const Bundle& input,
                                 const LossSpec& loss, int64_t micro_batch_rows,
                                 int micro_batches) {
  return {.feed_resident_bytes = AlignTensor(micro_batches * BytesOfFeed(device, input)),
          .loss_workspace_bytes = loss.is_computed_by_layer ? 0  // it is the layer's own
                                                            : AlignTensor(loss.workspace_bytes),
          .loss_resident_bytes = AlignTensor(micro_batches * BytesOfLoss(loss, micro_batch_rows))};
}

schedule::CollectiveMemory BytesOfCollectives(const ParameterTable& parameters,
                                              const Optimizer& optimizer,
                                              schedule::ResultsPlace results) {
  using schedule::ResultsPlace;
  return {.ties = parameters.ties(),
          .norm_bytes =
              optimizer.waits_for_norm() ? parameters.size() * SizeOf(kernels::DType::kFloat64) : 0,
          .result_bytes = results == ResultsPlace::kNowhere ? 0 : kResultBytesPerMicroBatch,
          .results_before_steps = results == ResultsPlace::kBeforeSteps};
}

bool HasSingleRows(const Model& model, const kernels::Device& device, int64_t micro_batch_rows) {
  return model.cached_positions > 0 && model.skips.empty() && device.memory_is_host() &&
         micro_batch_rows > 1;
}

int64_t BytesOfGradient(const ModelParameter& parameter) {
  return parameter.shape.elements() * SizeOf(DType::kFloat32);
}

partition::LayerCost CostOf(const LayerSpec& spec) {
  partition::LayerCost cost;
  cost.name = spec.description;
  for (const ParameterSpec& parameter : spec.parameters) {
    if (!parameter.update.is_average()) cost.parameters += parameter.shape.elements();
  }
  cost.flops = spec.forward.flops + spec.backward_input.flops + spec.backward_weight.flops -
               spec.backward_shared.flops;
  cost.memory = spec.memory;
  const bool drops = spec.memory.stash_bytes + spec.memory.weight_stash_bytes > 0;
  if (drops && !spec.takes_skip) cost.recompute_stash_bytes = kRecomputeStashBytes;
  return cost;
}

}  // namespace stagecoach::engine
