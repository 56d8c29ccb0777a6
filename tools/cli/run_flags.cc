// The flags of tools/cli/run_options.h.

#include <CLI/CLI.hpp>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "engine/data/synthetic.h"
#include "engine/data/tokens.h"
#include "tools/cli/add_flag.h"
#include "tools/cli/flags.h"
#include "tools/cli/run_options.h"
#include "tools/cli/schedule_option.h"

namespace stagecoach::tools {
namespace {

constexpr int kMaxStages = 1024;
constexpr int kMaxLayers = 10'000;
constexpr int64_t kMaxWidth = int64_t{1} << 20;
constexpr int64_t kMaxBatch = int64_t{1} << 20;
constexpr int64_t kMaxContext = int64_t{1} << 20;
constexpr int64_t kMaxSteps = int64_t{1} << 40;
constexpr int kMaxInt = std::numeric_limits<int>::max();

auto Count(int64_t min, int64_t max) {
  return [min, max](const std::string& text) { return ParseCount(text, min, max); };
}

auto Number(const NumberRange& range) {
  return [range](const std::string& text) { return ParseNumber(text, range); };
}

std::string Describe(const std::string& text, const std::string& value) {
  return absl::StrCat(text, " [", value, "]");
}

absl::StatusOr<std::string> ParseData(const std::string& spec) {
  absl::string_view rest = spec;
  if (absl::ConsumePrefix(&rest, "synthetic:")) {
    RETURN_IF_ERROR(engine::ParseSyntheticSpec(rest).status());
  }
  return spec;
}

absl::StatusOr<std::string> ParseModelName(const std::string& name) {
  return name == "default" ? "" : name;
}

absl::StatusOr<int64_t> ParseRows(const std::string& text) {
  if (text == "all") return 0;
  absl::StatusOr<int64_t> rows = ParseCount(text, 1, std::numeric_limits<int64_t>::max());
  if (rows.ok()) return rows;
  return absl::InvalidArgumentError(absl::StrCat(rows.status().message(), ", or \"all\""));
}

void AddDataFlags(CLI::App& app, RunOptions& options) {
  AddFlag(app, "--data", "SPEC", options.data,
          "IDX, .csv, .txt, tokens, synthetic:ROWSxFEATURESxCLASSES [Fashion-MNIST]", ParseData)
      ->group("Data");
  app.add_option("--label", options.label,
                 Describe("Column of the labels in a .csv file", options.label))
      ->option_text("NAME")
      ->group("Data");
  AddFlag(app, "--context", "TOKENS", options.context,
          absl::StrCat("Tokens of a row, each told from those before it [the model's, or ",
                       engine::kDefaultContext, "]"),
          Count(1, kMaxContext))
      ->group("Data");
  AddFlag(app, "--vocabulary", "N", options.vocabulary,
          "Tokens that there may be [the model's, or those that occur]",
          Count(2, engine::kMaxVocabulary))
      ->group("Data");
}

void AddModelFlags(CLI::App& app, RunOptions& options) {
  const std::string group = "Model";
  AddFlag(app, "--model", "NAME|FILE", options.model_file,
          Describe("The default network, or layers from a .toml file", "default"), ParseModelName)
      ->group(group);
  CLI::Option* layers =
      AddFlag(app, "--layers", "N", options.layers,
              Describe("Layers of the default network", absl::StrCat(options.layers)),
              Count(2, kMaxLayers))
          ->group(group);
  CLI::Option* width = AddFlag(app, "--width", "N", options.width,
                               Describe("Its features between layers", absl::StrCat(options.width)),
                               Count(1, kMaxWidth))
                           ->group(group);
  app.parse_complete_callback([&options, layers, width] {
    for (const CLI::Option* shape : {layers, width}) {
      if (shape->count() > 0 && !options.model_file.empty()) {
        throw CLI::ExcludesError(shape->get_name(), "--model " + options.model_file);
      }
    }
  });
}

void AddPipelineFlags(CLI::App& app, RunOptions& options) {
  const std::string group = "Pipeline";
  AddFlag(app, "--stages,--devices", "N", options.stages,
          Describe("Devices to cut the model over", absl::StrCat(kDefaultStages)),
          Count(1, kMaxStages))
      ->group(group);
  AddFlag(app, "--replicas", "N", options.replicas,
          "Copies of the model that share each batch: 1, 2, 4, ... [1]", Count(1, kMaxStages))
      ->group(group);
  AddFlag(app, "--gradient-blocks", "N", options.gradient_blocks,
          "Parts of a batch whose gradients form a binary tree [as replicas]", Count(1, kMaxInt))
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
          Describe("Order of the work: a name (see simulate --help) or a file", options.schedule),
          ParseScheduleOption)
      ->group(group);
  AddFlag(app, "--chunks", "N", options.chunks, "Stages of each device [the schedule's own number]",
          Count(1, kMaxStages))
      ->group(group);
  AddFlag(app, "--batch", "N", options.batch,
          Describe("Rows of one step", absl::StrCat(options.batch)), Count(1, kMaxBatch))
      ->group(group);
  // A count below 1 is a configuration that cannot be run, as one that does not divide the batch.
  AddFlag(app, "--microbatches", "N", options.micro_batches,
          Describe("Equal parts of a batch that stream through the stages",
                   absl::StrCat(kDefaultMicroBatches)),
          Count(-kMaxInt, kMaxInt))
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
          Number({.min = 0.0, .max = 1e30, .above_min = true}))
      ->group(group);
}

