#ifndef STAGECOACH_ENGINE_MODELS_FAMILIES_RESNET_H_
#define STAGECOACH_ENGINE_MODELS_FAMILIES_RESNET_H_

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/models/hugging_face.h"
#include "engine/models/hugging_face_model.h"

namespace stagecoach::engine {

// The functions of hugging_face.h, for ResNets.

// Returns the model that a parsed config.json describes. InvalidArgument: a key is malformed, or
// asks for a ResNet that is not supported (CheckResNet).
absl::StatusOr<ImageClassifier> ReadResNetConfig(const nlohmann::json& document);
// Returns the config.json of a model. Pre-condition: the stem is the one of transformers, not for
// small images.
std::string ResNetConfigOf(const ImageClassifier& model);
std::vector<HuggingFaceParameter> ResNetParametersOf(const ImageClassifier& model);
std::vector<std::string> ResNetCountersOf(const ImageClassifier& model);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_MODELS_FAMILIES_RESNET_H_
