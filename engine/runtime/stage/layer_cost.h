#ifndef STAGECOACH_ENGINE_RUNTIME_STAGE_LAYER_COST_H_
#define STAGECOACH_ENGINE_RUNTIME_STAGE_LAYER_COST_H_

#include <cstdint>
#include <vector>

#include "engine/models/model.h"
#include "engine/nn/boundary_tensors.h"
#include "engine/nn/layer.h"
#include "engine/nn/loss.h"
#include "engine/nn/parameter_table.h"
#include "engine/runtime/stage/optimizer.h"
#include "partition/cost/layer_cost.h"
#include "partition/cost/stage_memory.h"
#include "schedule/transforms/lowering.h"

// Weighs the engine's objects in the terms of the planner. Stage lays out its memory by the same
// sizes.
namespace stagecoach::engine {

// The results of a micro-batch are two doubles.
inline constexpr int64_t kResultBytesPerMicroBatch = 2 * sizeof(double);
// Returns the bytes that a loss keeps per micro-batch for the whole step: targets, terms and
// results.
int64_t BytesOfLoss(const LossSpec& loss, int64_t micro_batch_rows);
// Returns the bytes of one micro-batch's inputs in the place to which the inputs of a step are
// copied ahead if the host cannot write them into the device's memory. `input`: the first layer's.
int64_t BytesOfFeed(const kernels::Device& device, const BoundaryTensors& input);
// Returns the number of positions of a sample that every stage is told the documents of; 0: none.
int64_t DocumentPositions(const Model& model);
partition::EndMemory BytesOfEnds(const kernels::Device& device, const BoundaryTensors& input,
                                 const LossSpec& loss, int64_t document_positions,
                                 int64_t micro_batch_rows, int micro_batches);

// Returns the bytes of collectives: if updates wait for the norm (Optimizer::waits_for_norm), the
// squared norm of each piece of the parameters, in double; if results are shared, what the loss
// keeps of each micro-batch.
schedule::CollectiveMemory BytesOfCollectives(const ParameterTable& parameters,
                                              const Optimizer& optimizer,
                                              schedule::ResultsPlace results, int tensor_parts);

// How micro-batches of a model pass through its layers.
struct RowPass {
  int64_t rows = 1;
  bool rows_are_sequences = false;  // LayerContext
};
// The way of all, and ways that a stage has besides, of fewer rows or of other ones: of a model for
// generation on a CPU device, consecutive positions of a prompt pass together, and what follows
// passes with one row for each of some sequences. Each layer's workspace is that of the largest.
RowPass MainPass(const Model& model, const kernels::Device& device, int64_t micro_batch_rows);
std::vector<RowPass> OtherPasses(const Model& model, const kernels::Device& device,
                                 int64_t micro_batch_rows);
// Returns the most rows of a micro-batch whose outputs can be wanted. A model for generation
// returns outputs of the last position of each sequence alone.
int64_t OutputRows(const Model& model, int64_t micro_batch_rows);

// Returns the bytes of what one of the devices that perform a stage together has of its gradient,
// float32, not rounded up.
int64_t BytesOfGradient(const ModelParameter& parameter, int tensor_parts);

// Returns the number of parameters of a layer that a device updates, of those that perform its
// stage together.
int64_t HeldParameters(const LayerSpec& spec, int tensor_parts);

// Returns everything about a prepared layer except its times. F can be recomputed within B if the
// layer keeps anything that it could then do without, and reads nothing but its input.
partition::LayerCost CostOf(const LayerSpec& spec);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_RUNTIME_STAGE_LAYER_COST_H_