// The plan settles what these would.
void AddPlanFileFlag(CLI::App& app, RunOptions& options) {
  CLI::Option* plan = app.add_option("--plan", options.plan_file, "Train by the plan in a file")
                          ->option_text("FILE")
                          ->group("Pipeline");
  for (const char* settled :
       {"--stages", "--replicas", "--gradient-blocks", "--shard-optimizer", "--reduction",
        "--schedule", "--chunks", "--batch", "--microbatches", "--profile"}) {
    plan->excludes(app.get_option(settled));
  }
}

}  // namespace

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
          Count(0, std::numeric_limits<int64_t>::max()))
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
  AddFlag(app, "--outputs", "FILE", options.outputs,
          "Write what the last layer gives for each row: .csv, .jsonl or .npy", ParseFile);
  AddFlag(app, "--classes", "FILE", options.classes,
          "Write the class of each row, in the same formats", ParseFile);
  const std::string group = "Pipeline";
  AddFlag(app, "--stages,--devices", "N", run.stages,
          "Devices to cut the model over [the fewest that have the memory]", Count(1, kMaxStages))
      ->group(group);
  AddFlag(app, "--replicas", "N", run.replicas,
          "Copies of the model that share the rows: 1, 2, 4, ... [1]", Count(1, kMaxStages))
      ->group(group);
  AddFlag(app, "--microbatch-rows", "N", options.micro_batch_rows,
          "Rows that pass through a stage at once [the run's]", Count(1, kMaxBatch))
      ->group(group);
  AddFlag(app, "--microbatches", "N", run.micro_batches,
          "How many of those stream through the stages at a time [as memory allows]",
          Count(1, kMaxInt))
      ->group(group);
  AddDeviceFlags(app, run.device);
  app.get_option("--device")->description("cpu, cuda, or auto: cuda if GPUs suffice [the run's]");
  app.get_option("--precision")
      ->description("fp32, or on CUDA devices tf32 or bf16 (docs/cuda.md) [the run's]");
  app.get_option("--threads-per-device")
      ->description("Cores of a CPU device [an equal share of them]");
  AddFlag(app, "--device-memory", "SIZE", run.device_memory_bytes,
          "Budget of each device, such as 600MB or 1.5GiB [none]", ParseMemory)
      ->group(group);
  AddFlag(app, "--deadline", "SECONDS", run.deadline_seconds,
          Describe("Longest wait of one device for another", absl::StrCat(run.deadline_seconds)),
          Number({.min = 0.0, .max = 1e6, .above_min = true}))
      ->group("Run");
  app.add_flag("--json", run.json, "Print JSON, one object per line")->group("Run");
}

void AddReplayFlags(CLI::App& app, ReplayOptions& options) {
  RunOptions& run = options.run;
  AddFlag(app, "checkpoint", "DIR", options.checkpoint,
          "A checkpoint, or the folder of a run: the newest with so many steps left", ParseFolder)
      ->required();
  AddFlag(app, "--steps", "N", options.steps,
          Describe("Steps to train twice", absl::StrCat(options.steps)), Count(1, kMaxSteps));
  AddFlag(app, "--data", "SPEC", run.data, "Where the run's data are now [where they were]",
          ParseData);
  const std::string group = "Pipeline of the second time";
  AddFlag(app, "--stages,--devices", "N", run.stages,
          "Devices to cut the model over [the fewest that have the memory]", Count(1, kMaxStages))
      ->group(group);
  AddFlag(app, "--replicas", "N", run.replicas,
          "Copies of the model that share each batch: 1, 2, 4, ... [1]", Count(1, kMaxStages))
      ->group(group);
  app.add_flag("--shard-optimizer", run.shards_optimizer,
               "Divide the optimizer's state among replicas (ZeRO-1)")
      ->group(group);
  AddFlag(app, "--schedule", "NAME|FILE", run.schedule,
          Describe("Order of the work: a name (see simulate --help) or a file", run.schedule),
          ParseScheduleOption)
      ->group(group);
  AddFlag(app, "--chunks", "N", run.chunks, "Stages of each device [the schedule's own number]",
          Count(1, kMaxStages))
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
          Number({.min = 0.0, .max = 1e6, .above_min = true}))
      ->group("Run");
  app.add_flag("--json", run.json, "Print JSON, one object per line")->group("Run");
}

