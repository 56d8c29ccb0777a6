#include "engine/session/generation_model.h"

#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/hugging_face_files.h"
#include "engine/checkpoint/peft.h"
#include "engine/data/tokenizer/folder_tokenizer.h"
#include "engine/data/tokens/tokens.h"
#include "engine/generate/generator.h"
#include "engine/models/model_file.h"
#include "engine/models/transformer.h"
#include "engine/session/saved_run.h"

namespace stagecoach::engine {
namespace {

constexpr absl::string_view kNameTokenizer = "name the file of its tokenizer with --tokenizer";

absl::StatusOr<Model> ModelOfText(const std::string& text, const Shape& input, int64_t vocabulary) {
  ASSIGN_OR_RETURN(
      Model model,
      ParseModel(text, {.input = input, .vocabulary = vocabulary, .classes = vocabulary}));
  return ModelForGeneration(std::move(model));
}

// One whose ids a model with that vocabulary knows.
absl::StatusOr<std::shared_ptr<const Tokenizer>> LoadTokenizer(const std::string& path,
                                                               int64_t vocabulary) {
  ASSIGN_OR_RETURN(std::shared_ptr<const Tokenizer> tokenizer, Tokenizer::Load(path));
  if (tokenizer->vocabulary() <= vocabulary) return tokenizer;
  return base::DataError(absl::StrCat(path, " has a vocabulary of ", tokenizer->vocabulary(),
                                      ", and the model of ", vocabulary, ": it is another model's"),
                         absl::StatusCode::kFailedPrecondition);
}

// `path` is replaced by that of the run if it is empty.
absl::StatusOr<std::shared_ptr<const Tokenizer>> TokenizerOf(const Manifest& manifest,
                                                             std::string& path) {
  const DataEncoding& encoding = manifest.encoding;
  if (encoding.tokens_are_bytes) {
    if (path.empty() || path == kBytesTokenizer) return nullptr;
    return base::DataError("the model was trained on bytes of text: leave out --tokenizer",
                           absl::StatusCode::kFailedPrecondition);
  }
  if (path.empty()) path = SavedOptionOf(manifest, "--tokenizer");
  if (path.empty()) {
    return base::DataError(
        absl::StrCat("the model was trained on ids, and its checkpoint does not say of what: ",
                     kNameTokenizer),
        absl::StatusCode::kFailedPrecondition);
  }
  ASSIGN_OR_RETURN(std::shared_ptr<const Tokenizer> tokenizer,
                   LoadTokenizer(path, encoding.vocabulary));
  if (!encoding.tokenizer.empty() && encoding.tokenizer != tokenizer->hash()) {
    return base::DataError(
        absl::StrCat("the model was trained on tokens of the tokenizer ", encoding.tokenizer,
                     ", and ", path, " is ", tokenizer->hash()),
        absl::StatusCode::kFailedPrecondition);
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

absl::StatusOr<GenerationModel> OfCheckpoint(const Checkpoint& checkpoint,
                                             const std::string& tokenizer) {
  const Manifest& manifest = checkpoint.manifest();
  if (manifest.encoding.vocabulary == 0) {
    return base::DataError(
        absl::StrCat(checkpoint.path(), " is of a model that does not take tokens"),
        absl::StatusCode::kFailedPrecondition);
  }
  if (manifest.model_source.empty()) {
    return base::DataError(
        absl::StrCat(
            checkpoint.path(),
            " does not say how its model is made, since it was not saved by this "
            "program; a program that knows the model can generate (engine/generate/generator.h)"),
        absl::StatusCode::kFailedPrecondition);
  }
  GenerationModel result;
  ASSIGN_OR_RETURN(result.model, ModelOfText(manifest.model_source, manifest.input,
                                             manifest.encoding.vocabulary));
  result.tokenizer_file = tokenizer;
  ASSIGN_OR_RETURN(result.tokenizer, TokenizerOf(manifest, result.tokenizer_file));
  result.chat_template = SavedOptionOf(manifest, "--chat-template");
  ASSIGN_OR_RETURN(const ModelTokens tokens, ParseModelTokens(manifest.model_source));
  SetMeanings(tokens.end_of_text, tokens.begin_of_text, result);
  result.load = [path = checkpoint.path()](Trainer& trainer) {
    return trainer.Restore(path).status();
  };
  return result;
}

// The one that is named, or else that of the folder.
absl::Status SetTokenizer(const std::string& folder, const std::string& named,
                          const Transformer& transformer, const Notices& notices,
                          GenerationModel& model) {
  if (named == kBytesTokenizer) return absl::OkStatus();
  std::string path = named;
  if (path.empty()) {
    const absl::StatusOr<FolderTokenizer> found = LoadFolderTokenizer(folder);
    if (absl::IsNotFound(found.status())) {
      return base::DataError(absl::StrCat(found.status().message(), ": ", kNameTokenizer),
                             absl::StatusCode::kNotFound);
    }
    RETURN_IF_ERROR(found.status());
    if (!found->notice.empty()) notices.Tell(found->notice);
    path = found->path;
  }
  ASSIGN_OR_RETURN(model.tokenizer, LoadTokenizer(path, transformer.vocabulary));
  model.begins_prompts = AddsBeginOfText(path);
  model.tokenizer_file = path;
  return absl::OkStatus();
}

absl::Status SetContext(const HuggingFaceSource& source, Transformer& model) {
  const int64_t whole = model.context, longest = model.longest_context();
  const bool has_lists = model.rotary_scaling.kind == RotaryKind::kLongRope;
  model.context = source.context.value_or(
      has_lists ? std::min(whole, model.rotary_scaling.original_positions) : whole);
  if (model.context > longest) {
    return base::UsageError(absl::StrCat("--context is ", model.context, ", but the model in ",
                                         source.folder, " has ", longest, " positions"));
  }
  // A table of positions is read whole.
  if (!model.is_rotary() && model.positions == 0 && model.context < whole) model.positions = whole;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<GenerationModel> OpenSavedModel(const std::string& path,
                                               const std::string& tokenizer,
                                               const Notices& notices) {
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, OpenCheckpoint(path, notices));
  return OfCheckpoint(checkpoint, tokenizer);
}

absl::StatusOr<GenerationModel> OpenHuggingFaceModel(const HuggingFaceSource& source,
                                                     const Notices& notices) {
  ASSIGN_OR_RETURN(Transformer transformer, ReadHuggingFaceConfigFile(source.folder));
  if (source.quantization.has_value()) {
    const auto own = transformer.quantization;
    if (own.has_value() && own != source.quantization) {
      return base::UsageError(
          absl::StrCat("--quantize: ", source.folder, " has weights in ", QuantizationName(*own)));
    }
    transformer.quantization = source.quantization;
  }
  RETURN_IF_ERROR(SetContext(source, transformer));
  GenerationModel result;
  std::string text = ModelFileOf(transformer);
  std::optional<PeftFolder> adapted;
  if (!source.adapters.empty()) {
    ASSIGN_OR_RETURN(adapted, PeftFolder::Open(source.adapters, transformer));
    absl::StrAppend(&text, "\n", LoraTableOf(adapted->lora()));
  }
  ASSIGN_OR_RETURN(result.model,
                   ModelOfText(text, Shape{transformer.context}, transformer.vocabulary));
  RETURN_IF_ERROR(SetTokenizer(source.folder, source.tokenizer, transformer, notices, result));
  SetMeanings(transformer.end_of_text, transformer.begin_of_text, result);
  ASSIGN_OR_RETURN(const HuggingFaceFolder parameters,
                   HuggingFaceFolder::Open(source.folder, transformer));
  result.load = [parameters, adapted](Trainer& trainer) -> absl::Status {
    RETURN_IF_ERROR(trainer.SetParameters(std::bind_front(&HuggingFaceFolder::Read, parameters)));
    if (!adapted.has_value()) return absl::OkStatus();
    return trainer.SetAdapters(std::bind_front(&PeftFolder::Read, *adapted));
  };
  return result;
}

}  // namespace stagecoach::engine
