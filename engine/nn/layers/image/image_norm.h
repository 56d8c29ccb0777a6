#ifndef STAGECOACH_ENGINE_NN_LAYERS_IMAGE_IMAGE_NORM_H_
#define STAGECOACH_ENGINE_NN_LAYERS_IMAGE_IMAGE_NORM_H_

#include <cstdint>

#include "engine/nn/layer.h"
#include "engine/nn/parsing/layer_type.h"

namespace stagecoach::engine {

// Both take images [channels, height, width], keep their shape, normalize to mean 0 and variance 1,
// and then scale and shift each channel (kernels/ops/image_norm.h). Parameters "weight" [channels],
// 1, and "bias" [channels], 0.

// Normalizes groups of channels, each sample by itself. `groups` divides the channels.
LayerFactory GroupNorm(int64_t groups, float epsilon = 1e-5F);

struct BatchNormOptions {
  float momentum = 0.1F;  // weight of a step in the moving averages
  float epsilon = 1e-5F;
};

// Normalizes each channel over a micro-batch, as GPipe does: the division of a batch into
// micro-batches is part of what is computed, but not where they are computed. Evaluation uses
// moving averages of the mean and the unbiased variance, which each step moves towards their
// averages over all of its micro-batches: parameters "running_mean", 0, and "running_var", 1
// (UpdateRule::MovingAverage). A micro-batch has more than one element of each channel.
LayerFactory BatchNorm(const BatchNormOptions& options = {});

extern const LayerType kGroupNormType, kBatchNormType;

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_NN_LAYERS_IMAGE_IMAGE_NORM_H_