namespace {

absl::StatusOr<std::optional<int64_t>> ParseEvery(const std::string& text) {
  if (text == "auto") return std::optional<int64_t>();
  const absl::StatusOr<int64_t> steps = ParseCount(text, 1, kMaxSteps);
  if (steps.ok()) return std::optional<int64_t>(*steps);
  return absl::InvalidArgumentError(absl::StrCat(steps.status().message(), ", or \"auto\""));
}

void AddCheckpointFlags(CLI::App& app, RunOptions& options) {
  const std::string group = "Checkpoints";
  CLI::Option* folder =
      AddFlag(app, "--checkpoint", "DIR", options.checkpoints,
              "Save the run in this folder, beside its steps [it is not saved]", ParseFolder)
          ->group(group);
  app.add_flag("--resume", options.resume,
               "Go on from the newest checkpoint there; flags that are not given are its")
      ->needs(folder)
      ->option_text(" ")
      ->group(group);
  AddFlag(app, "--every", "STEPS|auto", options.every_steps,
          "Save after so many steps and each epoch, or as it pays [auto]", ParseEvery)
      ->needs(folder)
      ->group(group);
  AddFlag(app, "--keep", "N", options.kept_checkpoints,
          Describe("Keep the newest N checkpoints, and the best",
                   absl::StrCat(options.kept_checkpoints)),
          Count(1, kMaxInt))
      ->needs(folder)
      ->group(group);
  AddFlag(app, "--keep-every", "STEPS", options.kept_every_steps,
          "And those at multiples of so many steps [none]", Count(1, kMaxSteps))
      ->needs(folder)
      ->group(group);
}

}  // namespace

void AddTrainingFlags(CLI::App& app, RunOptions& options) {
  AddPlanFileFlag(app, options);
  const std::string group = "Optimizer";
  AddFlag(app, "--learning-rate", "X", options.learning_rate,
          "Rate, or its peak [sgd 0.01, adamw 0.09 / width]",
          Number({.min = 0.0, .max = 1e6, .above_min = true}))
      ->group(group);
  AddFlag(app, "--lr-schedule", "NAME", options.learning_rate_schedule,
          Describe("constant or warmup-cosine", options.learning_rate_schedule),
          Choice({"constant", "warmup-cosine"}))
      ->group(group);
  AddFlag(app, "--weight-decay", "X", options.weight_decay,
          "Of weights, not of biases [adamw 0.01, sgd 0]", Number({.min = 0.0, .max = 1e6}))
      ->group(group);
  AddFlag(app, "--momentum", "X", options.momentum, "For sgd [0.9]",
          Number({.min = 0.0, .max = 1.0}))
      ->group(group);
  AddFlag(app, "--rows", "N|all", options.rows,
          absl::StrCat("Training rows to use [of IDX files ", base::FormatCount(kDefaultImageRows),
                       ", otherwise all]"),
          ParseRows)
      ->group("Data");
  AddFlag(app, "--epochs", "N", options.epochs,
          Describe("Passes over the training rows", absl::StrCat(options.epochs)),
          Count(1, 1'000'000))
      ->group("Run");
  app.add_flag("--explain", options.explain, "Print the shapes at each step of a batch first")
      ->group("Run");
  AddCheckpointFlags(app, options);
  const auto add_file = [&](const char* name, std::string& path, const char* description) {
    app.add_option(name, path, description)->option_text("FILE")->group("Run");
  };
  add_file("--trace", options.trace, "Write when the actions of the last step were performed");
  add_file("--simulated-trace", options.simulated_trace,
           "Write the same, simulated with the measured times");
  AddFlag(app, "--check-replicas", "STEPS", options.replica_check_steps,
          Describe("How often replicas compare their parameters, 0 for never",
                   absl::StrCat(options.replica_check_steps)),
          Count(0, 1'000'000'000))
      ->group("Run");
  AddFlag(
      app, "--deadline", "SECONDS", options.deadline_seconds,
      Describe("Longest wait of one device for another", absl::StrCat(options.deadline_seconds)),
      Number({.min = 0.0, .max = 1e6, .above_min = true}))
      ->group("Run");
}

}  // namespace stagecoach::tools
