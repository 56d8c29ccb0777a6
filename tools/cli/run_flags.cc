// The flags of tools/cli/run_options.h.

#include <CLI/CLI.hpp>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "engine/data/csv.h"
#include "engine/data/synthetic.h"
#include "engine/data/tokens.h"
#include "tools/cli/add_flag.h"
#include "tools/cli/flag_values.h"
#include "tools/cli/flags.h"
#include "tools/cli/run_options.h"
#include "tools/cli/schedule_option.h"

namespace stagecoach::tools {
namespace {

absl::StatusOr<std::string> ParseData(const std::string& spec) {
  RETURN_IF_ERROR(ParseFile(spec).status());
  absl::string_view rest = spec;
  if (absl::ConsumePrefix(&rest, "synthetic:")) {
    RETURN_IF_ERROR(engine::ParseSyntheticSpec(rest).status());
  }
  return spec;
}

absl::StatusOr<std::string> ParseModelName(const std::string& name) {
  if (name.empty()) return absl::InvalidArgumentError("expected a name, or a .toml file");
  return name == "default" ? "" : name;
}

absl::StatusOr<std::optional<engine::OnNonFinite>> ParseOnNonFinite(const std::string& name) {
  RETURN_IF_ERROR(ParseChoice(name, {"stop", "skip"}).status());
  return name == "stop" ? engine::OnNonFinite::kStop : engine::OnNonFinite::kSkip;
}

absl::StatusOr<engine::Recompute> ParseRecompute(const std::string& name) {
  RETURN_IF_ERROR(ParseChoice(name, {"none", "attention", "full", "plan"}).status());
  return name == "none"        ? engine::Recompute::kNone
         : name == "attention" ? engine::Recompute::kAttention
         : name == "full"      ? engine::Recompute::kFull
                               : engine::Recompute::kPlanned;
}

absl::StatusOr<engine::ChannelOrder> ParseChannels(const std::string& name) {
  RETURN_IF_ERROR(ParseChoice(name, {"first", "last"}).status());
  return name == "first" ? engine::ChannelOrder::kFirst : engine::ChannelOrder::kLast;
}

CLI::Option* AddChannels(CLI::App& app, RunOptions& options, const std::string& otherwise) {
  return AddFlag(app, "--channels", "first|last", options.channels,
                 Describe("Where arrays of images have their channels", otherwise), ParseChannels);
}

void AddDataFlags(CLI::App& app, RunOptions& options) {
  AddFlag(app, "--data", "SPEC", options.data,
          "IDX, npy, csv, text, ids, synthetic:ROWSxFEATURESxCLASSES [Fashion-MNIST]", ParseData)
      ->group("Data");
  app.add_option("--label", options.label,
                 Describe("Column of the labels in a .csv file", options.label))
      ->option_text("NAME")
      ->group("Data");
  AddChannels(app, options, "first")->group("Data");
  AddFlag(app, "--loss", "NAME", options.loss,
          "cross-entropy, of classes; mse, of labels that are numbers [the model's]",
          Choice({"cross-entropy", "mse"}))
      ->group("Data");
  AddFlag(app, "--context", "TOKENS", options.context,
          absl::StrCat("Tokens of a row, each told from those before it [the model's, or ",
                       engine::kDefaultContext, "]"),
          CountIn(1, kMaxContext))
      ->group("Data");
  AddFlag(app, "--vocabulary", "N", options.vocabulary,
          "Tokens that there may be [the model's, or those that occur]",
          CountIn(2, engine::kMaxVocabulary))
      ->group("Data");
  AddFlag(app, "--tokenizer", "FILE", options.tokenizer,
          "What makes text tokens: .json, .model or bytes [--init's, or bytes]", ParseFile)
      ->group("Data");
}

absl::StatusOr<double> ParseTestFraction(const std::string& text) {
  absl::StatusOr<double> fraction = ParseNumber(text, {.min = 0.0, .max = 1.0, .above_min = true});
  if (!fraction.ok() || *fraction < 1.0) return fraction;
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\" leaves nothing to train on, expected a number below 1"));
}

