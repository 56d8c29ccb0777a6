#ifndef STAGECOACH_ENGINE_MODELS_PRESETS_H_
#define STAGECOACH_ENGINE_MODELS_PRESETS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace stagecoach::engine {

// Models that are known by a name. Each is the text of a model file (model_file.h), so that presets
// and files can do the same.
struct Preset {
  const char* name;     // "resnet18"
  const char* summary;  // "ResNet-18, for images of 224 x 224"
  std::string (*text)();
};

// ResNets (engine/models/resnet.h), for square images of 1 or 3 channels:
//   resnet18, resnet50              a convolution of 7 x 7 with stride 2 and a max pool come first,
//                                   which leave a quarter of each side: for images of 224 x 224
//   resnet18-small, resnet50-small  a convolution of 3 x 3 comes first: for 32 x 32, or 64 x 64
// They are initialized like torchvision's (Conv2d, BatchNorm), except for the last layer, which is
// initialized like Linear.
absl::Span<const Preset> Presets();

// Returns the preset of that name; null: there is none.
const Preset* FindPreset(absl::string_view name);

// Returns the model file that a name stands for: that of a preset, or of a transformer
// (NamedTransformer). NotFound: it stands for none. InvalidArgument: what follows the name of a
// transformer is wrong.
absl::StatusOr<std::string> ModelFileNamed(absl::string_view name);
std::vector<std::string> ModelNames();  // those of both

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_MODELS_PRESETS_H_
