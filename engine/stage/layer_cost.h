#ifndef STAGECOACH_ENGINE_STAGE_LAYER_COST_H_
#define STAGECOACH_ENGINE_STAGE_LAYER_COST_H_

#include <cstdint>

#include "engine/model/layer.h"
#include "engine/stage/optimizer.h"
#include "partition/layer_cost.h"
#include "partition/stage_memory.h"

// What the engine's objects weigh in the terms of the planner. Stage lays its memory out by the
// same sizes.
namespace stagecoach::engine {

// Bytes of an activation of `rows` samples, not rounded.
int64_t ActivationBytes(const Shape& sample, int64_t rows, kernels::DType type);

// Resident bytes of a layer; sums over its parameters, each tensor rounded up by AlignTensor.
struct ParameterBytes {
  int64_t parameters = 0;  // float32; the gradients take as much again
  int64_t optimizer = 0;   // its state, and what layers see instead of the parameters, if anything
};
ParameterBytes BytesOfParameters(const LayerSpec& spec, const Optimizer& optimizer,
                                 kernels::DType activation_type);

// The loss keeps labels of a micro-batch in the workspace, with the scratch of its operation behind
// them, and two doubles for each micro-batch.
inline constexpr int64_t kLossBytesPerMicroBatch = 2 * sizeof(double);
partition::LossMemory BytesOfLoss(int64_t micro_batch_rows, int micro_batches,
                                  int64_t operation_workspace_bytes);
int64_t BytesOfLabels(int64_t micro_batch_rows);  // rounded up

// Everything of a layer but its times. `input`: the shape of one sample entering it.
partition::LayerCost CostOf(const LayerSpec& spec, const Shape& input, int64_t micro_batch_rows,
                            const Optimizer& optimizer, kernels::DType activation_type);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_STAGE_LAYER_COST_H_
