#ifndef STAGECOACH_ENGINE_NN_PARSING_TENSOR_CUT_H_
#define STAGECOACH_ENGINE_NN_PARSING_TENSOR_CUT_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/status/statusor.h"

namespace stagecoach::engine {

// Layers of a model file that are cut into blocks (TensorBlocks in
// engine/nn/layers/composite/tensor_blocks.h).
struct TensorCut {
  nlohmann::json first_block, other_block;  // lists of layers
  std::vector<int64_t> shares;
};

// Cuts a list of layers: linear, attention, linear, with or without a head_norm before attention;
// linear, swiglu or geglu, linear; or two linear ones. InvalidArgument: it is none of these, or
// cannot be divided by the blocks.
absl::StatusOr<TensorCut> CutOf(const nlohmann::json& list, int64_t blocks);

// Returns the layers of a model, in which each such part of a list inside another layer has become
// one of "tensor_blocks". InvalidArgument: there is none, or one cannot be divided.
absl::StatusOr<nlohmann::json> WithTensorBlocks(const nlohmann::json& layers, int64_t blocks);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_NN_PARSING_TENSOR_CUT_H_
