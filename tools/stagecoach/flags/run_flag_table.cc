#include <algorithm>
#include <charconv>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "base/text/units.h"
#include "engine/data/augmentation_names.h"
#include "engine/data/formats/format.h"
#include "engine/data/formats/image_folder.h"
#include "engine/data/formats/synthetic.h"
#include "engine/data/tokens/tokens.h"
#include "engine/nn/block_order.h"
#include "engine/session/learning_rate_schedule.h"
#include "engine/train/class_metrics.h"
#include "kernels/cpu/cpu_device.h"
#include "tools/stagecoach/values/flag_values.h"
#include "tools/stagecoach/values/flags.h"
// The table of the flags of runs: a row per flag, which makes it long.
#include "tools/stagecoach/flags/run_flags.h"
#include "tools/stagecoach/values/schedule_option.h"
#include "tools/stagecoach/values/stop_condition_option.h"

namespace stagecoach::tools {
namespace {

constexpr int kMaxGpu = 1023;
constexpr int64_t kMostSampled = 1000;
constexpr int64_t kMostCount = std::numeric_limits<int64_t>::max();

absl::StatusOr<std::string> ParseText(const std::string& text) { return text; }

absl::StatusOr<std::string> ParseData(const std::string& spec) {
  RETURN_IF_ERROR(ParseFile(spec).status());
  absl::string_view rest = spec;
  if (absl::ConsumePrefix(&rest, "synthetic:")) {
    RETURN_IF_ERROR(engine::ParseSyntheticSpec(rest).status());
  }
  return spec;
}

absl::StatusOr<std::string> ParseClusterName(const std::string& name) {
  if (name.empty()) return absl::InvalidArgumentError("expected a .toml file, or none");
  return name == "none" ? "" : name;
}

absl::StatusOr<std::string> ParseModelName(const std::string& name) {
  if (name.empty()) return absl::InvalidArgumentError("expected a name, or a .toml file");
  return name == "default" ? "" : name;
}

absl::StatusOr<double> ParseTestFraction(const std::string& text) {
  absl::StatusOr<double> fraction = ParseNumber(text, {.min = 0.0, .max = 1.0, .above_min = true});
  if (!fraction.ok() || *fraction < 1.0) return fraction;
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\" leaves nothing to train on, expected a number below 1"));
}

// What `parse` makes of a text, or nothing for the word that leaves it open.
template <typename T, typename Parse>
auto OrWord(const char* word, T of_word, Parse parse) {
  return [=](const std::string& text) -> absl::StatusOr<T> {
    if (text == word) return of_word;
    auto value = parse(text);
    if (value.ok()) return T(*std::move(value));
    return absl::InvalidArgumentError(
        absl::StrCat(value.status().message(), ", or \"", word, "\""));
  };
}

absl::StatusOr<std::optional<engine::StopCondition>> ParseStopWhen(const std::string& text) {
  if (text == "never") return std::optional<engine::StopCondition>();
  ASSIGN_OR_RETURN(engine::StopCondition condition, ParseStopCondition(text));
  return std::optional<engine::StopCondition>(std::move(condition));
}

// "f1,auc" are test_f1 and test_auc.
absl::StatusOr<std::vector<std::string>> ParseMetrics(const std::string& text) {
  std::vector<std::string> names;
  for (const std::string& metric : engine::MetricsOfOutputs()) {
    names.emplace_back(absl::StripPrefix(metric, "test_"));
  }
  return ParseList(text, [&](const std::string& name) -> absl::StatusOr<std::string> {
    ASSIGN_OR_RETURN(const std::string known, ParseChoice(name, names));
    return absl::StrCat("test_", known);
  });
}

absl::StatusOr<std::vector<int>> ParseGpus(const std::string& text) {
  return ParseList(text, IntIn(0, kMaxGpu));
}

// One of the names, for the value that it stands for.
template <typename T>
auto NamesOf(std::vector<std::pair<std::string, T>> values) {
  return [values = std::move(values)](const std::string& name) -> absl::StatusOr<T> {
    std::vector<std::string> names;
    for (const auto& [known, value] : values) {
      if (known == name) return value;
      names.push_back(known);
    }
    return ParseChoice(name, names).status();
  };
}

