// What is trained, of engine/session/run_config.h: data, model, optimizer.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "base/text/line.h"
#include "base/text/nearest.h"
#include "base/text/units.h"
#include "engine/checkpoint/hugging_face_files.h"
#include "engine/checkpoint/peft.h"
#include "engine/data/chat/chat_dataset.h"
#include "engine/data/data_files.h"
#include "engine/data/data_fingerprint.h"
#include "engine/data/formats/arrays.h"
#include "engine/data/formats/format.h"
#include "engine/data/formats/image_folder.h"
#include "engine/data/formats/load.h"
#include "engine/data/tokenizer/folder_tokenizer.h"
#include "engine/data/tokenizer/tokenizer.h"
#include "engine/models/model_file.h"
#include "engine/models/presets.h"
#include "engine/models/transformer.h"
#include "engine/nn/parsing/lora.h"
#include "engine/session/initial_run.h"
#include "engine/session/loss_options.h"
#include "engine/session/plan_choice.h"
#include "engine/session/run_config.h"
#include "engine/session/training.h"

namespace stagecoach::engine {
namespace {

// Returns the flags of an optimizer's hyper-parameters: "--beta1 and --beta2".
std::string FlagsOf(const OptimizerType& type) {
  std::vector<std::string> flags;
  for (const HyperParameter& parameter : type.hyper_parameters) {
    if (parameter.help != nullptr) flags.push_back(absl::StrCat("--", parameter.name));
  }
  return absl::StrJoin(flags, " and ");
}

absl::StatusOr<Optimizer> OptimizerOf(const RunConfig& options) {
  const OptimizerType* const type = FindOptimizerType(options.optimizer);
  if (type == nullptr) {
    return base::UsageError(
        absl::StrCat("--optimizer ", options.optimizer, ": expected ", ListOptimizers()));
  }
  Optimizer optimizer = type->defaults;
  optimizer.weight_decay = options.weight_decay.value_or(optimizer.weight_decay);
  for (const HyperParameter& parameter : HyperParameters()) {
    const auto given = options.hyper_parameters.find(parameter.name);
    if (given == options.hyper_parameters.end()) continue;
    if (!type->Has(parameter)) {
      return base::UsageError(absl::StrCat("--", parameter.name, " is for --optimizer ",
                                           ListOptimizers(&parameter), "; ", type->name, " has ",
                                           FlagsOf(*type)));
    }
    optimizer.*parameter.value = given->second;
  }
  optimizer.clip_norm = options.clip_norm;
  optimizer.ema_decay = options.ema_decay;
  optimizer.checks_gradients = options.on_nonfinite.has_value();
  RETURN_IF_ERROR(base::WithClass(base::ErrorClass::kUsage, CheckOptimizer(optimizer)));
  return optimizer;
}

// An error in the model's text, which is a file's, or belongs to a name.
absl::Status InModel(const RunConfig& options, const absl::Status& status) {
  if (status.ok()) return status;
  const bool is_file = options.model_text.empty() && !options.model_file.empty() &&
                       absl::IsNotFound(ModelFileNamed(options.model_file).status());
  return base::InFile(is_file ? status : base::WithClass(base::ErrorClass::kConfiguration, status),
                      NameOfModel(options));
}

// What the model says of tokens: nothing, if it is the default network.
absl::StatusOr<ModelTokens> ModelTokensOf(const RunConfig& options, const std::string& model_text) {
  if (model_text.empty()) return ModelTokens();
  absl::StatusOr<ModelTokens> parsed = ParseModelTokens(model_text);
  RETURN_IF_ERROR(InModel(options, parsed.status()));
  return parsed;
}

bool TakesTokens(const ModelTokens& model) { return model.context > 0 || model.vocabulary > 0; }

// The first of the flags for tokens that is given; null: none is.
const char* FlagOfTokens(const RunConfig& options) {
  return !options.tokenizer.empty()       ? "--tokenizer"
         : options.context.has_value()    ? "--context"
         : options.vocabulary.has_value() ? "--vocabulary"
                                          : nullptr;
}

TokenOptions TokensOf(const RunConfig& options, const ModelTokens& model) {
  TokenOptions tokens = {.tokenizer = options.tokenizer,
                         .chat_template = options.chat_template,
                         .trains_on_all = options.trains_on_all,
                         .packs_examples = options.packs_examples,
                         .context_is_limit = !options.context.has_value()};
  if (model.context > 0) tokens.context = model.context;
  // A new head is for the tokens of the data, whatever the model of the first run says.
  const bool is_of_data = options.draws_head && !options.model_text.empty();
  if (model.vocabulary > 0 && !is_of_data) tokens.vocabulary = model.vocabulary;
  tokens.context = options.context.value_or(tokens.context);
  tokens.vocabulary = options.vocabulary.value_or(tokens.vocabulary);
  return tokens;
}

// Checks that there are data to load.
absl::Status CheckTokensHaveData(const RunConfig& options, const ModelTokens& model) {
  const std::string data = DataOf(options);
  if (HoldsTokens(data, !options.tokenizer.empty())) return absl::OkStatus();
  if (!options.data.has_value() && TakesTokens(model)) {
    return base::UsageError(
        absl::StrCat(NameOfModel(options),
                     " is a model of tokens: name a text, or a file of ids, with --data FILE"));
  }
  if (!options.model_text.empty() && TakesTokens(model)) {
    return base::UsageError(
        absl::StrCat(data, " has no tokens, which the model of the saved run is for"));
  }
  const char* const flag = FlagOfTokens(options);
  if (flag == nullptr) return absl::OkStatus();
  return base::UsageError(absl::StrCat(
      flag, " is for text and ids of tokens, which ",
      options.data.has_value() ? data : absl::StrCat("the default, ", data, ","), " does not hold",
      options.data.has_value() ? "" : ": name them with --data FILE"));
}

// What tokens are to a model that is planned without any.
absl::StatusOr<ModelData> ShapesOf(const RunConfig& options, const ModelTokens& model) {
  TokenOptions tokens = TokensOf(options, model);
  if (!tokens.tokenizer.empty() && tokens.tokenizer != kBytesTokenizer) {
    ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::Load(tokens.tokenizer));
    const int64_t known = tokenizer->vocabulary();
    if (tokens.vocabulary == 0) tokens.vocabulary = known;
    if (tokens.vocabulary < known) {
      return absl::InvalidArgumentError(absl::StrCat(NameOfModel(options), " has a vocabulary of ",
                                                     tokens.vocabulary, ", but ", tokens.tokenizer,
                                                     " has ", known, " tokens"));
    }
  }
  if (tokens.vocabulary == 0) {
    return base::UsageError(
        absl::StrCat(NameOfModel(options),
                     " has the vocabulary of its data: name them with --data, or say how many "
                     "tokens there are with --vocabulary"));
  }
  return ModelData{.input = Shape{tokens.context},
                   .vocabulary = tokens.vocabulary,
                   .classes = tokens.vocabulary};
}

absl::Status CheckFlagsOfForms(const RunConfig& options, const DataSource& source) {
  const std::pair<const char*, bool> flags[] = {
      {"--label", options.label != RunConfig().label},
      {"--drop", !options.dropped_columns.empty()},
      {"--image-size", options.image_size.has_value()},
      {"--skip-broken-images", options.skips_broken_images}};
  for (const auto& [flag, is_given] : flags) {
    if (is_given) RETURN_IF_ERROR(CheckFlagOfForm(flag, source));
  }
  return absl::OkStatus();
}

// Returns the side of samples that are files of images; 0: that of the model's input.
int64_t ImageSizeOf(const RunConfig& options, const Shape& model_input) {
  if (options.image_size.has_value()) return *options.image_size;
  if (model_input.rank() == 3) return 0;
  const bool is_small =
      NameOfModel(options) == kDefaultModel || absl::EndsWith(options.model_file, "-small");
  return is_small ? kDefaultImageSide : kLargeImageSide;
}

absl::Status CheckChatFlags(const RunConfig& options, const DataSource& source) {
  const char* const given = !options.chat_template.empty() ? "--chat-template"
                            : options.trains_on_all        ? "--train-on"
                            : options.packs_examples       ? "--pack"
                                                           : nullptr;
  if (given == nullptr || HoldsChats(source.spec)) return absl::OkStatus();
  return base::UsageError(
      absl::StrCat(given, " is for a .jsonl file, and ", source.spec, " is none"));
}

// Returns an error if a run on numbers ends, or is judged, by a metric of classes.
absl::Status CheckMetricsOfNumbers(const RunConfig& options) {
  const auto check = [](absl::string_view use, const std::string& metric) -> absl::Status {
    if (!MetricOf(metric).is_of_classes) return absl::OkStatus();
    return base::UsageError(absl::StrCat(use, ": numbers have no ",
                                         absl::StripPrefix(DescribeMetric(metric), "test "),
                                         ": expected train_loss or test_loss"));
  };
  RETURN_IF_ERROR(check(absl::StrCat("--best-by ", options.best_by), options.best_by));
  if (!options.stop_when.has_value()) return absl::OkStatus();
  return check(absl::StrCat("--stop-when ", options.stop_when->text), options.stop_when->metric);
}

absl::StatusOr<TrainTest> LoadRows(const RunConfig& options, const TokenOptions& tokens,
                                   const Shape& model_input) {
  if (options.channels.has_value() && !HoldsArrays(DataOf(options)) &&
      !HoldsArrays(options.test_data)) {
    return base::UsageError(
        absl::StrCat("--channels is for a directory of arrays (x_train.npy), and ", DataOf(options),
                     " is none"));
  }
  const DataSource source = {.spec = DataOf(options),
                             .test_spec = options.test_data,
                             .test_fraction = options.test_fraction,
                             .label_column = options.label,
                             .dropped_columns = options.dropped_columns,
                             .labels = LabelsOf(options),
                             .channels = options.channels,
                             .model_input = model_input,
                             .image_size = ImageSizeOf(options, model_input),
                             .skips_broken_images = options.skips_broken_images,
                             .augmentation = options.augmentation,
                             .has_shapes_only = options.needs_shapes_only,
                             .seed = options.seed,
                             .tokens = tokens,
                             .on_notice = options.notices.on_notice};
  RETURN_IF_ERROR(CheckFlagsOfForms(options, source));
  RETURN_IF_ERROR(CheckChatFlags(options, source));
  if (options.test_fraction.has_value() && !IsDivided(source)) {
    return base::UsageError(
        absl::StrCat("--test-fraction is for a single file, and ", source.spec,
                     " has a test set of its own; another one is named with --test-data"));
  }
  if (source.labels == LabelKind::kNumbers) RETURN_IF_ERROR(CheckMetricsOfNumbers(options));
  ASSIGN_OR_RETURN(TrainTest data, [&] {
    const auto work = options.notices.BeginWork(DescribeReading(DataOf(options)));
    absl::StatusOr<TrainTest> loaded = LoadData(source);
    if (loaded.ok() && options.takes_fingerprint) {
      loaded->fingerprint = FingerprintOf(*loaded);
    }
    return loaded;
  }());
  if (const int64_t rows = options.rows.value_or(0); rows > 0) {
    if (rows > data.train->rows()) {
      return base::DataError(absl::StrCat(DataOf(options), ": ", RowsFlag(options),
                                          ", but there are ", data.train->rows(),
                                          " rows to train on"));
    }
    ASSIGN_OR_RETURN(data.train, SomeTrainingRows(source, std::move(data.train), rows));
  }
  // All files of a folder are trained on.
  const bool are_images = data.train->spec().inputs.front().type == kernels::DType::kUint8 &&
                          !FindDataFormat(source)->has_image_files;
  if (options.evaluation_rows > 0) {
    auto subset = SpreadSubset(std::move(data.test), options.evaluation_rows);
    RETURN_IF_ERROR(
        base::Annotate(subset.status(), absl::StrCat(TestDataOf(options), ": test rows")));
    data.test = *std::move(subset);
  }
  if (!options.rows.has_value() && are_images) {
    const int64_t rows = std::min(kDefaultImageRows, data.train->rows());
    ASSIGN_OR_RETURN(data.train, Subset(std::move(data.train), rows));
  }
  return data;
}

// A sample may not have more positions than the model that --init names.
absl::Status CheckContext(const RunConfig& options, int64_t context, const Transformer& initial) {
  if (context <= initial.longest_context()) return absl::OkStatus();
  return base::DataError(absl::StrCat("a context of ", context, " tokens, but the model in ",
                                      options.initial_parameters, " has ",
                                      initial.longest_context()));
}

std::string WithLora(std::string text, const std::optional<LoraOptions>& lora) {
  if (lora.has_value()) absl::StrAppend(&text, "\n", LoraTableOf(*lora));
  return text;
}

// Of a model that is named, and starts from another's parameters: with what these are more than its
// layers say, the whole table of positions and the tokens with a meaning.
absl::StatusOr<std::string> WithInitial(const RunConfig& options, std::string text) {
  const std::string& folder = options.initial_parameters;
  if (folder.empty() || IsStateDict(folder)) return text;
  absl::StatusOr<Transformer> named = TransformerOf(text);
  if (!named.ok()) return text;
  const absl::StatusOr<HuggingFaceModel> model = ReadHuggingFaceModelFile(folder);
  if (absl::IsNotFound(model.status())) return text;  // a run that resumes does not need it
  RETURN_IF_ERROR(model.status());
  const auto* const initial = std::get_if<Transformer>(&*model);
  if (initial == nullptr || initial->family != named->family) return text;
  RETURN_IF_ERROR(CheckContext(options, options.context.value_or(named->context), *initial));
  named->positions = initial->positions;
  named->context = std::min(named->context, initial->context);
  named->end_of_text = initial->end_of_text;
  named->begin_of_text = initial->begin_of_text;
  ASSIGN_OR_RETURN(const std::optional<LoraOptions> lora, LoraOf(text));
  return WithLora(ModelFileOf(*named), lora);
}

// The model file of the default network for tokens. Positions are as many as the data have: chats
// need more of them than a text is cut into.
std::string SmallGpt(const RunConfig& options) {
  const NetworkSize size = NetworkSizeOf(options, 0);
  const int heads = size.width % 4 == 0 ? 4 : 1;
  return absl::StrCat(HoldsChats(DataOf(options)) ? "" : "context = 64\n", R"(
[[layer]]
type = "embedding"
vocabulary = "classes"
features = )",
                      size.width, R"(
positions = true

[[layer]]
type = "sequence"
repeat = )",
                      size.layers, R"(
layers = [
  { type = "residual", layers = [
      { type = "layer_norm" },
      { type = "linear", outputs = )",
                      3 * size.width, R"( },
      { type = "attention", heads = )",
                      heads, R"( },
      { type = "linear", outputs = )",
                      size.width, R"( } ] },
  { type = "residual", layers = [
      { type = "layer_norm" },
      { type = "linear", outputs = )",
                      4 * size.width, R"(, activation = "gelu" },
      { type = "linear", outputs = )",
                      size.width, R"( } ] },
]

[[layer]]
type = "layer_norm"

[[layer]]
type = "linear"
outputs = "classes"
)");
}

absl::StatusOr<std::string> OwnModelText(const RunConfig& options) {
  if (!options.model_text.empty()) return options.model_text;
  if (options.model_file.empty() && NameOfModel(options) != kDefaultModel) {
    if (IsStateDict(options.initial_parameters)) {
      return base::UsageError(
          absl::StrCat(options.initial_parameters,
                       " has tensors alone: name the ResNet that they are of with --model"));
    }
    ASSIGN_OR_RETURN(const HuggingFaceModel model,
                     ReadHuggingFaceModelFile(options.initial_parameters));
    if (const auto* const initial = std::get_if<Transformer>(&model)) {
      RETURN_IF_ERROR(CheckContext(options, options.context.value_or(0), *initial));
    }
    return ModelFileOf(model);
  }
  if (options.model_file.empty()) {
    const bool has_tokens = HoldsTokens(DataOf(options), !options.tokenizer.empty());
    return has_tokens ? SmallGpt(options) : std::string();
  }
  absl::StatusOr<std::string> named = ModelFileNamed(options.model_file);
  if (named.ok()) return WithInitial(options, *std::move(named));
  if (!absl::IsNotFound(named.status())) return base::WithClass(base::ErrorClass::kUsage, named);
  absl::StatusOr<std::string> text = base::ReadInput(options.model_file, kMaxModelFileBytes);
  if (text.ok()) return WithInitial(options, *std::move(text));
  if (!absl::IsNotFound(text.status())) return text;
  const std::string nearest =
      base::Nearest(options.model_file.substr(0, options.model_file.find(':')), ModelNames());
  return base::DataError(
      absl::StrCat(text.status().message(),
                   nearest.empty() ? absl::StrCat("; models with a name are ",
                                                  absl::StrJoin(ModelNames(), ", "))
                                   : absl::StrCat("; did you mean the model ", nearest, "?")),
      absl::StatusCode::kNotFound);
}

// Whether the data chose the model, which then begins with random parameters.
bool IsDefault(const RunConfig& options) {
  return options.model_text.empty() && NameOfModel(options) == kDefaultModel;
}

absl::StatusOr<std::string> WithQuantization(const RunConfig& options, std::string text) {
  if (!options.quantization.has_value()) return text;
  const auto refuse = [](const auto&... why) {
    return base::UsageError(absl::StrCat("--quantize: ", why...));
  };
  if (IsDefault(options))
    return refuse("is for a model of --init or --model, not for the default one");
  const auto own = QuantizationOf(text);
  if (!own.ok() || *own == options.quantization) return text;  // ParseModel tells errors
  if (own->has_value()) {
    return refuse(options.model_text.empty() ? NameOfModel(options) : "the saved run",
                  " has weights in ", QuantizationName(**own));
  }
  if (!options.model_text.empty() && !IsSavedRun(options.initial_parameters)) {
    return refuse("the saved run has weights that are not quantized");
  }
  const absl::Status fits = CheckCanQuantize(text);
  if (!fits.ok()) return refuse(fits.message());
  return absl::StrCat(text, "\n", QuantizationTableOf(*options.quantization));
}

absl::StatusOr<std::string> WithAdapters(const RunConfig& options, std::string text) {
  if (options.lora.empty()) return text;
  const auto refuse = [](const auto&... why) {
    return base::UsageError(absl::StrCat("--lora: ", why...));
  };
  if (IsDefault(options))
    return refuse("is for a model of --init or --model, not for the default one");
  ASSIGN_OR_RETURN(const std::optional<LoraOptions> own, LoraOf(text));
  const bool is_folder = IsPeftFolder(options.lora);
  absl::StatusOr<LoraOptions> lora =
      is_folder ? ReadPeftConfig(options.lora) : ParseLora(options.lora);
  if (is_folder) RETURN_IF_ERROR(lora.status());
  if (!lora.ok()) return refuse(lora.status().message());
  if (!own.has_value()) {
    const absl::Status fits = CheckCanAdapt(text, *lora);
    if (!fits.ok() && is_folder) {
      return base::DataError(absl::StrCat(options.lora, "/adapter_config.json: ", fits.message()));
    }
    return fits.ok() ? absl::StatusOr<std::string>(WithLora(std::move(text), *lora))
                     : refuse(fits.message());
  }
  if (!options.model_text.empty() && *own == *lora) return text;
  if (!options.model_text.empty()) return refuse("the saved run has adapters of other options");
  return refuse(NameOfModel(options), " has a table [lora] of its own");
}

absl::StatusOr<std::string> WithTensorBlocks(const RunConfig& options, std::string text) {
  ASSIGN_OR_RETURN(const TensorChoice chosen, ChosenTensorParts(options));
  const int parts = chosen.parts;
  const auto refuse = [&](const auto&... why) {
    return base::UsageError(absl::StrCat(
        options.tensor_blocks.has_value() ? "--tensor-blocks" : chosen.source, ": ", why...));
  };
  const absl::StatusOr<int64_t> own = text.empty() ? 1 : TensorBlocksOf(text);
  if (!own.ok()) return text;  // ParseModel tells errors
  const int64_t blocks = options.tensor_blocks.value_or(*own > 1 ? *own : parts);
  if (blocks % parts != 0) {
    return refuse(parts, " devices cannot share ", blocks, " blocks of a layer equally");
  }
  if (blocks == *own) return text;
  if (text.empty()) {
    return refuse(
        "the default network is not cut into blocks; name a model of residual layers (--model)");
  }
  if (*own > 1 || !options.model_text.empty()) {
    return refuse(options.model_text.empty() ? NameOfModel(options) : "the saved run", " has ",
                  *own == 1 ? "layers that are not cut" : absl::StrCat(*own, " blocks"));
  }
  return absl::StrCat(text, "\n", TensorTableOf(blocks));
}

absl::StatusOr<std::string> ModelTextOf(const RunConfig& options) {
  ASSIGN_OR_RETURN(std::string text, OwnModelText(options));
  ASSIGN_OR_RETURN(text, WithQuantization(options, std::move(text)));
  ASSIGN_OR_RETURN(text, WithAdapters(options, std::move(text)));
  ASSIGN_OR_RETURN(text, WithTensorBlocks(options, std::move(text)));
  if (text.empty()) return text;
  const auto quantization = QuantizationOf(text);
  const auto lora = LoraOf(text);
  if (!quantization.ok() || !lora.ok()) return text;  // ParseModel tells errors
  if (!quantization->has_value() || lora->has_value()) return text;
  return base::UsageError(absl::StrCat("weights in ", QuantizationName(**quantization),
                                       " are not trained: add adapters, such as --lora rank=16"));
}

}  // namespace

std::string DescribeReading(const std::string& data) {
  if (absl::StartsWith(data, "synthetic:")) return absl::StrCat("makes ", data);
  const absl::StatusOr<std::vector<std::string>> files = DataFilesOf(data);
  if (!files.ok()) return absl::StrCat("reads ", data);
  uintmax_t bytes = 0;
  for (const std::string& file : *files) {
    std::error_code error;
    bytes += std::filesystem::file_size(file, error);  // not of a directory or a pipe
    if (error) return absl::StrCat("reads ", data);
  }
  return absl::StrCat("reads ", data, " (",
                      files->size() > 1 ? absl::StrCat(files->size(), " files, ") : "",
                      base::FormatBytes(static_cast<int64_t>(bytes)), ")");
}

std::string NameOfModel(const RunConfig& options) {
  if (!options.model_file.empty()) return options.model_file;
  const std::string& initial = options.initial_parameters;
  return initial.empty() || IsSavedRun(initial) ? kDefaultModel : initial;
}

NetworkSize NetworkSizeOf(const RunConfig& options, int64_t features) {
  constexpr NetworkSize kGpt = {.layers = 4, .width = 128};
  constexpr NetworkSize kLargest = {.layers = 20, .width = 2304};
  constexpr int64_t kLeastWidth = 64, kFew = 256;
  NetworkSize size = kGpt;
  if (features > 0) {
    const uint64_t wanted =
        std::bit_ceil(8 * static_cast<uint64_t>(std::min(features, kLargest.width)));
    size.width = std::clamp(static_cast<int64_t>(wanted), kLeastWidth, kLargest.width);
    size.layers = size.width <= kFew ? 4 : size.width < kLargest.width ? 8 : kLargest.layers;
  }
  return {.layers = options.layers.value_or(size.layers),
          .width = options.width.value_or(size.width)};
}

int64_t NetworkFeaturesOf(const Dataset& data) {
  return data.spec().inputs.front().has_ids() ? 0 : data.features();
}

absl::StatusOr<Model> MakeModel(const RunConfig& options, const std::string& text,
                                const ModelData& data) {
  if (text.empty() && options.model_file.empty()) {
    if (data.vocabulary > 0) {
      return absl::InvalidArgumentError(
          "the default network takes numbers, and the data has ids of tokens: name a model that "
          "takes ids with --model");
    }
    const NetworkSize size = NetworkSizeOf(options, data.input.elements());
    ASSIGN_OR_RETURN(Model network,
                     DefaultNetwork(data.input.elements(), data.classes, size.layers, size.width));
    if (data.has_numbers) network.loss = MeanSquaredErrorOfValues();
    return network;
  }
  absl::StatusOr<Model> model = ParseModel(text, data);
  RETURN_IF_ERROR(InModel(options, model.status()));
  if (options.loss == "cross-entropy" && !model->loss()->is_softmax_cross_entropy()) {
    return base::UsageError(absl::StrCat("--loss cross-entropy: ", NameOfModel(options),
                                         " has another loss of its own"));
  }
  return model;
}

absl::StatusOr<Workload> PrepareWorkload(const RunConfig& options) {
  Workload workload;
  ASSIGN_OR_RETURN(workload.optimizer, OptimizerOf(options));
  ASSIGN_OR_RETURN(workload.model_text, ModelTextOf(options));
  // If the model can be read, errors of the data come first.
  const absl::StatusOr<ModelTokens> parsed = ModelTokensOf(options, workload.model_text);
  const ModelTokens tokens = parsed.value_or(ModelTokens());
  RETURN_IF_ERROR(CheckTokensHaveData(options, tokens));
  if (HoldsTokens(DataOf(options), !options.tokenizer.empty())) {
    RETURN_IF_ERROR(parsed.status());
  }
  ASSIGN_OR_RETURN(workload.data, LoadRows(options, TokensOf(options, tokens),
                                           ParseModelInput(workload.model_text)));
  ASSIGN_OR_RETURN(workload.model, MakeModel(options, workload.model_text,
                                             ModelData::Of(workload.data.train->spec())));
  RETURN_IF_ERROR(SetLossOptions(options, workload.data, workload.model));
  workload.model.parameter_rules = options.parameter_rules;
  workload.model.has_documents = workload.data.train->spec().has_documents;
  const auto check_fits = [&](const Dataset& data, const TargetSpec& target) {
    return CheckFits(data.spec(), workload.model.input, target, workload.model.vocabulary,
                     workload.model.has_documents);
  };
  RETURN_IF_ERROR(base::Annotate(check_fits(*workload.data.train, {}), DataOf(options)));
  RETURN_IF_ERROR(base::Annotate(
      check_fits(*workload.data.test, workload.data.train->spec().target), TestDataOf(options)));
  return workload;
}

absl::StatusOr<std::string> FindFolderTokenizer(const RunConfig& options, bool is_silent) {
  const std::string& folder = options.initial_parameters;
  if (folder.empty() || IsStateDict(folder) || !options.tokenizer.empty() ||
      !options.data.has_value() || !HoldsText(*options.data)) {
    return std::string();
  }
  const absl::StatusOr<FolderTokenizer> found = LoadFolderTokenizer(folder);
  if (absl::IsNotFound(found.status())) return std::string();
  RETURN_IF_ERROR(found.status());
  if (!found->notice.empty() && !is_silent) options.notices.Tell(found->notice);
  return found->path;
}

absl::StatusOr<PlannedModel> PrepareModel(const RunConfig& config) {
  RunConfig options = config;
  RETURN_IF_ERROR(TakeInitialRun(options, /*is_silent=*/false));
  if (!options.data.has_value()) {
    ASSIGN_OR_RETURN(const std::string text, ModelTextOf(options));
    ASSIGN_OR_RETURN(const ModelTokens tokens, ModelTokensOf(options, text));
    const bool has_flag = FlagOfTokens(options) != nullptr;
    if (TakesTokens(tokens) || (has_flag && !text.empty())) {
      PlannedModel planned;
      ASSIGN_OR_RETURN(planned.optimizer, OptimizerOf(options));
      ASSIGN_OR_RETURN(const ModelData shapes, ShapesOf(options, tokens));
      ASSIGN_OR_RETURN(planned.model, MakeModel(options, text, shapes));
      if (!options.class_weights.empty()) {
        return base::UsageError("--class-weights needs to know the classes: name --data");
      }
      RETURN_IF_ERROR(SetLossOptions(options, {}, planned.model));
      planned.model.parameter_rules = options.parameter_rules;
      return planned;
    }
  }
  RunConfig own = options;
  own.needs_shapes_only = true;
  if (own.tokenizer.empty()) {
    ASSIGN_OR_RETURN(own.tokenizer, FindFolderTokenizer(options, /*is_silent=*/false));
  }
  ASSIGN_OR_RETURN(Workload workload, PrepareWorkload(own));
  return PlannedModel{std::move(workload.model), workload.optimizer};
}

absl::Status CheckFlagOfForm(const std::string& flag, const DataSource& source) {
  static constexpr std::pair<const char*, bool DataFormat::*> kForms[] = {
      {"--label", &DataFormat::has_label_column},
      {"--drop", &DataFormat::has_label_column},
      {"--image-size", &DataFormat::has_image_files},
      {"--skip-broken-images", &DataFormat::has_image_files}};
  const DataFormat* const format = FindDataFormat(source);
  for (const auto& [name, property] : kForms) {
    if (flag != name || (format != nullptr && format->*property)) continue;
    return base::UsageError(absl::StrCat(flag, " is for ", DescribeDataForms(property), ", and ",
                                         source.spec, " is none"));
  }
  return absl::OkStatus();
}

}  // namespace stagecoach::engine
