// What is trained, of tools/cli/run_options.h: data, model, optimizer.

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/file.h"
#include "base/line.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "engine/checkpoint/hugging_face_files.h"
#include "engine/data/arrays.h"
#include "engine/data/data_fingerprint.h"
#include "engine/data/load.h"
#include "engine/data/tokenizer/folder_tokenizer.h"
#include "engine/data/tokenizer/tokenizer.h"
#include "engine/model/model_file.h"
#include "engine/model/presets.h"
#include "engine/model/transformer.h"
#include "tools/cli/exit_status.h"
#include "tools/cli/messages.h"
#include "tools/cli/run_options.h"
#include "tools/cli/slow_notice.h"

namespace stagecoach::tools {
namespace {

absl::StatusOr<engine::Optimizer> OptimizerOf(const RunOptions& options) {
  const bool is_sgd = options.optimizer == "sgd";
  if (is_sgd && (options.beta1.has_value() || options.beta2.has_value())) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.beta1.has_value() ? "--beta1" : "--beta2",
                     " is for --optimizer adamw; sgd has --momentum"));
  }
  if (options.momentum.has_value() && !is_sgd) {
    return absl::InvalidArgumentError(
        "--momentum is for --optimizer sgd; adamw has --beta1 and --beta2");
  }
  engine::Optimizer optimizer = is_sgd ? engine::Optimizer::Sgd() : engine::Optimizer::AdamW();
  optimizer.weight_decay = options.weight_decay.value_or(optimizer.weight_decay);
  optimizer.beta1 = options.beta1.value_or(optimizer.beta1);
  optimizer.beta2 = options.beta2.value_or(optimizer.beta2);
  optimizer.momentum = options.momentum.value_or(optimizer.momentum);
  optimizer.clip_norm = options.clip_norm;
  optimizer.checks_gradients = options.on_nonfinite.has_value();
  RETURN_IF_ERROR(CheckOptimizer(optimizer));
  return optimizer;
}

// Of errors in the model's text, which is a file's, or belongs to a name.
Origin OriginOfModel(const RunOptions& options) {
  const bool is_file = options.model_text.empty() && !options.model_file.empty() &&
                       absl::IsNotFound(engine::ModelFileNamed(options.model_file).status());
  return is_file ? Origin::kData : Origin::kConfiguration;
}

// What the model says of tokens: nothing, if it is the default network.
absl::StatusOr<engine::ModelTokens> ModelTokensOf(const RunOptions& options,
                                                  const std::string& model_text) {
  if (model_text.empty()) return engine::ModelTokens();
  absl::StatusOr<engine::ModelTokens> parsed = engine::ParseModelTokens(model_text);
  RETURN_IF_ERROR(
      From(OriginOfModel(options), base::InFile(parsed.status(), NameOfModel(options))));
  return parsed;
}

bool TakesTokens(const engine::ModelTokens& model) {
  return model.context > 0 || model.vocabulary > 0;
}

// The first of the flags for tokens that is given; null: none is.
const char* FlagOfTokens(const RunOptions& options) {
  return !options.tokenizer.empty()       ? "--tokenizer"
         : options.context.has_value()    ? "--context"
         : options.vocabulary.has_value() ? "--vocabulary"
                                          : nullptr;
}

engine::TokenOptions TokensOf(const RunOptions& options, const engine::ModelTokens& model) {
  engine::TokenOptions tokens = {.tokenizer = options.tokenizer};
  if (model.context > 0) tokens.context = model.context;
  if (model.vocabulary > 0) tokens.vocabulary = model.vocabulary;
  tokens.context = options.context.value_or(tokens.context);
  tokens.vocabulary = options.vocabulary.value_or(tokens.vocabulary);
  return tokens;
}

