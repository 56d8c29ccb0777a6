#ifndef STAGECOACH_ENGINE_NN_LAYERS_IMAGE_CONV2D_H_
#define STAGECOACH_ENGINE_NN_LAYERS_IMAGE_CONV2D_H_

#include <cstdint>

#include "engine/nn/layer.h"
#include "engine/nn/parsing/layer_type.h"

namespace stagecoach::engine {

struct Conv2dOptions {
  int64_t outputs = 0;  // channels
  int64_t kernel = 1;   // along both axes, as are the next two
  int64_t stride = 1;
  int64_t padding = 0;
  int64_t groups = 1;
  bool has_bias = true;
};

// A convolution (kernels/ops/convolution.h) of images [channels, height, width], which outputs
// [outputs, ...]. Parameters "weight" [outputs, channels / groups, kernel, kernel], normal with
// mean 0 and variance 2 / (outputs kernel^2), as torchvision initializes its ResNets (He et al.
// 2015, by the outputs), and, with a bias, "bias" [outputs], 0. CPU devices only.
LayerFactory Conv2d(const Conv2dOptions& options);

extern const LayerType kConv2dType;

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_NN_LAYERS_IMAGE_CONV2D_H_
