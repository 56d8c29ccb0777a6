#ifndef STAGECOACH_ENGINE_DATA_AUGMENT_H_
#define STAGECOACH_ENGINE_DATA_AUGMENT_H_

#include <memory>

#include "absl/status/statusor.h"
#include "engine/data/dataset.h"

namespace stagecoach::engine {

// Says how images of the training set vary from epoch to epoch. What happens to a sample depends on
// the seed, the epoch and its row alone.
struct Augmentation {
  bool flips = false;       // left and right are exchanged, in half of the samples
  bool shifts = false;      // by up to kMostShift pixels each way; what moves in from outside is 0
  bool cuts_boxes = false;  // a random part of each image file is the sample (RandomBoxes)

  bool any() const { return flips || shifts || cuts_boxes; }
};

// As is usual for CIFAR-10: a crop of an image that is padded by N pixels on each side.
inline constexpr int64_t kMostShift = 4;

// Returns a view of images whose epochs (Dataset::ForEpoch) are flipped and shifted.
// InvalidArgument unless the data have one input of images, numbers of the shape [channels, height,
// width].
absl::StatusOr<std::shared_ptr<const Dataset>> Augmented(std::shared_ptr<const Dataset> images,
                                                         const Augmentation& augmentation);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_AUGMENT_H_
