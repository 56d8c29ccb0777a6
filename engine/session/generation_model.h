#ifndef STAGECOACH_ENGINE_SESSION_GENERATION_MODEL_H_
#define STAGECOACH_ENGINE_SESSION_GENERATION_MODEL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/data/tokenizer/tokenizer.h"
#include "engine/models/model.h"
#include "engine/session/machine/notices.h"
#include "engine/train/trainer.h"

namespace stagecoach::engine {

// A model of tokens that can continue texts.
struct GenerationModel {
  Model model;                                 // of ModelForGeneration
  std::shared_ptr<const Tokenizer> tokenizer;  // null: its tokens are bytes
  std::string tokenizer_file;                  // "": its tokens are bytes
  std::string chat_template;                   // that it was trained with, if one was named
  std::vector<int32_t> end_of_text;            // any of them ends a text
  std::optional<int32_t> begin_of_text;        // precedes an empty prompt
  bool begins_prompts = false;                 // it precedes all other prompts, too
  std::function<absl::Status(Trainer&)> load;  // its parameters
};

// Opens the model of a checkpoint, or of the newest one of a run. `tokenizer`: a file; "": the one
// that the run had. FailedPrecondition: the model does not take tokens, or takes those of another
// tokenizer.
absl::StatusOr<GenerationModel> OpenSavedModel(const std::string& checkpoint,
                                               const std::string& tokenizer,
                                               const Notices& notices);

// Opens the model of a Hugging Face folder.
struct HuggingFaceSource {
  std::string folder;
  std::string adapters;   // a folder of PEFT's; "": there are none
  std::string tokenizer;  // a file; "": tokenizer.json or tokenizer.model of that folder
  // How the weights of linear layers are stored; nothing: as in the folder. InvalidArgument: the
  // folder's are quantized otherwise.
  std::optional<kernels::Quantization> quantization = {};
  // The most positions of a text; nothing: those of the model, or, if it divides frequencies in
  // another way in longer texts (RotaryKind::kLongRope), its original ones.
  std::optional<int64_t> context = {};
};
absl::StatusOr<GenerationModel> OpenHuggingFaceModel(const HuggingFaceSource& source,
                                                     const Notices& notices);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_SESSION_GENERATION_MODEL_H_