// Of data that are to be loaded.
absl::Status CheckTokensHaveData(const RunOptions& options, const engine::ModelTokens& model) {
  const std::string data = DataOf(options);
  if (engine::HoldsTokens(data, !options.tokenizer.empty())) return absl::OkStatus();
  if (!options.data.has_value() && TakesTokens(model)) {
    return From(Origin::kUsage,
                absl::InvalidArgumentError(absl::StrCat(
                    NameOfModel(options),
                    " is a model of tokens: name a text, or a file of ids, with --data FILE")));
  }
  const char* const flag = FlagOfTokens(options);
  if (flag == nullptr) return absl::OkStatus();
  return From(
      Origin::kUsage,
      absl::InvalidArgumentError(absl::StrCat(
          flag, " is for text and ids of tokens, which ",
          options.data.has_value() ? data : absl::StrCat("the default, ", data, ","),
          " does not hold", options.data.has_value() ? "" : ": name them with --data FILE")));
}

// What tokens are to a model that is planned without any.
absl::StatusOr<engine::ModelData> ShapesOf(const RunOptions& options,
                                           const engine::ModelTokens& model) {
  engine::TokenOptions tokens = TokensOf(options, model);
  if (!tokens.tokenizer.empty() && tokens.tokenizer != engine::kBytesTokenizer) {
    ASSIGN_OR_RETURN(const auto tokenizer,
                     From(Origin::kData, engine::Tokenizer::Load(tokens.tokenizer)));
    const int64_t known = tokenizer->vocabulary();
    if (tokens.vocabulary == 0) tokens.vocabulary = known;
    if (tokens.vocabulary < known) {
      return From(Origin::kConfiguration,
                  absl::InvalidArgumentError(
                      absl::StrCat(NameOfModel(options), " has a vocabulary of ", tokens.vocabulary,
                                   ", but ", tokens.tokenizer, " has ", known, " tokens")));
    }
  }
  if (tokens.vocabulary == 0) {
    return From(Origin::kUsage,
                absl::InvalidArgumentError(absl::StrCat(
                    NameOfModel(options),
                    " has the vocabulary of its data: name them with --data, or say how many "
                    "tokens there are with --vocabulary")));
  }
  return engine::ModelData{.input = engine::Shape{tokens.context},
                           .vocabulary = tokens.vocabulary,
                           .classes = tokens.vocabulary};
}

absl::StatusOr<engine::TrainTest> LoadRows(const RunOptions& options,
                                           const engine::TokenOptions& tokens,
                                           const engine::Shape& model_input) {
  if (options.label != RunOptions().label && !absl::EndsWith(DataOf(options), ".csv")) {
    return From(Origin::kUsage,
                absl::InvalidArgumentError(
                    absl::StrCat("--label is for a .csv file, and ", DataOf(options), " is none")));
  }
  if (options.channels.has_value() && !engine::HoldsArrays(DataOf(options)) &&
      !engine::HoldsArrays(options.test_data)) {
    return From(Origin::kUsage, absl::InvalidArgumentError(absl::StrCat(
                                    "--channels is for a directory of arrays (x_train.npy), and ",
                                    DataOf(options), " is none")));
  }
  const engine::DataSource source = {.spec = DataOf(options),
                                     .test_spec = options.test_data,
                                     .test_fraction = options.test_fraction,
                                     .label_column = options.label,
                                     .labels = LabelsOf(options),
                                     .channels = options.channels,
                                     .model_input = model_input,
                                     .seed = options.seed,
                                     .tokens = tokens};
  if (options.test_fraction.has_value() && !engine::IsDivided(source)) {
    return From(Origin::kUsage,
                absl::InvalidArgumentError(absl::StrCat(
                    "--test-fraction is for a .csv file or one of tokens, and ", source.spec,
                    " has a test set of its own; another one is named with --test-data")));
  }
  const bool has_accuracy = source.labels == engine::LabelKind::kClasses;
  if (!has_accuracy && options.stop_when.has_value() && options.stop_when->is_accuracy()) {
    return From(Origin::kUsage,
                absl::InvalidArgumentError(
                    absl::StrCat("--stop-when ", options.stop_when->text,
                                 ": numbers have no accuracy: expected train_loss or test_loss")));
  }
  ASSIGN_OR_RETURN(engine::TrainTest data, [&] {
    const SlowNotice notice(DescribeReading(DataOf(options)));
    absl::StatusOr<engine::TrainTest> loaded = engine::LoadData(source);
    if (loaded.ok() && options.takes_fingerprint) {
      loaded->fingerprint = engine::FingerprintOf(*loaded);
    }
    return loaded;
  }());
  if (const int64_t rows = options.rows.value_or(0); rows > 0) {
    if (rows > data.train->rows()) {
      const bool is_saved =
          std::find(options.taken.begin(), options.taken.end(), "--rows") != options.taken.end();
      return absl::InvalidArgumentError(
          absl::StrCat(DataOf(options), ": --rows is ", rows, is_saved ? ", in the checkpoint" : "",
                       ", but there are ", data.train->rows(), " rows to train on"));
    }
    ASSIGN_OR_RETURN(data.train, engine::Subset(std::move(data.train), rows));
  }
  const bool are_images = data.train->spec().inputs.front().type == kernels::DType::kUint8;
  if (options.evaluation_rows > 0) {
    auto subset = engine::SpreadSubset(std::move(data.test), options.evaluation_rows);
    RETURN_IF_ERROR(
        base::Annotate(subset.status(), absl::StrCat(TestDataOf(options), ": test rows")));
    data.test = *std::move(subset);
  }
  if (!options.rows.has_value() && are_images) {
    const int64_t rows = std::min(kDefaultImageRows, data.train->rows());
    ASSIGN_OR_RETURN(data.train, engine::Subset(std::move(data.train), rows));
  }
  return data;
}

