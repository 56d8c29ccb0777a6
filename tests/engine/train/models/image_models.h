#ifndef STAGECOACH_TESTS_ENGINE_TRAIN_MODELS_IMAGE_MODELS_H_
#define STAGECOACH_TESTS_ENGINE_TRAIN_MODELS_IMAGE_MODELS_H_

#include "engine/models/model.h"
#include "engine/runtime/device/device_spec.h"

namespace stagecoach::engine {

// Returns an image model for SmallData, with every kind of layer that images have. The output of
// its first block is read again by layer 6.
Model ImageModel();

// Returns one of residual blocks of both kinds, with and without projections, in a row.
Model ResidualBlocksModel();

// Trains a small ResNet on two stages, and expects the results of PyTorch 2 in double precision:
// tests/fixtures/resnet/make_reference.py.
void ExpectImagesToMatchPyTorch(const DeviceSpec& device);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_TESTS_ENGINE_TRAIN_MODELS_IMAGE_MODELS_H_
