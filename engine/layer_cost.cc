#include "engine/layer_cost.h"

namespace stagecoach::engine {

using kernels::DType;
using partition::AlignTensor;

int64_t ActivationBytes(const Shape& sample, int64_t rows) {
  return rows * sample.elements() * SizeOf(DType::kFloat32);
}

ParameterBytes BytesOfParameters(const LayerSpec& spec, const Optimizer& optimizer) {
  ParameterBytes bytes;
  for (const ParameterSpec& parameter : spec.parameters) {
    bytes.parameters += AlignTensor(kernels::Float32(nullptr, parameter.shape).bytes());
  }
  bytes.optimizer = optimizer.states() * bytes.parameters;
  bytes.norms = AlignTensor(static_cast<int64_t>(spec.parameters.size()) * SizeOf(DType::kFloat64));
  return bytes;
}

partition::LossMemory BytesOfLoss(int64_t micro_batch_rows, int micro_batches) {
  return {.workspace_bytes = AlignTensor(micro_batch_rows * SizeOf(DType::kInt32)),
          .resident_bytes = AlignTensor(micro_batches * kLossBytesPerMicroBatch)};
}

partition::LayerCost CostOf(const LayerSpec& spec, const Shape& input, int64_t micro_batch_rows,
                            const Optimizer& optimizer) {
  const ParameterBytes bytes = BytesOfParameters(spec, optimizer);
  partition::LayerCost cost;
  cost.name = spec.description;
  for (const ParameterSpec& parameter : spec.parameters) {
    cost.parameters += parameter.shape.elements();
  }
  cost.flops = spec.forward.flops + spec.backward_input.flops + spec.backward_weight.flops;
  cost.memory = {.parameter_bytes = bytes.parameters,
                 .optimizer_bytes = bytes.optimizer,
                 .other_resident_bytes = bytes.norms,
                 .input_bytes = ActivationBytes(input, micro_batch_rows),
                 .output_bytes = ActivationBytes(spec.output, micro_batch_rows),
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
