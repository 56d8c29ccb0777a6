#ifndef STAGECOACH_ENGINE_DATA_AUGMENTATION_NAMES_H_
#define STAGECOACH_ENGINE_DATA_AUGMENTATION_NAMES_H_

#include <utility>

#include "engine/data/augment.h"

namespace stagecoach::engine {

// The words of --augment, and what they stand for.
inline constexpr std::pair<const char*, bool Augmentation::*> kAugmentationNames[] = {
    {"flip", &Augmentation::flips},
    {"crop", &Augmentation::shifts},
    {"resized-crop", &Augmentation::cuts_boxes},
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_AUGMENTATION_NAMES_H_
