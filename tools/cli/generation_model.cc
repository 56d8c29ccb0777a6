#include "tools/cli/generation_model.h"

#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/hugging_face_files.h"
#include "engine/data/tokenizer/folder_tokenizer.h"
#include "engine/data/tokens.h"
#include "engine/model/model_file.h"
#include "engine/model/transformer.h"
#include "engine/train/generator.h"
#include "tools/cli/exit_status.h"
#include "tools/cli/messages.h"
#include "tools/cli/saved_run.h"

namespace stagecoach::tools {
namespace {

using engine::Shape;
using engine::Tokenizer;

constexpr absl::string_view kNameTokenizer = "name the file of its tokenizer with --tokenizer";

absl::StatusOr<engine::Model> ModelOfText(const std::string& text, const Shape& input,
                                          int64_t vocabulary) {
  ASSIGN_OR_RETURN(
      engine::Model model,
      engine::ParseModel(text, {.input = input, .vocabulary = vocabulary, .classes = vocabulary}));
  return ModelForGeneration(std::move(model));
}

// One whose ids a model with that vocabulary knows.
absl::StatusOr<std::shared_ptr<const Tokenizer>> LoadTokenizer(const std::string& path,
                                                               int64_t vocabulary) {
  ASSIGN_OR_RETURN(std::shared_ptr<const Tokenizer> tokenizer, Tokenizer::Load(path));
  if (tokenizer->vocabulary() <= vocabulary) return tokenizer;
  return absl::FailedPreconditionError(absl::StrCat(path, " has a vocabulary of ",
                                                    tokenizer->vocabulary(), ", and the model of ",
                                                    vocabulary, ": it is another model's"));
}

absl::StatusOr<std::shared_ptr<const Tokenizer>> TokenizerOf(const engine::Manifest& manifest,
                                                             std::string path) {
  const engine::DataEncoding& encoding = manifest.encoding;
  if (encoding.tokens_are_bytes) {
    if (path.empty() || path == engine::kBytesTokenizer) return nullptr;
    return absl::FailedPreconditionError(
        "the model was trained on bytes of text: leave out --tokenizer");
  }
  for (const engine::SavedOption& option : manifest.options) {
    if (path.empty() && option.name == "--tokenizer") path = option.value;
  }
  if (path.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the model was trained on ids, and its checkpoint does not say of what: ", kNameTokenizer));
  }
  ASSIGN_OR_RETURN(std::shared_ptr<const Tokenizer> tokenizer,
                   LoadTokenizer(path, encoding.vocabulary));
  if (!encoding.tokenizer.empty() && encoding.tokenizer != tokenizer->hash()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the model was trained on tokens of the tokenizer ", encoding.tokenizer,
                     ", and ", path, " is ", tokenizer->hash()));
  }
  return tokenizer;
}

// Which tokens end and begin texts: as the model says, or else the tokenizer.
void SetMeanings(const std::vector<int64_t>& ends, std::optional<int64_t> begin,
                 GenerationModel& model) {
  for (const int64_t id : ends) model.end_of_text.push_back(static_cast<int32_t>(id));
  if (ends.empty() && model.tokenizer != nullptr && model.tokenizer->end_of_text().has_value()) {
    model.end_of_text.push_back(*model.tokenizer->end_of_text());
  }
  if (begin.has_value()) model.begin_of_text = static_cast<int32_t>(*begin);
}

absl::StatusOr<GenerationModel> OfCheckpoint(const engine::Checkpoint& checkpoint,
                                             const std::string& tokenizer) {
  const engine::Manifest& manifest = checkpoint.manifest();
  if (manifest.encoding.vocabulary == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(checkpoint.path(), " is of a model that does not take tokens"));
  }
  if (manifest.model_source.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        checkpoint.path(),
        " does not say how its model is made, since it was not saved by this "
        "program; a program that knows the model can generate (engine/train/generator.h)"));
  }
  GenerationModel result;
  ASSIGN_OR_RETURN(result.model, ModelOfText(manifest.model_source, manifest.input,
                                             manifest.encoding.vocabulary));
  ASSIGN_OR_RETURN(result.tokenizer, TokenizerOf(manifest, tokenizer));
  ASSIGN_OR_RETURN(const engine::ModelTokens tokens,
                   engine::ParseModelTokens(manifest.model_source));
  SetMeanings(tokens.end_of_text, tokens.begin_of_text, result);
  result.load = [path = checkpoint.path()](engine::Trainer& trainer) {
    return trainer.Restore(path).status();
  };
  return result;
}

// The one that is named, or else that of the folder.
absl::Status SetTokenizer(const std::string& folder, const std::string& named,
                          const engine::Transformer& transformer, GenerationModel& model) {
  if (named == engine::kBytesTokenizer) return absl::OkStatus();
  std::string path = named;
  if (path.empty()) {
    const absl::StatusOr<engine::FolderTokenizer> found = engine::LoadFolderTokenizer(folder);
    if (absl::IsNotFound(found.status())) {
      return absl::NotFoundError(absl::StrCat(found.status().message(), ": ", kNameTokenizer));
    }
    RETURN_IF_ERROR(found.status());
    if (!found->notice.empty()) PrintNotice(found->notice);
    path = found->path;
  }
  ASSIGN_OR_RETURN(model.tokenizer, LoadTokenizer(path, transformer.vocabulary));
  model.begins_prompts = engine::AddsBeginOfText(path);
  return absl::OkStatus();
}

absl::StatusOr<GenerationModel> OfFolder(const std::string& folder, const std::string& tokenizer) {
  ASSIGN_OR_RETURN(const engine::Transformer transformer,
                   engine::ReadHuggingFaceConfigFile(folder));
  GenerationModel result;
  ASSIGN_OR_RETURN(result.model, ModelOfText(ModelFileOf(transformer), Shape{transformer.context},
                                             transformer.vocabulary));
  RETURN_IF_ERROR(SetTokenizer(folder, tokenizer, transformer, result));
  SetMeanings(transformer.end_of_text, transformer.begin_of_text, result);
  ASSIGN_OR_RETURN(const engine::HuggingFaceFolder parameters,
                   engine::HuggingFaceFolder::Open(folder, transformer));
  result.load = [parameters](engine::Trainer& trainer) {
    return trainer.SetParameters(std::bind_front(&engine::HuggingFaceFolder::Read, parameters));
  };
  return result;
}

}  // namespace

absl::StatusOr<GenerationModel> OpenSavedModel(const std::string& path,
                                               const std::string& tokenizer) {
  ASSIGN_OR_RETURN(const engine::Checkpoint checkpoint, OpenCheckpoint(path));
  return From(Origin::kData, OfCheckpoint(checkpoint, tokenizer));
}

absl::StatusOr<GenerationModel> OpenHuggingFaceModel(const std::string& folder,
                                                     const std::string& tokenizer) {
  return From(Origin::kData, OfFolder(folder, tokenizer));
}

}  // namespace stagecoach::tools
