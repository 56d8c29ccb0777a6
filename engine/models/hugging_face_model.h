#ifndef STAGECOACH_ENGINE_MODELS_HUGGING_FACE_MODEL_H_
#define STAGECOACH_ENGINE_MODELS_HUGGING_FACE_MODEL_H_

#include <cstdint>
#include <string>
#include <variant>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/models/resnet.h"
#include "engine/models/transformer.h"
#include "kernels/tensor.h"

namespace stagecoach::engine {

// The naming of a ResNet's parameters in a file.
enum class ResNetNaming : uint8_t {
  kTransformers,  // "resnet.encoder.stages.0.layers.1.layer.0.convolution.weight"
  kTorchvision,   // "layer1.1.conv1.weight", as in a torchvision state dict
};

// A ResNet with everything that its parameters' shapes depend on.
struct ImageClassifier {
  ResNet net;
  int64_t channels = 3;  // of its images
  int64_t classes = 2;
  ResNetNaming naming = ResNetNaming::kTransformers;

  friend bool operator==(const ImageClassifier&, const ImageClassifier&) = default;
};

// The models for which files of other libraries are read and written.
using HuggingFaceModel = std::variant<Transformer, ImageClassifier>;

// Returns the one that a model file makes for samples of that shape, which may differ from the
// file's, and that many tokens or classes. FailedPrecondition: it makes none of them. Errors of
// base::ParseToml.
absl::StatusOr<HuggingFaceModel> HuggingFaceModelOf(absl::string_view model_file,
                                                    const kernels::Shape& input, int64_t outputs);
std::string ModelFileOf(const HuggingFaceModel& model);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_MODELS_HUGGING_FACE_MODEL_H_
