#ifndef STAGECOACH_ENGINE_STAGE_LAYER_COST_H_
#define STAGECOACH_ENGINE_STAGE_LAYER_COST_H_

#include <cstdint>

#include "engine/model/bundle.h"
#include "engine/model/layer.h"
#include "engine/model/loss.h"
#include "engine/model/model.h"
#include "engine/model/parameter_table.h"
#include "engine/stage/optimizer.h"
#include "partition/layer_cost.h"
#include "partition/stage_memory.h"
#include "schedule/lowering.h"

// What the engine's objects weigh in the terms of the planner. Stage lays its memory out by the
// same sizes.
namespace stagecoach::engine {

// The results of a micro-batch are two doubles.
inline constexpr int64_t kResultBytesPerMicroBatch = 2 * sizeof(double);
// What a loss has of each micro-batch for the whole step: targets, terms and results.
int64_t BytesOfLoss(const LossSpec& loss, int64_t micro_batch_rows);
// The inputs of a step are copied ahead to a place of their own where the host cannot write them
// into the device's memory: one micro-batch there. `input`: what the first layer is given.
int64_t BytesOfFeed(const kernels::Device& device, const Bundle& input);
partition::EndMemory BytesOfEnds(const kernels::Device& device, const Bundle& input,
                                 const LossSpec& loss, int64_t micro_batch_rows, int micro_batches);

// Of a run whose updates wait for the norm (Optimizer::waits_for_norm): the squared norm of each
// parameter, in double. Where results are shared: what the loss keeps of each micro-batch.
schedule::CollectiveMemory BytesOfCollectives(const ParameterTable& parameters,
                                              const Optimizer& optimizer,
                                              schedule::ResultsPlace results);

// float32, not rounded up.
// Whether a stage of that model also has layers for a single row, besides those for the rows of a
// micro-batch: on a CPU device, the positions of a prompt pass together, and what follows passes
// one by one. Each layer's workspace is then that of the larger.
bool HasSingleRows(const Model& model, const kernels::Device& device, int64_t micro_batch_rows);

int64_t BytesOfGradient(const ModelParameter& parameter);

// Everything of a prepared layer but its times. It can do F again within B if it keeps anything
// that it could do without then, and reads nothing but its input.
partition::LayerCost CostOf(const LayerSpec& spec);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_STAGE_LAYER_COST_H_