// A sample may not have more positions than the model that --init names.
absl::Status CheckContext(const RunOptions& options, int64_t context,
                          const engine::Transformer& initial) {
  if (context <= initial.context) return absl::OkStatus();
  return From(Origin::kData, absl::InvalidArgumentError(absl::StrCat(
                                 "a context of ", context, " tokens, but the model in ",
                                 options.initial_parameters, " has ", initial.context)));
}

// Of a model that is named, and starts from another's parameters: with what these are more than its
// layers say, the whole table of positions and the tokens with a meaning.
absl::StatusOr<std::string> WithInitial(const RunOptions& options, std::string text) {
  const std::string& folder = options.initial_parameters;
  if (folder.empty() || engine::IsStateDict(folder)) return text;
  absl::StatusOr<engine::Transformer> named = engine::TransformerOf(text);
  if (!named.ok()) return text;
  const absl::StatusOr<engine::HuggingFaceModel> model = engine::ReadHuggingFaceModelFile(folder);
  if (absl::IsNotFound(model.status())) return text;  // a run that goes on does not need it
  RETURN_IF_ERROR(From(Origin::kData, model.status()));
  const auto* const initial = std::get_if<engine::Transformer>(&*model);
  if (initial == nullptr || initial->family != named->family) return text;
  RETURN_IF_ERROR(CheckContext(options, options.context.value_or(named->context), *initial));
  named->positions = initial->positions;
  named->context = std::min(named->context, initial->context);
  named->end_of_text = initial->end_of_text;
  named->begin_of_text = initial->begin_of_text;
  return engine::ModelFileOf(*named);
}

absl::StatusOr<std::string> ModelTextOf(const RunOptions& options) {
  if (!options.model_text.empty()) return options.model_text;
  if (options.model_file.empty() && !options.initial_parameters.empty()) {
    if (engine::IsStateDict(options.initial_parameters)) {
      return From(Origin::kUsage,
                  absl::InvalidArgumentError(absl::StrCat(
                      options.initial_parameters,
                      " has tensors alone: name the ResNet that they are of with --model")));
    }
    ASSIGN_OR_RETURN(
        const engine::HuggingFaceModel model,
        From(Origin::kData, engine::ReadHuggingFaceModelFile(options.initial_parameters)));
    if (const auto* const initial = std::get_if<engine::Transformer>(&model)) {
      RETURN_IF_ERROR(CheckContext(options, options.context.value_or(0), *initial));
    }
    return engine::ModelFileOf(model);
  }
  if (options.model_file.empty()) return std::string();
  absl::StatusOr<std::string> named = engine::ModelFileNamed(options.model_file);
  if (named.ok()) return WithInitial(options, *std::move(named));
  if (!absl::IsNotFound(named.status())) return From(Origin::kUsage, named);
  absl::StatusOr<std::string> text =
      From(Origin::kData, base::ReadInput(options.model_file, engine::kMaxModelFileBytes));
  if (text.ok()) return WithInitial(options, *std::move(text));
  if (!absl::IsNotFound(text.status())) return text;
  return From(Origin::kData,
              absl::NotFoundError(absl::StrCat(text.status().message(), "; models with a name are ",
                                               absl::StrJoin(engine::ModelNames(), ", "))));
}

