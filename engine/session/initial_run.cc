#include "engine/session/initial_run.h"

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/manifest.h"
#include "engine/data/chat/chat_dataset.h"
#include "engine/data/formats/format.h"
#include "engine/data/tokens/tokens.h"
#include "engine/models/model_file.h"
#include "engine/session/saved_run.h"

namespace stagecoach::engine {
namespace {

template <typename Number>
void TakeNumber(const Manifest& manifest, const char* option, std::optional<Number>& field) {
  Number value = 0;
  const std::string saved = SavedOptionOf(manifest, option);
  if (!field.has_value() && absl::SimpleAtoi(saved, &value)) field = value;
}

void TakeText(const Manifest& manifest, const char* option, std::string& field) {
  if (field.empty()) field = SavedOptionOf(manifest, option);
}

void TakeModel(const Manifest& manifest, RunConfig& config) {
  const std::string saved = SavedOptionOf(manifest, "--model");
  config.model_file = saved == kDefaultModel ? "" : saved;
  config.model_text = manifest.model_source;
  TakeNumber(manifest, "--layers", config.layers);
  TakeNumber(manifest, "--width", config.width);
  const DataFormat* const format = FindDataFormat({.spec = DataOf(config)});
  if (format != nullptr && format->has_image_files) {
    TakeNumber(manifest, "--image-size", config.image_size);
  }
  if (manifest.encoding.vocabulary == 0) return;
  if (!config.vocabulary.has_value()) config.vocabulary = manifest.encoding.vocabulary;
  const absl::StatusOr<ModelTokens> tokens = ParseModelTokens(manifest.model_source);
  const int64_t context = manifest.input.elements();
  if (config.context.has_value() || (tokens.ok() && tokens->context == context)) return;
  config.context = context;
}

}  // namespace

bool IsSavedRun(const std::string& path) {
  if (path.empty() || !base::IsFolder(path)) return false;
  if (base::Exists(absl::StrCat(path, "/", kManifestName))) return true;
  const auto found = ListCheckpoints(path);
  return found.ok() && !found->empty();
}

absl::Status TakeInitialRun(RunConfig& config, bool is_silent) {
  if (!IsSavedRun(config.initial_parameters)) return absl::OkStatus();
  ASSIGN_OR_RETURN(
      const Checkpoint checkpoint,
      OpenCheckpoint(config.initial_parameters, is_silent ? Notices() : config.notices));
  const Manifest& manifest = checkpoint.manifest();
  const bool is_of_program =
      !manifest.model_source.empty() || SavedOptionOf(manifest, "--model") == kDefaultModel;
  if (config.model_file.empty() && !is_of_program) {
    return base::DataError(
        absl::StrCat("--init: ", checkpoint.path(),
                     " does not say how its model is made: name it with --model"),
        absl::StatusCode::kFailedPrecondition);
  }
  if (config.model_file.empty()) TakeModel(manifest, config);
  if (manifest.encoding.vocabulary > 0) {
    const std::string data = DataOf(config);
    if (HoldsText(data)) TakeText(manifest, "--tokenizer", config.tokenizer);
    if (HoldsChats(data)) TakeText(manifest, "--chat-template", config.chat_template);
  }
  if (manifest.encoding.labels_are_numbers() && !config.loss.has_value()) config.loss = "mse";
  config.initial_parameters = checkpoint.path();
  return absl::OkStatus();
}

absl::Status CheckStartsFrom(const RunConfig& config, const TrainingRun& run) {
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(config.initial_parameters));
  const Manifest& manifest = checkpoint.manifest();
  const DataEncoding& was = manifest.encoding;
  const DataEncoding& is = run.data.encoding;
  const std::string data = DataOf(config);
  const auto refuse = [&](const auto&... why) {
    return base::DataError(absl::StrCat("--init: ", checkpoint.path(), ": ", why...),
                           absl::StatusCode::kFailedPrecondition);
  };
  const Shape& input = run.prepared.model.input;
  if (was.vocabulary == 0 && manifest.input.elements() != input.elements()) {
    return refuse("its model takes ", manifest.input.ToString(), ", and ", data, " has ",
                  input.ToString(), ": train on data of the same columns or images");
  }
  const Shape& output = run.prepared.profile.output;
  const int64_t outputs = output.rank() == 0 ? 1 : output.dim(output.rank() - 1);
  if (outputs != manifest.outputs()) {
    return refuse("its model has ", manifest.outputs(), " outputs, and ", data, " needs ", outputs,
                  ": its last layer fits no other number of classes; train on data of the same "
                  "classes, or without --init");
  }
  const bool is_other = !was.tokenizer.empty() && was.tokenizer != is.tokenizer;
  if (was.vocabulary != 0 && (is_other || was.tokens_are_bytes != is.tokens_are_bytes)) {
    return refuse("its tokens are others than those of ", data,
                  ": name its tokenizer with --tokenizer");
  }
  if (!config.is_first_rank()) return absl::OkStatus();
  if (was.class_names != is.class_names) {
    config.notices.Tell(absl::StrCat("the classes of ", data, " are not called as those of ",
                                     checkpoint.path(), ": outputs get another meaning"));
  }
  if (!was.columns.empty() && (was.mean != is.mean || was.stddev != is.stddev)) {
    config.notices.Tell(absl::StrCat("the columns of ", data,
                                     " are standardized by their own means and deviations, not by "
                                     "those of ",
                                     checkpoint.path()));
  }
  return absl::OkStatus();
}

}  // namespace stagecoach::engine
