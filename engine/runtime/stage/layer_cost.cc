#include "engine/runtime/stage/layer_cost.h"

#include <algorithm>

#include "engine/data/feed.h"

namespace stagecoach::engine {

using kernels::DType;
using partition::AlignTensor;

namespace {

bool HasPasses(const Model& model, const kernels::Device& device) {
  return model.cached_positions > 0 && model.skips.empty() && device.memory_is_host();
}

}  // namespace

int64_t BytesOfLoss(const LossSpec& loss, int64_t micro_batch_rows) {
  return BytesOfTargets(loss.target, micro_batch_rows) + kResultBytesPerMicroBatch;
}

int64_t BytesOfFeed(const kernels::Device& device, const BoundaryTensors& input) {
  return device.memory_is_host() ? 0 : input.bytes();
}

partition::EndMemory BytesOfEnds(const kernels::Device& device, const BoundaryTensors& input,
                                 const LossSpec& loss, int64_t document_positions,
                                 int64_t micro_batch_rows, int micro_batches) {
  return {.feed_resident_bytes = AlignTensor(micro_batches * BytesOfFeed(device, input)),
          .loss_workspace_bytes = loss.is_computed_by_layer ? 0  // the layer's own
                                                            : AlignTensor(loss.workspace_bytes),
          .loss_resident_bytes = AlignTensor(micro_batches * BytesOfLoss(loss, micro_batch_rows)),
          .stage_resident_bytes =
              micro_batches * BytesOfDocuments(document_positions, micro_batch_rows)};
}

int64_t DocumentPositions(const Model& model) {
  return model.has_documents ? model.input.elements() : 0;
}

schedule::CollectiveMemory BytesOfCollectives(const ParameterTable& parameters,
                                              const Optimizer& optimizer,
                                              schedule::ResultsPlace results, int tensor_parts) {
  using schedule::ResultsPlace;
  return {.ties = parameters.ties(),
          .norm_bytes = optimizer.waits_for_norm()
                            ? parameters.pieces() * SizeOf(kernels::DType::kFloat64)
                            : 0,
          .tensor_parts = tensor_parts,
          .result_bytes = results == ResultsPlace::kNowhere ? 0 : kResultBytesPerMicroBatch,
          .results_before_steps = results == ResultsPlace::kBeforeSteps};
}

int64_t OutputRows(const Model& model, int64_t micro_batch_rows) {
  return model.cached_positions > 0 ? std::min(model.cached_sequences, micro_batch_rows)
                                    : micro_batch_rows;
}

RowPass MainPass(const Model& model, const kernels::Device& device, int64_t micro_batch_rows) {
  const bool are_sequences = HasPasses(model, device) && micro_batch_rows == 1;
  return {.rows = micro_batch_rows, .rows_are_sequences = are_sequences};
}

std::vector<RowPass> OtherPasses(const Model& model, const kernels::Device& device,
                                 int64_t micro_batch_rows) {
  std::vector<RowPass> passes;
  if (!HasPasses(model, device) || micro_batch_rows == 1) return passes;
  const int64_t most = OutputRows(model, micro_batch_rows);
  for (int64_t rows = 1; rows < most; rows = rows == 1 ? 4 : 2 * rows) {
    passes.push_back({.rows = rows, .rows_are_sequences = true});
  }
  passes.push_back({.rows = most, .rows_are_sequences = true});
  // A prompt of several should not take the time of the longest.
  for (int64_t rows = 16; model.cached_sequences > 1 && rows < micro_batch_rows; rows *= 2) {
    passes.push_back({.rows = rows});
  }
  return passes;
}

int64_t BytesOfGradient(const ModelParameter& parameter, int tensor_parts) {
  return HeldElements(parameter.shape, parameter.blocks, {.parts = tensor_parts}) *
         SizeOf(DType::kFloat32);
}

int64_t HeldParameters(const LayerSpec& spec, int tensor_parts) {
  int64_t parameters = 0;
  for (const ParameterSpec& parameter : spec.parameters) {
    if (parameter.update.kind != UpdateRule::Kind::kOptimizer) continue;
    parameters += HeldElements(parameter.shape, parameter.blocks, {.parts = tensor_parts});
  }
  return parameters;
}

partition::LayerCost CostOf(const LayerSpec& spec) {
  partition::LayerCost cost;
  cost.name = spec.description;
  cost.parameters = HeldParameters(spec, 1);
  cost.forward_exchange = spec.forward_exchange;
  cost.backward_exchange = spec.backward_exchange;
  cost.input_gradient_exchange = spec.input_gradient_exchange;
  cost.weight_exchange = spec.weight_exchange;
  cost.flops = spec.forward.flops + spec.backward_input.flops + spec.backward_weight.flops -
               spec.backward_shared.flops;
  cost.memory = spec.memory;
  const bool drops = spec.memory.stash_bytes + spec.memory.weight_stash_bytes > 0;
  if (drops && !spec.takes_skip) cost.recompute_stash_bytes = kRecomputeStashBytes;
  return cost;
}

}  // namespace stagecoach::engine
