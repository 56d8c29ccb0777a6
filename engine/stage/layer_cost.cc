#include "engine/stage/layer_cost.h"

namespace stagecoach::engine {

using kernels::DType;
using partition::AlignTensor;

int64_t BytesOfLabels(int64_t micro_batch_rows) {
  return AlignTensor(micro_batch_rows * SizeOf(DType::kInt32));
}

partition::LossMemory BytesOfLoss(int64_t micro_batch_rows, int micro_batches,
                                  int64_t operation_workspace_bytes) {
  return {
      .workspace_bytes = BytesOfLabels(micro_batch_rows) + AlignTensor(operation_workspace_bytes),
      .resident_bytes = AlignTensor(micro_batches * kLossBytesPerMicroBatch)};
}

partition::LayerCost CostOf(const LayerSpec& spec) {
  partition::LayerCost cost;
  cost.name = spec.description;
  for (const ParameterSpec& parameter : spec.parameters) {
    cost.parameters += parameter.shape.elements();
  }
  cost.flops = spec.forward.flops + spec.backward_input.flops + spec.backward_weight.flops;
  cost.memory = spec.memory;
  return cost;
}

}  // namespace stagecoach::engine