void AddModelFlags(CLI::App& app, RunOptions& options) {
  const std::string group = "Model";
  AddFlag(app, "--model", "NAME|FILE", options.model_file,
          "default, gpt2-124m, llama, resnet18, ..., or a .toml file [default]", ParseModelName)
      ->group(group);
  AddFlag(app, "--init", "PATH", options.initial_parameters,
          "Hugging Face's folder, or torchvision's .safetensors, to start from", ParseFolder)
      ->group(group);
  CLI::Option* layers =
      AddFlag(app, "--layers", "N", options.layers,
              Describe("Layers of the default network", absl::StrCat(options.layers)),
              CountIn(2, kMaxLayers))
          ->group(group);
  CLI::Option* width = AddFlag(app, "--width", "N", options.width,
                               Describe("Its features between layers", absl::StrCat(options.width)),
                               CountIn(1, kMaxWidth))
                           ->group(group);
  app.parse_complete_callback([&options, layers, width] {
    for (const CLI::Option* shape : {layers, width}) {
      if (shape->count() > 0 && !options.model_file.empty()) {
        throw CLI::ExcludesError(shape->get_name(), "--model " + options.model_file);
      }
      if (shape->count() > 0 && !options.initial_parameters.empty()) {
        throw CLI::ExcludesError(shape->get_name(), "--init");
      }
    }
  });
}

void AddPipelineFlags(CLI::App& app, RunOptions& options) {
  const std::string group = "Pipeline";
  AddFlag(app, "--devices,--stages", "N", options.stages,
          Describe("Devices to cut the model over", absl::StrCat(kDefaultStages)),
          CountIn(1, kMaxStages))
      ->group(group);
  AddFlag(app, "--replicas", "N", options.replicas,
          "Copies of the model that share each batch: 1, 2, 4, ... [1]", CountIn(1, kMaxStages))
      ->group(group);
  AddFlag(app, "--gradient-blocks", "N", options.gradient_blocks,
          "Parts of a batch whose gradients form a binary tree [as replicas]", CountIn(1, kMaxInt))
      ->group(group);
  app.add_flag("--shard-optimizer", options.shards_optimizer,
               "Divide the optimizer's state among replicas (ZeRO-1)")
      ->option_text(" ")  // instead of what it excludes
      ->group(group);
  AddFlag(app, "--reduction", "tree|ring", options.reduction,
          "How replicas sum: in a tree, or as NCCL or Gloo does (other bits) [tree]",
          partition::ParseReductionKind)
      ->group(group);
  AddFlag(app, "--schedule", "NAME|FILE", options.schedule,
          "Order of the work: a name (see simulate --help) or a file [the fastest]",
          ParseScheduleOption)
      ->group(group);
  AddFlag(app, "--chunks", "N", options.chunks, "Stages of each device [the schedule's own number]",
          CountIn(1, kMaxStages))
      ->group(group);
  AddFlag(app, "--batch", "N", options.batch,
          Describe("Rows of one step", absl::StrCat(options.batch)), CountIn(1, kMaxBatch))
      ->group(group);
  // A count below 1 is a configuration that cannot be run, as one that does not divide the batch.
  AddFlag(app, "--microbatches", "N", options.micro_batches,
          Describe("Equal parts of a batch that stream through the stages",
                   absl::StrCat(kDefaultMicroBatches)),
          CountIn(-kMaxInt, kMaxInt))
      ->group(group);
  AddFlag(app, "--recompute", "NAME", options.recompute,
          "Forward passes to repeat, for memory: none, attention, full, plan [plan]",
          ParseRecompute)
      ->group(group);
  AddDeviceFlags(app, options.device);
  AddFlag(app, "--device-memory", "SIZE", options.device_memory_bytes,
          "Budget of each device, such as 600MB or 1.5GiB [none]", ParseMemory)
      ->group(group);
  AddFlag(app, "--profile", "NAME", options.profile,
          Describe("Layer times to balance by: analytic or measured", options.profile),
          Choice({"analytic", "measured"}))
      ->group(group);
}

