#ifndef STAGECOACH_ENGINE_NN_LAYERS_COMPOSITE_TENSOR_BLOCKS_H_
#define STAGECOACH_ENGINE_NN_LAYERS_COMPOSITE_TENSOR_BLOCKS_H_

#include <cstdint>
#include <vector>

#include "engine/nn/layer.h"
#include "engine/nn/parsing/layer_type.h"

namespace stagecoach::engine {

// Layers that are cut into blocks, as Megatron cuts a block of a transformer (Shoeybi et al. 2019):
// a linear one, whose outputs are shared out; others that work on each share by itself, such as
// attention, whose heads are; and a linear one whose inputs are. Each block is a
// chain of its share of each, and y and dx are the sums of those of all blocks, by a balanced
// binary tree, each addition rounded to the type of activations.
//
// LayerContext::part says which blocks are computed here: the first parts / blocks of them, the
// next as many, ... Each part adds up its own, and then all parts theirs (LayerContext::part_sums).
// So the bits depend on the number of blocks, but not on the number of parts.
//
// `blocks`: the layers of each, a power of two of them, that differ only in that the first block
// alone has the last layer's bias. `shares`: proportions of parts of the first layer's outputs, of
// each of which a block has its share: {12, 4, 4} for 12 heads' queries and 4 heads' keys and
// values; {1} if there are no parts. The parameters are those of the whole layers, named as these
// are in a list: "0.weight", "0.bias", "2.weight", "2.bias", and have the initial values of the
// whole (ParameterSpec::blocks, LayerSpec::stands_for). Those of layers in between, such as the
// gains of HeadNorm, are shared: all blocks read the same, and their gradients are added up as y
// is, in float32, for each micro-batch.
LayerFactory TensorBlocks(std::vector<std::vector<LayerFactory>> blocks,
                          std::vector<int64_t> shares);

extern const LayerType kTensorBlocksType;

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_NN_LAYERS_COMPOSITE_TENSOR_BLOCKS_H_
