#ifndef STAGECOACH_ENGINE_MODELS_RESNET_H_
#define STAGECOACH_ENGINE_MODELS_RESNET_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace stagecoach::engine {

// A ResNet (He et al. 2016), in torchvision's variant with the stride in the 3 x 3 convolution: a
// convolution with a norm, groups of residual blocks, all but the first of which begin by halving
// the sides of the images, a global average and a linear layer. Each block is a layer of the model,
// and so is each part before and after the blocks.
struct ResNet {
  std::vector<int64_t> blocks;   // per group
  std::vector<int64_t> outputs;  // output channels of the blocks of each group
  int64_t stem = 64;             // channels of the first convolution
  // Blocks are convolutions of 1 x 1, 3 x 3 and 1 x 1, the first two with a quarter of the
  // channels; otherwise two of 3 x 3.
  bool is_bottleneck = false;
  // The first convolution is 3 x 3, for small images; otherwise 7 x 7 with stride 2, followed by a
  // max pool with stride 2.
  bool is_small = false;

  // Returns the channels of the convolutions inside a block of that group.
  int64_t inner(size_t group) const { return is_bottleneck ? outputs[group] / 4 : outputs[group]; }
  // Returns whether that block has a shortcut of layers.
  bool has_shortcut(size_t group, int64_t block) const {
    const int64_t inputs = group == 0 ? stem : outputs[group - 1];
    return block == 0 && (group > 0 || inputs != outputs[group]);
  }

  friend bool operator==(const ResNet&, const ResNet&) = default;
};

// Checks a description. InvalidArgument: no group or more than 8, not as many `blocks` as
// `outputs`, a count that is below 1 or above what a model file may have, channels of a bottleneck
// that are no multiple of 4.
absl::Status CheckResNet(const ResNet& net);

// Returns the model as a model file (model_file.h), for square images of 1 or 3 channels.
// Pre-condition: CheckResNet.
std::string ModelFileOf(const ResNet& net);

// Is the inverse, for files that may have another input. FailedPrecondition: the file's layers are
// not those of a ResNet. Errors of base::ParseToml.
absl::StatusOr<ResNet> ResNetOf(absl::string_view model_file);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_MODELS_RESNET_H_
