#ifndef STAGECOACH_ENGINE_NN_LAYERS_DROPOUT_H_
#define STAGECOACH_ENGINE_NN_LAYERS_DROPOUT_H_

#include "engine/nn/layer.h"
#include "engine/nn/parsing/layer_type.h"

namespace stagecoach::engine {

// Drops each element in training with probability `rate`, in [0, 1), and divides the others by 1 -
// rate (kernels/ops/dropout.h). In evaluation y is x. The choice of elements depends on the run's
// seed, the layer's place in the model, the sample's number and the element alone: not on the
// partition, the schedule or the micro-batch size. No parameters.
LayerFactory Dropout(float rate);

extern const LayerType kDropoutType;

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_NN_LAYERS_DROPOUT_H_
