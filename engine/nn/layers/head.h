#ifndef STAGECOACH_ENGINE_NN_LAYERS_HEAD_H_
#define STAGECOACH_ENGINE_NN_LAYERS_HEAD_H_

#include <cstdint>

#include "engine/nn/layer.h"
#include "engine/nn/parsing/layer_type.h"

namespace stagecoach::engine {

struct HeadOptions {
  int64_t classes = 0;  // of tokens: the vocabulary
  // Standard deviation of the initial weights, around 0. The default is GPT-2's, as in nanoGPT.
  float deviation = 0.02F;
  float logit_cap = 0.0F;  // logits z become logit_cap tanh(z / logit_cap); 0: they do not
  // Of the classes, which it divides: with several, devices may share the layer, as they do
  // TensorBlocks (composite/tensor_blocks.h). A power of two.
  int blocks = 1;
};

// The last layer of a language model, with its loss: logits y = x w^T at each position of a sample
// [positions, features], or of a sample [features], and their softmax cross-entropy, which it
// computes itself (kernels/ops/head.h). The logits are in memory for one tile of rows at a time.
// Parameter "weight" [classes, features], like an embedding's table. The values are those of a
// linear layer without bias, up to rounding.
//
// With blocks, each contributes to the softmax of a row, then all of them are joined, and dx is the
// sum of what each gives, by a balanced binary tree: the bits depend on the number of blocks, and
// not on how many devices share them. Outputs are not gathered from several devices
// (Unimplemented).
//
// F computes nothing in training: B computes the loss. InvalidArgument: it is not the last layer of
// a model with SoftmaxCrossEntropy().
LayerFactory Head(const HeadOptions& options);

extern const LayerType kHeadType;

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_NN_LAYERS_HEAD_H_