absl::StatusOr<engine::Augmentation> ParseAugmentation(const std::string& text) {
  std::vector<std::string> names;
  for (const auto& [name, field] : engine::kAugmentationNames) names.emplace_back(name);
  engine::Augmentation augmentation;
  for (const absl::string_view word : absl::StrSplit(text, ',')) {
    ASSIGN_OR_RETURN(const std::string chosen, ParseChoice(std::string(word), names));
    for (const auto& [name, field] : engine::kAugmentationNames) {
      if (chosen == name) augmentation.*field = true;
    }
  }
  if (!augmentation.shifts || !augmentation.cuts_boxes) return augmentation;
  return absl::InvalidArgumentError("crop and resized-crop exclude each other");
}

absl::StatusOr<std::vector<std::string>> ParseNames(const std::string& text) {
  std::vector<std::string> names = absl::StrSplit(text, ',');
  if (std::find(names.begin(), names.end(), "") == names.end()) return names;
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\": expected names with commas between them"));
}

auto ParseRows() { return OrWord<int64_t>("all", 0, CountIn(1, kMostCount)); }

using Set = std::function<absl::Status(const std::string&, engine::RunConfig&)>;

// A field of engine::RunConfig, read by `parse`, which returns an absl::StatusOr.
template <typename Field, typename Parse>
Set Reads(Field engine::RunConfig::*field, Parse parse) {
  return [=](const std::string& text, engine::RunConfig& options) -> absl::Status {
    ASSIGN_OR_RETURN(auto value, parse(text));
    options.*field = static_cast<Field>(std::move(value));
    return absl::OkStatus();
  };
}

// The same of its DeviceChoice.
template <typename Field, typename Parse>
Set Reads(Field engine::DeviceChoice::*field, Parse parse) {
  return [=](const std::string& text, engine::RunConfig& options) -> absl::Status {
    ASSIGN_OR_RETURN(auto value, parse(text));
    options.device.*field = static_cast<Field>(std::move(value));
    return absl::OkStatus();
  };
}

// A field of OutputOptions, read by `parse`.
using SetOutput = std::function<absl::Status(const std::string&, OutputOptions&)>;
template <typename Parse>
SetOutput Reads(std::string OutputOptions::*field, Parse parse) {
  return [=](const std::string& text, OutputOptions& output) -> absl::Status {
    ASSIGN_OR_RETURN(output.*field, parse(text));
    return absl::OkStatus();
  };
}

SetOutput Switches(bool OutputOptions::*field) {
  return [=](const std::string& /*text*/, OutputOptions& output) {
    output.*field = true;
    return absl::OkStatus();
  };
}

Set Switches(bool engine::RunConfig::*field) {
  return [=](const std::string& /*text*/, engine::RunConfig& options) {
    options.*field = true;
    return absl::OkStatus();
  };
}

RunFlag Flag(std::string name, std::string placeholder, std::string help, Set set,
             FlagRules rules = {}) {
  return {std::move(name), std::move(placeholder), std::move(help), std::move(set),
          std::move(rules)};
}

RunFlag OutputFlag(std::string name, std::string placeholder, std::string help, SetOutput set,
                   bool is_output = false) {
  return {.name = std::move(name),
          .placeholder = std::move(placeholder),
          .help = std::move(help),
          .rules = {.saving = FlagSaving::kNever, .is_output = is_output},
          .set_output = std::move(set)};
}

using O = engine::RunConfig;

// The shortest text that reads as this number.
template <typename Number>
std::string Text(Number value) {
  char text[32];
  return std::string(text, std::to_chars(std::begin(text), std::end(text), value).ptr);
}

absl::StatusOr<std::string> ParseLearningRateSchedule(const std::string& text) {
  RETURN_IF_ERROR(engine::ParseLearningRateSchedule(text).status());
  return text == "cosine" ? "warmup-cosine" : text;  // which checkpoints have
}

constexpr NumberRange kNotNegative = {.min = 0.0, .max = 1e6};
constexpr NumberRange kPositive = {.min = 0.0, .max = 1e6, .above_min = true};
constexpr double kMostSmoothing = 0.999;
constexpr NumberRange kDecay = {.min = 0.0, .max = 1.0};

// What --plan excludes: all that it settles, but for what a run may do otherwise.
std::vector<std::string> SettledByPlan(const std::vector<RunFlag>& flags) {
  std::vector<std::string> settled;
  for (const RunFlag& flag : flags) {
    const bool may_change = flag.name == "--recompute" || flag.name == "--offload";
    if (flag.rules.is_of_plan && !may_change) settled.push_back(flag.name);
  }
  return settled;
}

