#ifndef STAGECOACH_ENGINE_NN_LAYERS_IMAGE_POOLING_H_
#define STAGECOACH_ENGINE_NN_LAYERS_IMAGE_POOLING_H_

#include <cstdint>

#include "engine/nn/layer.h"
#include "engine/nn/parsing/layer_type.h"

namespace stagecoach::engine {

struct PoolOptions {
  int64_t kernel = 2;   // along both axes
  int64_t stride = 0;   // 0: the kernel's
  int64_t padding = 0;  // at most half of the kernel
};

// Layers of images [channels, height, width], each channel by itself (kernels/ops/pooling.h). No
// parameters.

// Returns the largest element of each window.
LayerFactory MaxPool(const PoolOptions& options);
// Returns the average of each window; padding counts as 0.
LayerFactory AvgPool(const PoolOptions& options);
// Returns the average of each whole channel: the output is [channels].
LayerFactory GlobalAvgPool();

extern const LayerType kMaxPoolType, kAvgPoolType, kGlobalAvgPoolType;

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_NN_LAYERS_IMAGE_POOLING_H_
