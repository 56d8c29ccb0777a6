#include "engine/session/initial_run.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/manifest.h"
#include "engine/data/chat/chat_dataset.h"
#include "engine/data/formats/format.h"
#include "engine/data/tokenizer/tokenizer.h"
#include "engine/data/tokens/tokens.h"
#include "engine/models/model_file.h"
#include "engine/nn/parameter_table.h"
#include "engine/runtime/stage/fill_tensors.h"
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
  if (!config.vocabulary.has_value() && !config.draws_head) {
    config.vocabulary = manifest.encoding.vocabulary;
  }
  const absl::StatusOr<ModelTokens> tokens = ParseModelTokens(manifest.model_source);
  const int64_t context = manifest.input.elements();
  if (config.context.has_value() || (tokens.ok() && tokens->context == context)) return;
  config.context = context;
}

// Returns the parameters of a model's head, by id: those of the last layer that has any, what they
// are tied to, and the table of an embedding.
std::vector<bool> HeadOf(const ParameterTable& parameters) {
  std::vector<bool> is_of_head(static_cast<size_t>(parameters.size()), false);
  if (parameters.size() == 0) return is_of_head;
  const int last = parameters.all().back().layer;
  for (const ModelParameter& parameter : parameters.all()) {
    const bool is_table = parameter.name == NameOf({0, "tokens"});
    if (parameter.is_adapter || (parameter.layer != last && !is_table)) continue;
    is_of_head[static_cast<size_t>(parameter.id.value())] = true;
    is_of_head[static_cast<size_t>(parameter.original().value())] = true;
  }
  return is_of_head;
}

// Returns an error if a head that is drawn would never be trained.
absl::Status CheckTrainsHead(const ParameterTable& parameters) {
  const std::vector<bool> is_of_head = HeadOf(parameters);
  for (const ModelParameter& parameter : parameters.all()) {
    if (!is_of_head[static_cast<size_t>(parameter.id.value())]) continue;
    if (!parameter.update.is_frozen()) continue;
    return base::UsageError(absl::StrCat(
        "--new-head: \"", parameter.name,
        "\" would be drawn, but is not trained: with --lora, add train=embedding+head; in "
        "--parameter-groups, freeze others"));
  }
  return absl::OkStatus();
}

// Returns an error if a tokenizer that is named has more tokens than the model.
absl::Status CheckTokenizerFits(const RunConfig& config, const std::string& path,
                                int64_t vocabulary) {
  if (config.tokenizer.empty() || config.tokenizer == kBytesTokenizer) return absl::OkStatus();
  const auto tokenizer = Tokenizer::Load(config.tokenizer);
  if (!tokenizer.ok() || (*tokenizer)->vocabulary() <= vocabulary) return absl::OkStatus();
  return base::DataError(
      absl::StrCat("--init: ", path, ": its model has a vocabulary of ", vocabulary, ", and ",
                   config.tokenizer, " has ", (*tokenizer)->vocabulary(),
                   " tokens: --new-head draws another embedding and head for them"),
      absl::StatusCode::kFailedPrecondition);
}

}  // namespace

bool IsSavedRun(const std::string& path) {
  if (path.empty() || !base::IsFolder(path)) return false;
  if (base::Exists(absl::StrCat(path, "/", kManifestName))) return true;
  const auto found = ListCheckpoints(path);
  return found.ok() && !found->empty();
}

absl::Status TakeInitialRun(RunConfig& config, bool is_silent) {
  if (!IsSavedRun(config.initial_parameters)) {
    if (!config.draws_head) return absl::OkStatus();
    const std::string& initial = config.initial_parameters;
    return base::UsageError(
        absl::StrCat("--new-head is for --init with a saved run",
                     initial.empty() ? "" : absl::StrCat(", and ", initial, " is none")));
  }
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
  if (config.model_file.empty()) {
    const bool takes_vocabulary = !config.vocabulary.has_value() && !config.draws_head;
    if (takes_vocabulary && manifest.encoding.vocabulary > 0) {
      RETURN_IF_ERROR(CheckTokenizerFits(config, checkpoint.path(), manifest.encoding.vocabulary));
    }
    TakeModel(manifest, config);
  }
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
  if (config.draws_head) RETURN_IF_ERROR(CheckTrainsHead(run.prepared.profile.parameters));
  if (!config.draws_head && outputs != manifest.outputs()) {
    return refuse("its model has ", manifest.outputs(), " outputs, and ", data, " needs ", outputs,
                  ": its last layer fits no other number of classes; --new-head draws another");
  }
  const bool has_others = (!was.tokenizer.empty() && was.tokenizer != is.tokenizer) ||
                          was.tokens_are_bytes != is.tokens_are_bytes;
  if (!config.draws_head && was.vocabulary != 0 && has_others) {
    return refuse("its tokens are others than those of ", data,
                  ": name its tokenizer with --tokenizer, or let --new-head draw another "
                  "embedding and head");
  }
  if (!config.is_first_rank()) return absl::OkStatus();
  if (!config.draws_head && was.class_names != is.class_names) {
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

Trainer::ValuesOf InitialValuesOf(const RunConfig& config, const TrainingRun& run,
                                  const CheckpointValues& values) {
  if (!config.draws_head) return std::bind_front(&CheckpointValues::Read, &values);
  return [&values, seed = config.seed, is_of_head = HeadOf(run.prepared.profile.parameters)](
             const ModelParameter& parameter, const kernels::Tensor& to) -> absl::Status {
    if (!is_of_head[static_cast<size_t>(parameter.id.value())]) return values.Read(parameter, to);
    FillFromFloats(parameter, {}, to,
                   [&](absl::Span<float> drawn) { FillInitial(parameter, seed, drawn); });
    return absl::OkStatus();
  };
}

}  // namespace stagecoach::engine