// The learning rate, or its peak.
float PeakRateOf(const RunOptions& options) {
  constexpr float kSgd = 0.01F;
  constexpr float kAdamWMax = 1e-3F;
  constexpr float kAdamWTimesWidth = 4e-5F * 2304;  // tuned on the default network
  if (options.learning_rate.has_value()) return *options.learning_rate;
  if (options.optimizer == "sgd") return kSgd;
  if (NameOfModel(options) != kDefaultModel) return kAdamWMax;
  return std::min(kAdamWMax, kAdamWTimesWidth / static_cast<float>(options.width));
}

}  // namespace

std::string DescribeReading(const std::string& data) {
  if (absl::StartsWith(data, "synthetic:")) return absl::StrCat("makes ", data);
  std::error_code error;
  const uintmax_t bytes = std::filesystem::file_size(data, error);  // not of a directory or a pipe
  if (error) return absl::StrCat("reads ", data);
  return absl::StrCat("reads ", data, " (", base::FormatBytes(static_cast<int64_t>(bytes)), ")");
}

std::string NameOfModel(const RunOptions& options) {
  if (!options.model_file.empty()) return options.model_file;
  return options.initial_parameters.empty() ? kDefaultModel : options.initial_parameters;
}

absl::StatusOr<engine::LearningRate> LearningRateOf(const RunOptions& options, int64_t steps) {
  const float peak = PeakRateOf(options);
  if (options.learning_rate_schedule == "constant") {
    if (!options.warmup_steps.has_value() && !options.min_learning_rate.has_value()) {
      return engine::LearningRate::Constant(peak);
    }
    return absl::InvalidArgumentError(
        absl::StrCat(options.warmup_steps.has_value() ? "--warmup-steps" : "--min-lr",
                     " is for --lr-schedule warmup-cosine; constant has --learning-rate alone"));
  }
  const auto share = static_cast<int64_t>(kWarmupShare * static_cast<double>(steps));
  const int64_t warmup_steps = options.warmup_steps.value_or(std::max<int64_t>(1, share));
  if (warmup_steps > steps) {
    return absl::InvalidArgumentError(absl::StrCat("--warmup-steps is ", warmup_steps,
                                                   ", but the run has ", steps, " steps in all"));
  }
  const float minimum = options.min_learning_rate.value_or(0.0F);
  if (minimum > peak) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--min-lr is ", minimum, ", above the rate that the warm-up ends with, ", peak));
  }
  return engine::LearningRate::WarmupCosine(peak, warmup_steps, steps, minimum);
}

absl::StatusOr<engine::Model> MakeModel(const RunOptions& options, const std::string& text,
                                        const engine::ModelData& data) {
  if (text.empty() && options.model_file.empty()) {
    if (data.vocabulary > 0) {
      return absl::InvalidArgumentError(
          "the default network takes numbers, and the data has ids of tokens: name a model that "
          "takes ids with --model");
    }
    ASSIGN_OR_RETURN(
        engine::Model network,
        engine::DefaultNetwork(data.input.elements(), data.classes, options.layers, options.width));
    if (data.has_numbers) network.loss = engine::MeanSquaredErrorOfValues();
    return network;
  }
  absl::StatusOr<engine::Model> model = engine::ParseModel(text, data);
  RETURN_IF_ERROR(From(OriginOfModel(options), base::InFile(model.status(), NameOfModel(options))));
  if (options.loss == "cross-entropy" && !model->loss()->is_softmax_cross_entropy()) {
    return From(Origin::kUsage, absl::InvalidArgumentError(
                                    absl::StrCat("--loss cross-entropy: ", NameOfModel(options),
                                                 " has another loss of its own")));
  }
  return model;
}