// Joins what help says of each data format, in the order of messages.
std::string JoinFormats(std::string (*text)(const engine::DataFormat& format)) {
  std::vector<std::string> texts;
  for (const engine::DataFormat* const format : engine::kDataFormats) {
    std::string said = text(*format);
    if (!said.empty()) texts.insert(texts.begin(), std::move(said));
  }
  return absl::StrJoin(texts, ", ");
}

std::string NamesOfFormats() {
  return JoinFormats([](const engine::DataFormat& format) { return std::string(format.name); });
}

std::string TestFractions() {
  return JoinFormats([](const engine::DataFormat& format) {
    return format.test_fraction > 0 ? absl::StrCat(format.name, " ", format.test_fraction) : "";
  });
}

std::vector<RunFlag> DataFlags() {
  const O defaults;
  return {
      Flag("--data", "A,B*,DIR", absl::StrCat(NamesOfFormats(), " [Fashion-MNIST]"),
           Reads(&O::data, ParseData)),
      Flag("--label", "NAME",
           Describe(absl::StrCat("Label column of ",
                                 engine::DescribeDataForms(&engine::DataFormat::has_label_column),
                                 ", or Y1,Y2,... of numbers"),
                    defaults.label),
           Reads(&O::label, ParseText)),
      Flag("--drop", "NAMES", "Columns to ignore: names with commas between them",
           Reads(&O::dropped_columns, ParseNames)),
      Flag("--channels", "first|last",
           Describe("Position of the channel axis in arrays of images", "first"),
           Reads(&O::channels,
                 NamesOf<engine::ChannelOrder>({{"first", engine::ChannelOrder::kFirst},
                                                {"last", engine::ChannelOrder::kLast}})),
           {.saving = FlagSaving::kOnlyGiven}),
      Flag("--image-size", "N",
           "Side of square samples made of image files [the model's, 224 or 32]",
           Reads(&O::image_size, CountIn(1, engine::kMaxImageSampleSide))),
      Flag("--skip-broken-images", "", "Leave out image files that cannot be read, with a notice",
           Switches(&O::skips_broken_images)),
      Flag("--augment", "LIST", "Vary training images: flip, crop (shift by up to 4), resized-crop",
           Reads(&O::augmentation, ParseAugmentation)),
      Flag("--loss", "NAME", "cross-entropy for classes, mse for numeric labels [the model's]",
           Reads(&O::loss, Choice({"cross-entropy", "mse"}))),
      Flag("--label-smoothing", "X",
           Describe("Share of a label that is spread over all classes", "0"),
           Reads(&O::label_smoothing, NumberIn({.min = 0.0, .max = kMostSmoothing}))),
      Flag("--class-weights", "LIST", "W0,W1,..., a file of these, or auto: all classes alike [1]",
           Reads(&O::class_weights, ParseText), {.saving = FlagSaving::kOnlyGiven}),
      Flag("--context", "TOKENS",
           absl::StrCat("Tokens per sample [the model's, or ", engine::kDefaultContext, "]"),
           Reads(&O::context, CountIn(1, kMaxContext))),
      Flag("--vocabulary", "N", "Vocabulary size [the model's, or the tokens that occur]",
           Reads(&O::vocabulary, CountIn(2, engine::kMaxVocabulary))),
      Flag("--tokenizer", "FILE",
           "Tokenizer for text: a .json or .model file, or bytes [--init's, or bytes]",
           Reads(&O::tokenizer, ParseFile), {.saving = FlagSaving::kOnlyGiven}),
      Flag("--chat-template", "NAME", DescribeChatTemplate("Chats", "the tokenizer's"),
           Reads(&O::chat_template, ParseChatTemplate), {.saving = FlagSaving::kOnlyGiven}),
      Flag("--train-on", "answers|all",
           Describe("Tokens of chats and completions to learn", "answers"),
           Reads(&O::trains_on_all, NamesOf<bool>({{"answers", false}, {"all", true}}))),
      Flag("--pack", "", "Pack chats into samples of --context tokens; they do not see each other",
           Switches(&O::packs_examples))};
}

