#ifndef STAGECOACH_ENGINE_MODEL_PRESETS_H_
#define STAGECOACH_ENGINE_MODEL_PRESETS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace stagecoach::engine {

// Models that are known by a name. Each is the text of a model file (model_file.h), so that what
// can be done with one of these can be done with a file, and the other way round.
struct Preset {
  const char* name;     // "resnet18"
  const char* summary;  // "ResNet-18, for images of 224 x 224"
  std::string (*text)();
};

// ResNets (engine/model/resnet.h), for square images of 1 or 3 channels:
//   resnet18, resnet50              a convolution of 7 x 7 with stride 2 and a max pool come first,
//                                   which leave a quarter of each side: for images of 224 x 224
//   resnet18-small, resnet50-small  a convolution of 3 x 3 comes first: for 32 x 32, or 64 x 64
// They start as torchvision's do (Conv2d, BatchNorm), but for the last layer, which starts as
// Linear does.
absl::Span<const Preset> Presets();

// Null: there is none of that name.
const Preset* FindPreset(absl::string_view name);

// The model file that a name stands for: of a preset, or of a transformer (NamedTransformer).
// NotFound: it stands for none. InvalidArgument: what follows the name of a transformer is wrong.
absl::StatusOr<std::string> ModelFileNamed(absl::string_view name);
std::vector<std::string> ModelNames();  // those of both

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_MODEL_PRESETS_H_
