#ifndef STAGECOACH_TESTS_ENGINE_TRAIN_IMAGE_MODELS_H_
#define STAGECOACH_TESTS_ENGINE_TRAIN_IMAGE_MODELS_H_

#include "engine/device/device_spec.h"
#include "engine/model/model.h"

namespace stagecoach::engine {

// Of images, for SmallData, with every kind of layer that these have. What its first block gives is
// read again by layer 6.
Model ImageModel();

// Trains a small ResNet on two stages, and expects what PyTorch 2 gives in double precision:
// tests/fixtures/resnet/make_reference.py.
void ExpectImagesToMatchPyTorch(const DeviceSpec& device);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_TESTS_ENGINE_TRAIN_IMAGE_MODELS_H_