absl::StatusOr<Workload> PrepareWorkload(const RunOptions& options) {
  Workload workload;
  ASSIGN_OR_RETURN(workload.optimizer, From(Origin::kUsage, OptimizerOf(options)));
  ASSIGN_OR_RETURN(workload.model_text, From(Origin::kConfiguration, ModelTextOf(options)));
  // Of a model that can be read, what is wrong with the data is told first.
  const absl::StatusOr<engine::ModelTokens> parsed = ModelTokensOf(options, workload.model_text);
  const engine::ModelTokens tokens = parsed.value_or(engine::ModelTokens());
  RETURN_IF_ERROR(CheckTokensHaveData(options, tokens));
  if (engine::HoldsTokens(DataOf(options), !options.tokenizer.empty())) {
    RETURN_IF_ERROR(parsed.status());
  }
  ASSIGN_OR_RETURN(workload.data,
                   From(Origin::kData, LoadRows(options, TokensOf(options, tokens),
                                                engine::ParseModelInput(workload.model_text))));
  ASSIGN_OR_RETURN(
      workload.model,
      From(Origin::kConfiguration, MakeModel(options, workload.model_text,
                                             engine::ModelData::Of(workload.data.train->spec()))));
  RETURN_IF_ERROR(From(
      Origin::kData, base::Annotate(CheckFits(workload.data.train->spec(), workload.model.input, {},
                                              workload.model.vocabulary),
                                    DataOf(options))));
  RETURN_IF_ERROR(
      From(Origin::kData,
           base::Annotate(CheckFits(workload.data.test->spec(), workload.model.input,
                                    workload.data.train->spec().target, workload.model.vocabulary),
                          TestDataOf(options))));
  return workload;
}

absl::StatusOr<std::string> FindFolderTokenizer(const RunOptions& options, bool is_silent) {
  const std::string& folder = options.initial_parameters;
  if (folder.empty() || engine::IsStateDict(folder) || !options.tokenizer.empty() ||
      !options.data.has_value() || !engine::HoldsText(*options.data)) {
    return std::string();
  }
  const absl::StatusOr<engine::FolderTokenizer> found = engine::LoadFolderTokenizer(folder);
  if (absl::IsNotFound(found.status())) return std::string();
  RETURN_IF_ERROR(From(Origin::kData, found.status()));
  if (!found->notice.empty() && !is_silent) PrintNotice(found->notice);
  return found->path;
}

absl::StatusOr<PlannedModel> PrepareModel(const RunOptions& options) {
  if (!options.data.has_value()) {
    ASSIGN_OR_RETURN(const std::string text, From(Origin::kConfiguration, ModelTextOf(options)));
    ASSIGN_OR_RETURN(const engine::ModelTokens tokens, ModelTokensOf(options, text));
    const bool has_flag = FlagOfTokens(options) != nullptr;
    if (TakesTokens(tokens) || (has_flag && !text.empty())) {
      PlannedModel planned;
      ASSIGN_OR_RETURN(planned.optimizer, From(Origin::kUsage, OptimizerOf(options)));
      ASSIGN_OR_RETURN(const engine::ModelData shapes, ShapesOf(options, tokens));
      ASSIGN_OR_RETURN(planned.model,
                       From(Origin::kConfiguration, MakeModel(options, text, shapes)));
      return planned;
    }
  }
  RunOptions own = options;
  if (own.tokenizer.empty()) {
    ASSIGN_OR_RETURN(own.tokenizer, FindFolderTokenizer(options, /*is_silent=*/false));
  }
  ASSIGN_OR_RETURN(Workload workload, PrepareWorkload(own));
  return PlannedModel{std::move(workload.model), workload.optimizer};
}

}  // namespace stagecoach::tools