std::vector<RunFlag> TestDataFlags() {
  return {
      Flag("--test-data", "SPEC",
           "Separate test set; then all of --data is trained on [part of --data]",
           Reads(&O::test_data, ParseData)),
      Flag("--test-fraction", "X", absl::StrCat("Share held out for tests [", TestFractions(), "]"),
           Reads(&O::test_fraction, ParseTestFraction), {.excludes = {"--test-data"}}),
      Flag("--train-samples", "N|all",
           absl::StrCat("Number of training samples to use [images ",
                        base::FormatCount(engine::kDefaultImageRows), ", otherwise all]"),
           Reads(&O::rows, ParseRows()))};
}

std::vector<RunFlag> ModelFlags() {
  return {
      Flag("--model", "NAME|FILE",
           "default, gpt2-124m, llama, resnet18, ..., or a .toml file [default]",
           Reads(&O::model_file, ParseModelName)),
      Flag("--init", "PATH",
           "Start from a run, a Hugging Face folder or a torchvision .safetensors file",
           Reads(&O::initial_parameters, ParseFolder), {.saving = FlagSaving::kNever}),
      Flag("--new-head", "",
           "Of --init's run, draw the last layer anew: for other classes or tokens",
           Switches(&O::draws_head), {.saving = FlagSaving::kNever, .needs = "--init"}),
      Flag("--lora", "OPTIONS",
           "Train adapters: rank=16,targets=q_proj+v_proj,train=head; or a PEFT folder",
           Reads(&O::lora, ParseLoraFlag), {.saving = FlagSaving::kOnlyGiven}),
      Flag("--quantize", "TYPE",
           absl::StrCat("Store frozen weights in 4 or 8 bits: ",
                        absl::StrJoin(QuantizationNames(), ", ")),
           Reads(&O::quantization, ParseQuantizationFlag), {.saving = FlagSaving::kOnlyGiven}),
      Flag("--layers", "N", "Number of layers of the default network [4 to 20, as the data need]",
           Reads(&O::layers, CountIn(2, kMaxLayers))),
      Flag("--width", "N", "Hidden size of the default network [64 to 2304, as the data need]",
           Reads(&O::width, CountIn(1, kMaxWidth)))};
}

std::vector<RunFlag> PipelineFlags() {
  const O defaults;
  return {
      Flag("--devices", "N",
           absl::StrCat("Devices to split the model over [", engine::kDefaultStages,
                        ", or fewer if it has fewer layers]"),
           Reads(&O::stages, CountIn(1, kMaxStages)), {.alias = "--stages", .is_of_plan = true}),
      Flag("--replicas", "N", "Data-parallel copies of the model [1]",
           Reads(&O::replicas, CountIn(1, kMaxStages)), {.is_of_plan = true}),
      Flag("--tensor", "N", "Devices that share the layers of each stage (tensor parallelism) [1]",
           Reads(&O::tensor_parts, PowerOfTwoUpTo(engine::kMostTensorBlocks)),
           {.is_of_plan = true}),
      Flag("--tensor-blocks", "N",
           "Blocks of layers that are shared, which decide the bits [--tensor]",
           Reads(&O::tensor_blocks, PowerOfTwoUpTo(engine::kMostTensorBlocks))),
      Flag("--gradient-blocks", "N",
           "Parts of a batch whose gradients are summed in a binary tree [replicas]",
           Reads(&O::gradient_blocks, CountIn(1, kMaxInt)), {.is_of_plan = true}),
      Flag("--shard-optimizer", "", "Shard the optimizer state over the replicas (ZeRO-1)",
           Switches(&O::shards_optimizer), {.is_of_plan = true}),
      Flag("--reduction", "tree|ring",
           "Gradient sum: fixed tree, or the library's all-reduce (other bits) [tree]",
           Reads(&O::reduction, partition::ParseReductionKind), {.is_of_plan = true}),
      Flag("--schedule", "NAME|FILE",
           "Pipeline schedule: a name (see simulate --help) or a file [the fastest]",
           Reads(&O::schedule, ParseScheduleOption), {.is_of_plan = true}),
      Flag("--chunks", "N", "Virtual stages (model chunks) per device [the schedule's default]",
           Reads(&O::chunks, CountIn(1, kMaxStages)), {.is_of_plan = true}),
      Flag("--global-batch-size", "N",
           "Samples per optimizer step, over all replicas [128; fewer of small data]",
           Reads(&O::batch, CountIn(1, kMaxBatch)), {.is_of_plan = true}),
      // A count below 1 is a configuration that cannot be run, as one that does
      // not divide the batch.
      Flag("--micro-batches", "N",
           Describe("Micro-batches per step that stream through the stages",
                    absl::StrCat(engine::kDefaultMicroBatches)),
           Reads(&O::micro_batches, CountIn(-kMaxInt, kMaxInt)), {.is_of_plan = true}),
      Flag("--recompute", "NAME",
           "Activation checkpointing (recompute): none, attention, full, plan [plan]",
           Reads(&O::recompute,
                 NamesOf<engine::Recompute>({{"none", engine::Recompute::kNone},
                                             {"attention", engine::Recompute::kAttention},
                                             {"full", engine::Recompute::kFull},
                                             {"plan", engine::Recompute::kPlanned}})),
           {.is_of_plan = true}),
      Flag("--offload", "SHARE",
           "Share of stashes moved to host memory meanwhile: none, full, 0 to 1 [none]",
           Reads(&O::offload, ParseOffload), {.is_of_plan = true}),
      Flag("--offload-optimizer", "",
           "Keep the optimizer state in host memory, which updates read and write",
           Switches(&O::offloads_optimizer), {.is_of_plan = true}),
      Flag("--host-memory", "SIZE", "Host memory that each device may use for both",
           Reads(&O::host_memory_bytes, ParseMemory))};
}