void AddOptimizerFlags(CLI::App& app, RunOptions& options) {
  const std::string group = "Optimizer";
  AddFlag(app, "--optimizer", "NAME", options.optimizer,
          Describe("adamw or sgd", options.optimizer), Choice({"adamw", "sgd"}))
      ->group(group);
  AddFlag(app, "--clip-norm", "X", options.clip_norm,
          "Scale gradients to at most this norm [never]",
          NumberIn({.min = 0.0, .max = 1e30, .above_min = true}))
      ->group(group);
  AddFlag(app, "--on-nonfinite", "stop|skip", options.on_nonfinite,
          "Check gradients before updates; skip such a step, or stop [check the loss]",
          ParseOnNonFinite)
      ->group(group);
}

}  // namespace

void AddTestSetFlags(CLI::App& app, RunOptions& options) {
  CLI::Option* data =
      AddFlag(app, "--test-data", "SPEC", options.test_data,
              "Another test set; all of a file in --data is then trained on [its own]", ParseData)
          ->group("Data");
  AddFlag(
      app, "--test-fraction", "X", options.test_fraction,
      absl::StrCat("Share of a file that is the test set [of csv ", engine::kDefaultCsvTestFraction,
                   ", of tokens ", engine::kDefaultTestFraction, "]"),
      ParseTestFraction)
      ->excludes(data)
      ->option_text("X")  // instead of what it excludes
      ->group("Data");
}

void AddModelAndDataFlags(CLI::App& app, RunOptions& options) {
  AddDataFlags(app, options);
  AddModelFlags(app, options);
  AddDeviceFlags(app, options.device);
  AddOptimizerFlags(app, options);
}

void AddPlanFlags(CLI::App& app, RunOptions& options) {
  AddDataFlags(app, options);
  AddModelFlags(app, options);
  AddPipelineFlags(app, options);
  AddOptimizerFlags(app, options);
  AddFlag(app, "--seed", "N", options.seed,
          Describe("Seed of all random numbers", absl::StrCat(options.seed)),
          CountIn(0, std::numeric_limits<int64_t>::max()))
      ->group("Run");
  app.add_flag("--json", options.json, "Print JSON, one object per line")->group("Run");
}

