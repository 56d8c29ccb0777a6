#include "engine/stage/layer_cost.h"

namespace stagecoach::engine {

using kernels::DType;
using partition::AlignTensor;

int64_t ActivationBytes(const Shape& sample, int64_t rows, DType type) {
  return rows * sample.elements() * SizeOf(type);
}

ParameterBytes BytesOfParameters(const LayerSpec& spec, const Optimizer& optimizer,
                                 DType activation_type) {
  ParameterBytes bytes;
  int64_t working_bytes = 0;
  for (const ParameterSpec& parameter : spec.parameters) {
    bytes.parameters += AlignTensor(kernels::Float32(nullptr, parameter.shape).bytes());
    if (activation_type != DType::kFloat32) {
      working_bytes += AlignTensor(Tensor{nullptr, activation_type, parameter.shape}.bytes());
    }
  }
  bytes.optimizer = optimizer.states() * bytes.parameters + working_bytes;
  return bytes;
}

int64_t BytesOfLabels(int64_t micro_batch_rows) {
  return AlignTensor(micro_batch_rows * SizeOf(DType::kInt32));
}

partition::LossMemory BytesOfLoss(int64_t micro_batch_rows, int micro_batches,
                                  int64_t operation_workspace_bytes) {
  return {
      .workspace_bytes = BytesOfLabels(micro_batch_rows) + AlignTensor(operation_workspace_bytes),
      .resident_bytes = AlignTensor(micro_batches * kLossBytesPerMicroBatch)};
}

partition::LayerCost CostOf(const LayerSpec& spec, const Shape& input, int64_t micro_batch_rows,
                            const Optimizer& optimizer, DType activation_type) {
  const ParameterBytes bytes = BytesOfParameters(spec, optimizer, activation_type);
  partition::LayerCost cost;
  cost.name = spec.description;
  for (const ParameterSpec& parameter : spec.parameters) {
    cost.parameters += parameter.shape.elements();
  }
  cost.flops = spec.forward.flops + spec.backward_input.flops + spec.backward_weight.flops;
  cost.memory = {.parameter_bytes = bytes.parameters,
                 .optimizer_bytes = bytes.optimizer,
                 .input_bytes = ActivationBytes(input, micro_batch_rows, activation_type),
                 .output_bytes = ActivationBytes(spec.output, micro_batch_rows, activation_type),
                 .stash_bytes = AlignTensor(spec.stash_bytes),
                 .weight_stash_bytes = AlignTensor(spec.weight_stash_bytes),
                 .gradient_stash_bytes = AlignTensor(spec.gradient_stash_bytes),
                 .workspace_bytes = AlignTensor(spec.workspace_bytes),
                 .input_last_use = spec.input_last_use,
                 .output_last_use = spec.output_last_use,
                 .output_gradient_last_use = spec.output_gradient_last_use};
  return cost;
}

}  // namespace stagecoach::engine