std::vector<RunFlag> DeviceFlags() {
  const O defaults;
  return {
      Flag("--device", "KIND", "cpu, cuda, or auto: cuda if there is a GPU for every stage [cpu]",
           Reads(&engine::DeviceChoice::kind, Choice({"cpu", "cuda", "auto"}))),
      Flag("--threads-per-device", "N",
           Describe("Cores per CPU device", absl::StrCat(defaults.device.threads)),
           Reads(&engine::DeviceChoice::threads,
                 CountIn(1, kernels::CpuDeviceOptions::kMaxThreads))),
      Flag("--precision", "NAME",
           "fp32, bf16, or tf32 on CUDA devices (docs/data-and-models.md) [fp32]",
           Reads(&engine::DeviceChoice::precision, Choice({"fp32", "tf32", "bf16"}))),
      Flag("--gpus", "I,J,...", "GPU of each device; devices may share one [0,1,2,...]",
           Reads(&engine::DeviceChoice::gpus, ParseGpus),
           {.belongs_to = {"--device", "--devices"}}),
      Flag("--exchange", "NAME",
           "Transport between GPUs: nccl, copies, or auto: nccl if possible [auto]",
           Reads(&engine::DeviceChoice::exchange, Choice({"auto", "copies", "nccl"})),
           {.belongs_to = {"--device"}}),
      Flag("--tuning", "FILE",
           "File that caches the choice of GPU algorithms, or none [in ~/.cache]",
           Reads(&engine::DeviceChoice::tuning, ParseText), {.saving = FlagSaving::kNever})};
}

std::vector<RunFlag> PlanningFlags() {
  const O defaults;
  return {
      Flag("--device-memory", "SIZE", "Memory limit per device, such as 600MB or 1.5GiB [none]",
           Reads(&O::device_memory_bytes, ParseMemory)),
      Flag("--cluster", "FILE.toml",
           "File of devices that differ in speed, memory or links, or none [none]",
           Reads(&O::cluster_file, ParseClusterName)),
      Flag("--profile", "NAME",
           Describe("Layer times used to balance stages: analytic or measured", defaults.profile),
           Reads(&O::profile, Choice({"analytic", "measured"})), {.is_of_plan = true})};
}

std::vector<RunFlag> PlanFileFlag(const std::vector<RunFlag>& before) {
  return {Flag("--plan", "FILE", "Use the plan saved in a file", Reads(&O::plan_file, ParseText),
               {.saving = FlagSaving::kNever, .excludes = SettledByPlan(before)})};
}

std::vector<std::string> OptimizerNames() {
  std::vector<std::string> names;
  for (const engine::OptimizerType& type : engine::OptimizerTypes()) names.emplace_back(type.name);
  return names;
}

