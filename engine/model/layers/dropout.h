#ifndef STAGECOACH_ENGINE_MODEL_LAYERS_DROPOUT_H_
#define STAGECOACH_ENGINE_MODEL_LAYERS_DROPOUT_H_

#include "engine/model/layer.h"

namespace stagecoach::engine {

// In training, drops each element with probability `rate`, in [0, 1), and divides the others by
// 1 - rate (kernels/ops/dropout.h). In evaluation y is x. Which elements it drops depends on the
// run's seed, the layer's place in the model, the sample's number and the element alone: not on the
// partition, the schedule or the size of micro-batches. No parameters.
LayerFactory Dropout(float rate);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_MODEL_LAYERS_DROPOUT_H_
