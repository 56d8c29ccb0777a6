#ifndef STAGECOACH_ENGINE_MODELS_NAMED_OUTPUTS_H_
#define STAGECOACH_ENGINE_MODELS_NAMED_OUTPUTS_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "engine/nn/parsing/parsed_layer.h"
#include "engine/nn/skips.h"

namespace stagecoach::engine {

// The named layers of a model file, and those that read their outputs (ParsedLayer::name and
// ::from). Layers come in order. Errors begin with the layer's `path` in the file.
class NamedOutputs {
 public:
  // Connects a layer to the one that it reads, if any, and completes its output_of. `index`: its
  // index in the model.
  absl::Status Connect(int index, const std::string& path, ParsedLayer& layer);
  // Remembers a layer, if it has a name. `sample`: that of its output; `index`: that of its last
  // repetition.
  absl::Status Add(int index, const std::string& path, const ParsedLayer& layer,
                   const Shape& sample);
  std::vector<Skip> TakeSkips() { return std::move(skips_); }

 private:
  struct NamedOutput {
    std::string name;
    int layer = 0;
    Shape sample;
  };
  std::vector<NamedOutput> outputs_;
  std::vector<Skip> skips_;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_MODELS_NAMED_OUTPUTS_H_