// A default of each optimizer, for help: "adamw 0.01, sgd 0".
std::string EachOptimizer(std::string (*text)(const engine::OptimizerType& type)) {
  return absl::StrJoin(engine::OptimizerTypes(), ", ",
                       [&](std::string* out, const engine::OptimizerType& type) {
                         absl::StrAppend(out, type.name, " ", text(type));
                       });
}

std::string RateOf(const engine::OptimizerType& type) {
  if (type.rate_times_width == 0.0F) return Text(type.learning_rate);
  return absl::StrFormat("%.1g / width", type.rate_times_width);
}

std::string DecayOf(const engine::OptimizerType& type) { return Text(type.defaults.weight_decay); }

std::vector<RunFlag> HyperParameterFlags() {
  std::vector<RunFlag> flags;
  for (const engine::HyperParameter& parameter : engine::HyperParameters()) {
    if (parameter.help == nullptr) continue;
    const std::string name = parameter.name;
    const bool is_fraction = parameter.range == engine::HyperParameter::Range::kFraction;
    const NumberRange range = is_fraction ? kDecay : kPositive;
    const auto set = [name, range](const std::string& text, O& options) -> absl::Status {
      ASSIGN_OR_RETURN(const double value, NumberIn(range)(text));
      options.hyper_parameters[name] = static_cast<float>(value);
      return absl::OkStatus();
    };
    flags.push_back(
        Flag(absl::StrCat("--", name), "X",
             Describe(absl::StrCat(engine::ListOptimizers(&parameter), ": ", parameter.help),
                      Text(engine::Optimizer().*parameter.value)),
             set, {.belongs_to = {"--optimizer"}}));
  }
  return flags;
}

std::vector<RunFlag> OptimizerFlags() {
  const O defaults;
  return {Flag("--optimizer", "NAME", Describe(engine::ListOptimizers(), defaults.optimizer),
               Reads(&O::optimizer, Choice(OptimizerNames()))),
          Flag("--parameter-groups", "LIST",
               "PATTERN:frozen;PATTERN:lr-factor=X,weight-decay=Y by parameter names",
               Reads(&O::parameter_rules, engine::ParseParameterRules)),
          Flag("--clip-norm", "X", "Maximum gradient norm [no clipping]",
               Reads(&O::clip_norm, NumberIn({.min = 0.0, .max = 1e30, .above_min = true}))),
          Flag("--ema", "X", "Evaluate and keep averages of the weights, with this decay [0: none]",
               Reads(&O::ema_decay, NumberIn(kDecay))),
          Flag("--on-nonfinite", "NAME",
               "stop or skip a step with NaN or infinite gradients [only check the loss]",
               Reads(&O::on_nonfinite,
                     NamesOf<engine::OnNonFinite>({{"stop", engine::OnNonFinite::kStop},
                                                   {"skip", engine::OnNonFinite::kSkip}})))};
}

std::vector<RunFlag> LearningRateFlags() {
  return {Flag("--learning-rate", "X",
               absl::StrCat("Learning rate, or its peak [", EachOptimizer(RateOf), "]"),
               Reads(&O::learning_rate, NumberIn(kPositive))),
          Flag("--lr-schedule", "NAME", Describe(engine::LearningRateScheduleNames(), "cosine"),
               Reads(&O::learning_rate_schedule, ParseLearningRateSchedule)),
          Flag("--warmup-steps", "N",
               "Warm-up steps [a tenth of all; constant 0, one-cycle 0.3 of all]",
               Reads(&O::warmup_steps, CountIn(0, kMaxSteps))),
          Flag("--min-lr", "X", "Final learning rate of schedules that fall to one [0]",
               Reads(&O::min_learning_rate, NumberIn(kNotNegative))),
          Flag("--weight-decay", "X",
               absl::StrCat("Weight decay; biases are not decayed [", EachOptimizer(DecayOf), "]"),
               Reads(&O::weight_decay, NumberIn(kNotNegative)))};
}

std::vector<RunFlag> RunFlagsOfPlans() {
  const O defaults;
  return {
      Flag("--seed", "N", Describe("Random seed", absl::StrCat(defaults.seed)),
           Reads(&O::seed, CountIn(0, kMostCount))),
      OutputFlag("--json", "", "Print JSON, one object per line", Switches(&OutputOptions::json))};
}

