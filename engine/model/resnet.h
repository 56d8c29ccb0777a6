#ifndef STAGECOACH_ENGINE_MODEL_RESNET_H_
#define STAGECOACH_ENGINE_MODEL_RESNET_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace stagecoach::engine {

// A ResNet (He et al. 2016), the variant with the stride in the 3 x 3 convolution that torchvision
// has: a convolution with a norm, groups of residual blocks, of which all but the first begin by
// halving the sides of the images, a global average and a linear layer. Each block is a layer of
// the model, and so is each of what comes before and after the blocks.
struct ResNet {
  std::vector<int64_t> blocks;   // of each group
  std::vector<int64_t> outputs;  // channels that the blocks of each group give
  int64_t stem = 64;             // channels of the first convolution
  // Blocks are convolutions of 1 x 1, 3 x 3 and 1 x 1, the first two with a quarter of the
  // channels; else two of 3 x 3.
  bool is_bottleneck = false;
  // The first convolution is of 3 x 3, for small images; else of 7 x 7 with stride 2, and a max
  // pool with stride 2 follows.
  bool is_small = false;

  // Of the convolutions inside a block of that group.
  int64_t inner(size_t group) const { return is_bottleneck ? outputs[group] / 4 : outputs[group]; }
  // Whether that block has a shortcut of layers.
  bool has_shortcut(size_t group, int64_t block) const {
    const int64_t inputs = group == 0 ? stem : outputs[group - 1];
    return block == 0 && (group > 0 || inputs != outputs[group]);
  }

  friend bool operator==(const ResNet&, const ResNet&) = default;
};

// InvalidArgument: no group or more than 8, not as many `blocks` as `outputs`, a count that is
// below 1 or above what a model file may have, channels of a bottleneck that are no multiple of 4.
absl::Status CheckResNet(const ResNet& net);

// The model as a model file (model_file.h), for square images of 1 or 3 channels. Pre-condition:
// CheckResNet.
std::string ModelFileOf(const ResNet& net);

// The inverse, for files that may say another input. FailedPrecondition: the file's layers are not
// those of a ResNet. Errors of base::ParseToml.
absl::StatusOr<ResNet> ResNetOf(absl::string_view model_file);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_MODEL_RESNET_H_
