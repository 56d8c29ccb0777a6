#ifndef STAGECOACH_ENGINE_MODEL_LAYERS_POOLING_H_
#define STAGECOACH_ENGINE_MODEL_LAYERS_POOLING_H_

#include <cstdint>

#include "engine/model/layer.h"

namespace stagecoach::engine {

struct PoolOptions {
  int64_t kernel = 2;   // along both axes
  int64_t stride = 0;   // 0: as the kernel
  int64_t padding = 0;  // at most half of the kernel
};

// Of images [channels, height, width], each channel by itself (kernels/ops/pooling.h). No
// parameters.

// The largest element of each window.
LayerFactory MaxPool(const PoolOptions& options);
// The average of each window, in which padding counts as 0.
LayerFactory AvgPool(const PoolOptions& options);
// The average of each channel as a whole: gives [channels].
LayerFactory GlobalAvgPool();

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_MODEL_LAYERS_POOLING_H_