std::vector<RunFlag> LengthFlags() {
  const O defaults;
  return {
      Flag("--epochs", "N",
           Describe("Passes over the training data", absl::StrCat(defaults.epochs)),
           Reads(&O::epochs, CountIn(1, 1'000'000))),
      Flag("--steps", "N", "Total number of optimizer steps, instead of --epochs",
           Reads(&O::steps, CountIn(1, kMaxSteps)), {.excludes = {"--epochs"}}),
      Flag("--eval-every", "STEPS", "Also evaluate every N steps [after each epoch]",
           Reads(&O::evaluate_every_steps, CountIn(1, kMaxSteps))),
      Flag("--eval-rows", "N|all",
           "Test samples per evaluation, spread evenly over the test set [all]",
           Reads(&O::evaluation_rows, ParseRows())),
      Flag("--eval-metrics", "LIST", "Also compute top5, f1, auc in evaluations, such as f1,auc",
           Reads(&O::evaluation_metrics, ParseMetrics)),
      Flag("--stop-when", "CONDITION",
           "Stop when an evaluation meets it, such as test_accuracy>0.9 [never]",
           Reads(&O::stop_when, ParseStopWhen)),
      Flag("--best-by", "METRIC",
           Describe("Metric of the best checkpoint, and of --patience", defaults.best_by),
           Reads(&O::best_by, Choice(engine::MetricNames()))),
      Flag("--patience", "N", "Stop after N evaluations in a row without a better metric [never]",
           Reads(&O::patience, OrWord<int64_t>("never", 0, CountIn(1, kMostCount)))),
      Flag("--sample-answers", "N",
           "Print answers to N test prompts of chats at each evaluation [0]",
           Reads(&O::sampled_answers, CountIn(0, kMostSampled))),
      Flag("--log-every", "STEPS", "Print loss, learning rate and speed every N steps [never]",
           Reads(&O::log_every_steps, CountIn(1, kMaxSteps))),
      OutputFlag("--verbose", "", "Also print the plan as a table, and what each device did",
                 Switches(&OutputOptions::verbose)),
      OutputFlag("--explain", "", "First print the shapes of every layer for one batch",
                 Switches(&OutputOptions::explain))};
}

std::vector<RunFlag> CheckpointFlags() {
  const O defaults;
  return {
      Flag("--checkpoint", "DIR",
           "Save checkpoints here in the background [at the end, in runs/DATE-MODEL]",
           Reads(&O::checkpoints, ParseFolder), {.saving = FlagSaving::kNever}),
      Flag("--no-checkpoint", "",
           "Do not save the run; --json without --checkpoint does not either",
           [](const std::string& /*text*/, O& options) {
             options.runs.clear();
             return absl::OkStatus();
           },
           {.saving = FlagSaving::kNever, .excludes = {"--checkpoint"}}),
      Flag("--resume", "",
           "Resume from its newest checkpoint; flags not given keep their saved values",
           Switches(&O::resume), {.saving = FlagSaving::kNever, .needs = "--checkpoint"}),
      Flag("--data-changed", "", "Resume although the data have changed since the checkpoint",
           Switches(&O::data_changed), {.saving = FlagSaving::kNever, .needs = "--checkpoint"}),
      Flag("--checkpoint-every", "N",
           "Steps between checkpoints, or auto, which weighs cost against risk [auto]",
           Reads(&O::every_steps,
                 OrWord<std::optional<int64_t>>("auto", std::nullopt, CountIn(1, kMaxSteps))),
           {.saving = FlagSaving::kNever, .needs = "--checkpoint"}),
      Flag("--keep-checkpoints", "N",
           Describe("Number of newest checkpoints to keep, besides the best",
                    absl::StrCat(defaults.kept_checkpoints)),
           Reads(&O::kept_checkpoints, CountIn(1, kMaxInt)),
           {.saving = FlagSaving::kNever, .needs = "--checkpoint"}),
      Flag("--keep-every", "STEPS", "Also keep every checkpoint at a multiple of N steps [none]",
           Reads(&O::kept_every_steps, CountIn(1, kMaxSteps)),
           {.saving = FlagSaving::kNever, .needs = "--checkpoint"})};
}