void AddPredictFlags(CLI::App& app, PredictOptions& options) {
  RunOptions& run = options.run;
  AddFlag(app, "--checkpoint", "DIR", options.checkpoint,
          "A checkpoint, or the folder of a run: its newest", ParseFolder)
      ->required();
  AddFlag(app, "--data", "SPEC", run.data,
          "As in train, or a file of IDX images [what the run was tested with]", ParseData);
  app.add_option("--label", run.label,
                 "Column of the labels in a .csv file, if it has them [the run's]")
      ->option_text("NAME");
  AddChannels(app, run, "the run's");
  AddFlag(app, "--tokenizer", "FILE", run.tokenizer,
          "Where the tokenizer of the run is now [where it was]", ParseFile);
  AddFlag(app, "--outputs", "FILE", options.outputs,
          "Write what the last layer gives for each row: .csv, .jsonl or .npy", ParseFile)
      ->type_name(kOutputFile);
  AddFlag(app, "--classes", "FILE", options.classes,
          "Write the class of each row, in the same formats", ParseFile)
      ->type_name(kOutputFile);
  const std::string group = "Pipeline";
  AddFlag(app, "--devices,--stages", "N", run.stages,
          "Devices to cut the model over [the fewest that have the memory]", CountIn(1, kMaxStages))
      ->group(group);
  AddFlag(app, "--replicas", "N", run.replicas,
          "Copies of the model that share the rows: 1, 2, 4, ... [1]", CountIn(1, kMaxStages))
      ->group(group);
  AddFlag(app, "--microbatch-rows", "N", options.micro_batch_rows,
          "Rows that pass through a stage at once [the run's]", CountIn(1, kMaxBatch))
      ->group(group);
  AddFlag(app, "--microbatches", "N", run.micro_batches,
          "How many of those stream through the stages at a time [as memory allows]",
          CountIn(1, kMaxInt))
      ->group(group);
  AddDeviceFlags(app, run.device);
  app.get_option("--device")->description("cpu, cuda, or auto: cuda if GPUs suffice [the run's]");
  app.get_option("--precision")
      ->description("fp32, bf16, or on CUDA devices tf32 (docs/models.md) [the run's]");
  app.get_option("--threads-per-device")
      ->description("Cores of a CPU device [an equal share of them]");
  AddFlag(app, "--device-memory", "SIZE", run.device_memory_bytes,
          "Budget of each device, such as 600MB or 1.5GiB [none]", ParseMemory)
      ->group(group);
  AddFlag(app, "--deadline", "SECONDS", run.deadline_seconds,
          Describe("Longest wait of one device for another", absl::StrCat(run.deadline_seconds)),
          NumberIn({.min = 0.0, .max = 1e6, .above_min = true}))
      ->group("Run");
  app.add_flag("--json", run.json, "Print JSON, one object per line")->group("Run");
}

void AddReplayFlags(CLI::App& app, ReplayOptions& options) {
  RunOptions& run = options.run;
  AddFlag(app, "checkpoint", "DIR", options.checkpoint,
          "A checkpoint, or the folder of a run: the newest with so many steps left", ParseFolder)
      ->required();
  AddFlag(app, "--steps", "N", options.steps,
          Describe("Steps to train twice", absl::StrCat(options.steps)), CountIn(1, kMaxSteps));
  AddFlag(app, "--data", "SPEC", run.data, "Where the run's data are now [where they were]",
          ParseData);
  const std::string group = "Pipeline of the second time";
  AddFlag(app, "--devices,--stages", "N", run.stages,
          "Devices to cut the model over [the fewest that have the memory]", CountIn(1, kMaxStages))
      ->group(group);
  AddFlag(app, "--replicas", "N", run.replicas,
          "Copies of the model that share each batch: 1, 2, 4, ... [1]", CountIn(1, kMaxStages))
      ->group(group);
  app.add_flag("--shard-optimizer", run.shards_optimizer,
               "Divide the optimizer's state among replicas (ZeRO-1)")
      ->group(group);
  AddFlag(app, "--schedule", "NAME|FILE", run.schedule,
          "Order of the work: a name (see simulate --help) or a file [the fastest]",
          ParseScheduleOption)
      ->group(group);
  AddFlag(app, "--chunks", "N", run.chunks, "Stages of each device [the schedule's own number]",
          CountIn(1, kMaxStages))
      ->group(group);
  AddFlag(app, "--device-memory", "SIZE", run.device_memory_bytes,
          "Budget of each device, such as 600MB or 1.5GiB [none]", ParseMemory)
      ->group(group);
  AddDeviceFlags(app, run.device);
  app.get_option("--device")
      ->description("Both times: cpu, cuda, or auto: cuda if GPUs suffice [the run's]");
  app.get_option("--precision")->description("Both times: fp32, tf32 or bf16 [the run's]");
  app.get_option("--threads-per-device")
      ->description("Cores of a CPU device, the second time [an equal share of them]");
  AddFlag(app, "--deadline", "SECONDS", run.deadline_seconds,
          "Longest wait of one device for another [the run's]",
          NumberIn({.min = 0.0, .max = 1e6, .above_min = true}))
      ->group("Run");
  app.add_flag("--json", run.json, "Print JSON, one object per line")->group("Run");
}

}  // namespace stagecoach::tools
