#ifndef STAGECOACH_TOOLS_CLI_GENERATION_MODEL_H_
#define STAGECOACH_TOOLS_CLI_GENERATION_MODEL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/data/tokenizer/tokenizer.h"
#include "engine/model/model.h"
#include "engine/train/trainer.h"

namespace stagecoach::tools {

// What `generate` continues a text with.
struct GenerationModel {
  engine::Model model;                                 // of ModelForGeneration
  std::shared_ptr<const engine::Tokenizer> tokenizer;  // null: its tokens are bytes
  std::vector<int32_t> end_of_text;                    // any of them ends a text
  std::optional<int32_t> begin_of_text;                // in front of an empty prompt
  bool begins_prompts = false;                         // and of all others
  std::function<absl::Status(engine::Trainer&)> load;  // its parameters
};

// Of a checkpoint, or of a run its newest. `tokenizer`: a file; "": where the run had it. Errors
// are marked with their origin (tools/cli/exit_status.h). FailedPrecondition: the model does not
// take tokens, or those of another tokenizer.
absl::StatusOr<GenerationModel> OpenSavedModel(const std::string& checkpoint,
                                               const std::string& tokenizer);

// Of a folder of Hugging Face's; likewise. `tokenizer` is tokenizer.json or tokenizer.model there,
// if it is "".
absl::StatusOr<GenerationModel> OpenHuggingFaceModel(const std::string& folder,
                                                     const std::string& tokenizer);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_CLI_GENERATION_MODEL_H_