std::vector<RunFlag> ReportFlags() {
  const O defaults;
  return {OutputFlag("--metrics", "FILE",
                     "Write steps and evaluations as JSON lines; a resumed run appends",
                     Reads(&OutputOptions::metrics, ParseFile), /*is_output=*/true),
          OutputFlag("--metrics-prom", "FILE",
                     "Keep the newest metrics in a file for Prometheus' node exporter",
                     Reads(&OutputOptions::prometheus, ParseOutput), /*is_output=*/true),
          OutputFlag("--html", "FILE",
                     "Write a page about the run [run.html in the folder of checkpoints]",
                     Reads(&OutputOptions::html, ParseOutput), /*is_output=*/true),
          OutputFlag("--tensorboard", "DIR",
                     "Write steps and evaluations for TensorBoard into this folder",
                     Reads(&OutputOptions::tensorboard, ParseFolder)),
          Flag("--trace", "FILE", "Write a trace of the actions of one step",
               Reads(&O::trace, ParseOutput), {.saving = FlagSaving::kNever, .is_output = true}),
          Flag("--simulated-trace", "FILE",
               "Write a trace of this step, simulated from measured times of actions",
               Reads(&O::simulated_trace, ParseOutput),
               {.saving = FlagSaving::kNever, .is_output = true}),
          Flag("--trace-step", "N", "Number of the step that is traced [the last]",
               Reads(&O::traced_step, CountIn(1, kMaxSteps)),
               {.saving = FlagSaving::kNever, .needs = "--trace"}),
          Flag("--check-replicas", "STEPS",
               Describe("Steps between comparisons of replicas' parameters; 0: never",
                        absl::StrCat(defaults.replica_check_steps)),
               Reads(&O::replica_check_steps, CountIn(0, 1'000'000'000)), {.needs = "--replicas"}),
          Flag("--timeout", "SECONDS",
               Describe("Abort if a device waits longer than this for another",
                        absl::StrCat(defaults.deadline_seconds)),
               Reads(&O::deadline_seconds, NumberIn(kPositive)))};
}

std::vector<RunFlag> MakeTable() {
  std::vector<RunFlag> table;
  const auto add = [&table](const char* group, FlagScope scope, std::vector<RunFlag> flags) {
    for (RunFlag& flag : flags) {
      flag.group = group;
      flag.scope = scope;
      table.push_back(std::move(flag));
    }
  };
  add("Data", FlagScope::kModel, DataFlags());
  add("Data", FlagScope::kTraining, TestDataFlags());
  add("Model", FlagScope::kModel, ModelFlags());
  add("Pipeline", FlagScope::kPlan, PipelineFlags());
  add("Devices", FlagScope::kModel, DeviceFlags());
  add("Pipeline", FlagScope::kPlan, PlanningFlags());
  add("Pipeline", FlagScope::kTraining, PlanFileFlag(table));
  add("Optimizer", FlagScope::kModel, OptimizerFlags());
  add("Optimizer", FlagScope::kTraining, LearningRateFlags());
  add("Optimizer", FlagScope::kTraining, HyperParameterFlags());
  add("Run", FlagScope::kPlan, RunFlagsOfPlans());
  add("Run", FlagScope::kTraining, LengthFlags());
  add("Checkpoints", FlagScope::kTraining, CheckpointFlags());
  add("Run", FlagScope::kTraining, ReportFlags());
  return table;
}

}  // namespace

absl::Span<const RunFlag> RunFlags() {
  static const std::vector<RunFlag>* const table = new std::vector<RunFlag>(MakeTable());
  return *table;
}

const RunFlag* FindRunFlag(std::string_view name) {
  const absl::Span<const RunFlag> flags = RunFlags();
  const auto found = std::find_if(flags.begin(), flags.end(),
                                  [&](const RunFlag& flag) { return flag.name == name; });
  return found == flags.end() ? nullptr : &*found;
}

std::string PresentName(const std::string& name) {
  static constexpr std::pair<std::string_view, std::string_view> kEarlier[] = {
      {"--batch", "--global-batch-size"}, {"--microbatches", "--micro-batches"},
      {"--rows", "--train-samples"},      {"--every", "--checkpoint-every"},
      {"--keep", "--keep-checkpoints"},   {"--deadline", "--timeout"},
      {"--lr", "--learning-rate"},        {"--batch-size", "--global-batch-size"},
      {"--bs", "--global-batch-size"}};
  for (const auto& [earlier, present] : kEarlier) {
    if (name == earlier) return std::string(present);
  }
  return name;
}

}  // namespace stagecoach::tools
