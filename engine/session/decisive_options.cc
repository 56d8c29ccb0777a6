// The options that decide the results of a run, of engine/session/saved_run.h.

#include <algorithm>
#include <charconv>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/checkpoint/peft.h"
#include "engine/data/augmentation_names.h"
#include "engine/data/chat/chat_dataset.h"
#include "engine/data/data_files.h"
#include "engine/data/formats/arrays.h"
#include "engine/data/formats/format.h"
#include "engine/data/tokens/token_info.h"
#include "engine/nn/parsing/lora.h"
#include "engine/session/saved_run.h"

namespace stagecoach::engine {
namespace {

using O = RunConfig;
using Effect = std::optional<std::string>;

// Values in effect that follow from the options or the run alone, always or if `condition` holds.
template <typename Value>
auto OfOptions(Value value) {
  return [value](const O& options, const TrainingRun& /*run*/) { return Effect(value(options)); };
}
template <typename Value>
auto OfRun(Value value) {
  return [value](const O& /*options*/, const TrainingRun& run) { return Effect(value(run)); };
}
template <typename Value>
auto OfOptions(bool (*condition)(const O&), Value value) {
  return [=](const O& options, const TrainingRun& /*run*/) {
    return condition(options) ? Effect(value(options)) : std::nullopt;
  };
}
template <typename Value>
auto OfRun(bool (*condition)(const TrainingRun&), Value value) {
  return [=](const O& /*options*/, const TrainingRun& run) {
    return condition(run) ? Effect(value(run)) : std::nullopt;
  };
}

// The shortest text that reads as this number.
template <typename Number>
std::string Text(Number value) {
  char text[32];
  return std::string(text, std::to_chars(std::begin(text), std::end(text), value).ptr);
}

const TensorSpec& InputOf(const TrainingRun& run) { return run.data.train->spec().inputs.front(); }
bool TakesIds(const TrainingRun& run) { return InputOf(run).has_ids(); }
bool HasNumbers(const TrainingRun& run) { return run.data.encoding.labels_are_numbers(); }
bool HoldsImageFiles(const O& options) {
  const DataFormat* const format = FindDataFormat({.spec = DataOf(options)});
  return format != nullptr && format->has_image_files;
}
bool DataHoldChats(const O& options) { return HoldsChats(DataOf(options)); }

// A value in effect of the default network.
template <typename Value>
auto InNetwork(Value value) {
  return [value](const O& options, const TrainingRun& run) -> Effect {
    if (NameOfModel(options) != kDefaultModel) return std::nullopt;
    return value(NetworkSizeOf(options, NetworkFeaturesOf(*run.data.train)));
  };
}

bool WarmsUp(const TrainingRun& run) {
  return run.learning_rate.kind != LearningRate::Kind::kConstant ||
         run.learning_rate.warmup_steps > 0;
}
bool FallsToMinimum(const TrainingRun& run) { return run.learning_rate.has_minimum(); }

// The file by which the data are tokens, which they may name themselves;
// nullopt: it is not known.
Effect TokenizerOf(const RunConfig& options) {
  if (!options.tokenizer.empty()) return options.tokenizer;
  const absl::StatusOr<std::optional<TokenInfo>> info =
      ReadTokenInfo(FirstDataFile(DataOf(options)));
  const bool is_named = info.ok() && info->has_value() && !(*info)->tokenizer.empty();
  return is_named ? Effect((*info)->tokenizer) : std::nullopt;
}

std::string AugmentationText(const Augmentation& augmentation) {
  std::vector<std::string> words;
  for (const auto& [name, field] : kAugmentationNames) {
    if (augmentation.*field) words.emplace_back(name);
  }
  return absl::StrJoin(words, ",");
}

// Adapters by their options, wherever the folder is that they were read from.
std::string LoraToSave(const std::string& text) {
  const absl::StatusOr<LoraOptions> options =
      IsPeftFolder(text) ? ReadPeftConfig(text) : ParseLora(text);
  return options.ok() ? LoraTextOf(*options) : text;
}

std::vector<DecisiveOption> OptionsBeforeHyperParameters() {
  return {
      {"--data", OfOptions([](const O& options) { return DataOf(options); })},
      {"--label", OfOptions([](const O& options) { return options.label; })},
      {"--drop", OfOptions([](const O& options) -> Effect {
         return options.dropped_columns.empty()
                    ? std::nullopt
                    : Effect(absl::StrJoin(options.dropped_columns, ","));
       })},
      {"--channels", OfOptions([](const O& options) -> Effect {
         return HoldsArrays(DataOf(options))
                    ? Effect(options.channels == ChannelOrder::kLast ? "last" : "first")
                    : std::nullopt;
       })},
      {"--image-size",
       [](const O& options, const TrainingRun& run) -> Effect {
         if (!HoldsImageFiles(options)) return std::nullopt;
         const kernels::Shape& shape = InputOf(run).shape;
         if (shape.dim(1) != shape.dim(2)) return std::nullopt;
         return absl::StrCat(shape.dim(1));
       }},
      {"--skip-broken-images", OfOptions([](const O& options) {
         return options.skips_broken_images ? Effect("yes") : std::nullopt;
       })},
      {"--augment", OfOptions([](const O& options) -> Effect {
         const std::string list = AugmentationText(options.augmentation);
         return list.empty() ? std::nullopt : Effect(list);
       })},
      {"--loss", OfRun(HasNumbers, [](const TrainingRun& /*run*/) { return "mse"; })},
      {"--label-smoothing", OfOptions([](const O& options) -> Effect {
         return options.label_smoothing > 0 ? Effect(Text(options.label_smoothing)) : std::nullopt;
       })},
      {"--class-weights", OfRun([](const TrainingRun& run) -> Effect {
         const std::vector<float>& weights = run.prepared.profile.loss_spec.class_weights;
         if (weights.empty()) return std::nullopt;
         return absl::StrJoin(weights, ",", [](std::string* out, float weight) {
           absl::StrAppend(out, Text(weight));
         });
       })},
      {"--context",
       OfRun(TakesIds,
             [](const TrainingRun& run) { return absl::StrCat(InputOf(run).shape.elements()); })},
      {"--vocabulary",
       OfRun(TakesIds,
             [](const TrainingRun& run) { return absl::StrCat(InputOf(run).vocabulary); })},
      {"--tokenizer",
       [](const O& options, const TrainingRun& run) -> Effect {
         return TakesIds(run) ? Effect(TokenizerOf(options)) : std::nullopt;
       }},
      {"--chat-template", OfOptions([](const O& options) -> Effect {
         return options.chat_template.empty() ? std::nullopt : Effect(options.chat_template);
       })},
      {"--train-on",
       OfOptions(DataHoldChats,
                 [](const O& options) { return options.trains_on_all ? "all" : "answers"; })},
      {"--pack", OfOptions([](const O& options) {
         return options.packs_examples ? Effect("yes") : std::nullopt;
       })},
      {"--test-data", OfOptions([](const O& options) -> Effect {
         return !options.test_data.empty() ? Effect(options.test_data) : std::nullopt;
       })},
      {"--test-fraction", OfOptions([](const O& options) -> Effect {
         return options.test_fraction.has_value() ? Effect(Text(*options.test_fraction))
                                                  : std::nullopt;
       })},
      {"--train-samples",
       OfRun([](const TrainingRun& run) { return absl::StrCat(run.data.train->rows()); })},
      {"--model", OfOptions([](const O& options) { return NameOfModel(options); })},
      {"--lora", OfOptions([](const O& options) -> Effect {
         return options.lora.empty() ? std::nullopt : Effect(LoraToSave(options.lora));
       })},
      {"--quantize", OfOptions([](const O& options) -> Effect {
         if (!options.quantization.has_value()) return std::nullopt;
         return QuantizationName(*options.quantization);
       })},
      {"--layers", InNetwork([](auto size) { return absl::StrCat(size.layers); })},
      {"--width", InNetwork([](auto size) { return absl::StrCat(size.width); })},
      {"--tensor-blocks", OfRun([](const TrainingRun& run) -> Effect {
         int blocks = 1;
         for (const ModelParameter& parameter : run.prepared.profile.parameters.all()) {
           blocks = std::max(blocks, parameter.pieces());
         }
         return blocks > 1 ? Effect(absl::StrCat(blocks)) : std::nullopt;
       })},
      {"--gradient-blocks", OfRun([](const TrainingRun& run) {
         return absl::StrCat(run.prepared.plan().replication.gradient_blocks);
       })},
      {"--reduction", OfRun([](const TrainingRun& run) {
         return partition::Name(run.prepared.plan().replication.reduction);
       })},
      {"--global-batch-size", OfRun([](const TrainingRun& run) {
         return absl::StrCat(run.prepared.plan().batch_rows());
       })},
      {"--micro-batches", OfRun([](const TrainingRun& run) {
         return absl::StrCat(run.prepared.plan().micro_batches());
       })},
      {"--precision", OfRun([](const TrainingRun& run) {
         return kernels::PrecisionName(run.prepared.device.precision);
       })},
      {"--optimizer", OfOptions([](const O& options) { return options.optimizer; })},
      {"--parameter-groups", OfOptions([](const O& options) -> Effect {
         return options.parameter_rules.empty()
                    ? std::nullopt
                    : Effect(ParameterRulesText(options.parameter_rules));
       })},
      {"--clip-norm", OfRun([](const TrainingRun& run) -> Effect {
         return run.prepared.optimizer.clip_norm > 0
                    ? Effect(Text(run.prepared.optimizer.clip_norm))
                    : std::nullopt;
       })},
      {"--ema", OfRun([](const TrainingRun& run) -> Effect {
         return run.prepared.optimizer.has_ema() ? Effect(Text(run.prepared.optimizer.ema_decay))
                                                 : std::nullopt;
       })},
      {"--learning-rate",
       OfRun([](const TrainingRun& run) { return Text(run.learning_rate.peak); })},
      {"--lr-schedule", OfOptions([](const O& options) { return options.learning_rate_schedule; })},
      {"--warmup-steps",
       OfRun(WarmsUp,
             [](const TrainingRun& run) { return absl::StrCat(run.learning_rate.warmup_steps); })},
      {"--min-lr", OfRun(FallsToMinimum,
                         [](const TrainingRun& run) { return Text(run.learning_rate.minimum); })},
      {"--weight-decay",
       OfRun([](const TrainingRun& run) { return Text(run.prepared.optimizer.weight_decay); })},
  };
}

std::vector<DecisiveOption> OptionsOfHyperParameters() {
  std::vector<DecisiveOption> options;
  for (const HyperParameter& parameter : HyperParameters()) {
    if (parameter.help == nullptr) continue;
    options.push_back(
        {absl::StrCat("--", parameter.name), OfRun([parameter](const TrainingRun& run) {
           const Optimizer& optimizer = run.prepared.optimizer;
           return TypeOf(optimizer).Has(parameter) ? Effect(Text(optimizer.*parameter.value))
                                                   : std::nullopt;
         })});
  }
  return options;
}

std::vector<DecisiveOption> OptionsAfterHyperParameters() {
  return {
      {"--seed", OfOptions([](const O& options) { return absl::StrCat(options.seed); })},
      {"--epochs", OfOptions([](const O& options) -> Effect {
         return !options.steps.has_value() ? Effect(absl::StrCat(options.epochs)) : std::nullopt;
       })},
      {"--steps", OfOptions([](const O& options) -> Effect {
         return options.steps.has_value() ? Effect(absl::StrCat(*options.steps)) : std::nullopt;
       })},
  };
}

std::vector<DecisiveOption> MakeDecisiveOptions() {
  std::vector<DecisiveOption> all = OptionsBeforeHyperParameters();
  for (auto& more : {OptionsOfHyperParameters(), OptionsAfterHyperParameters()}) {
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

}  // namespace

absl::Span<const DecisiveOption> DecisiveOptions() {
  static const auto* const all = new std::vector<DecisiveOption>(MakeDecisiveOptions());
  return *all;
}

std::vector<std::pair<std::string, std::string>> OptionsInEffect(const RunConfig& config,
                                                                 const TrainingRun& run) {
  std::vector<std::pair<std::string, std::string>> in_effect;
  for (const DecisiveOption& option : DecisiveOptions()) {
    const std::optional<std::string> value = option.in_effect(config, run);
    if (value.has_value()) in_effect.emplace_back(option.name, *value);
  }
  return in_effect;
}

std::vector<SavedOption> OptionsOfConfig(const RunConfig& config, const TrainingRun& run) {
  std::vector<SavedOption> saved = {{"--device", Name(run.prepared.device.kind), true}};
  for (auto& [name, value] : OptionsInEffect(config, run)) {
    saved.push_back({name, std::move(value), true});
  }
  return saved;
}

}  // namespace stagecoach::engine
