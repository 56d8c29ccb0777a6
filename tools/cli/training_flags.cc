// The flags of tools/cli/run_options.h that only training needs.

#include <CLI/CLI.hpp>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "tools/cli/add_flag.h"
#include "tools/cli/flag_values.h"
#include "tools/cli/flags.h"
#include "tools/cli/run_options.h"

namespace stagecoach::tools {
namespace {

absl::StatusOr<int64_t> ParseRows(const std::string& text) {
  if (text == "all") return 0;
  absl::StatusOr<int64_t> rows = ParseCount(text, 1, std::numeric_limits<int64_t>::max());
  if (rows.ok()) return rows;
  return absl::InvalidArgumentError(absl::StrCat(rows.status().message(), ", or \"all\""));
}

absl::StatusOr<std::optional<StopCondition>> ParseStopWhen(const std::string& text) {
  if (text == "never") return std::optional<StopCondition>();
  ASSIGN_OR_RETURN(StopCondition condition, ParseStopCondition(text));
  return std::optional<StopCondition>(std::move(condition));
}

// The plan settles what these would.
void AddPlanFileFlag(CLI::App& app, RunOptions& options) {
  CLI::Option* plan = app.add_option("--plan", options.plan_file, "Train by the plan in a file")
                          ->option_text("FILE")
                          ->group("Pipeline");
  for (const char* settled :
       {"--devices", "--replicas", "--gradient-blocks", "--shard-optimizer", "--reduction",
        "--schedule", "--chunks", "--batch", "--microbatches", "--profile"}) {
    plan->excludes(app.get_option(settled));
  }
}

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
  app.add_flag("--data-changed", options.data_changed,
               "Go on though the data are not what they were when the run was saved")
      ->needs(folder)
      ->option_text(" ")
      ->group(group);
  AddFlag(app, "--every", "STEPS|auto", options.every_steps,
          "Save at multiples of so many steps and each epoch, or as it pays [auto]", ParseEvery)
      ->needs(folder)
      ->group(group);
  AddFlag(app, "--keep", "N", options.kept_checkpoints,
          Describe("Keep the newest N checkpoints, and the best",
                   absl::StrCat(options.kept_checkpoints)),
          CountIn(1, kMaxInt))
      ->needs(folder)
      ->group(group);
  AddFlag(app, "--keep-every", "STEPS", options.kept_every_steps,
          "And those at multiples of so many steps [none]", CountIn(1, kMaxSteps))
      ->needs(folder)
      ->group(group);
}

}  // namespace

void AddTrainingFlags(CLI::App& app, RunOptions& options) {
  AddPlanFileFlag(app, options);
  AddTestSetFlags(app, options);
  const std::string group = "Optimizer";
  AddFlag(app, "--learning-rate", "X", options.learning_rate,
          "Rate, or its peak [sgd 0.01, adamw 0.09 / width]",
          NumberIn({.min = 0.0, .max = 1e6, .above_min = true}))
      ->group(group);
  AddFlag(app, "--lr-schedule", "NAME", options.learning_rate_schedule,
          Describe("constant or warmup-cosine", options.learning_rate_schedule),
          Choice({"constant", "warmup-cosine"}))
      ->group(group);
  AddFlag(app, "--warmup-steps", "N", options.warmup_steps,
          "For warmup-cosine: steps until the rate has its peak [a tenth of all]",
          CountIn(0, kMaxSteps))
      ->group(group);
  AddFlag(app, "--min-lr", "X", options.min_learning_rate,
          "For warmup-cosine: the rate at the end [0]", NumberIn({.min = 0.0, .max = 1e6}))
      ->group(group);
  AddFlag(app, "--weight-decay", "X", options.weight_decay,
          "Of weights, not of biases [adamw 0.01, sgd 0]", NumberIn({.min = 0.0, .max = 1e6}))
      ->group(group);
  const NumberRange decay = {.min = 0.0, .max = 1.0};
  AddFlag(app, "--beta1", "X", options.beta1, "For adamw: decay of the mean of gradients [0.9]",
          NumberIn(decay))
      ->group(group);
  AddFlag(app, "--beta2", "X", options.beta2, "For adamw: of the mean of their squares [0.999]",
          NumberIn(decay))
      ->group(group);
  AddFlag(app, "--momentum", "X", options.momentum, "For sgd [0.9]", NumberIn(decay))->group(group);
  AddFlag(app, "--rows", "N|all", options.rows,
          absl::StrCat("Training rows to use [of images ", base::FormatCount(kDefaultImageRows),
                       ", otherwise all]"),
          ParseRows)
      ->group("Data");
  AddFlag(app, "--epochs", "N", options.epochs,
          Describe("Passes over the training rows", absl::StrCat(options.epochs)),
          CountIn(1, 1'000'000))
      ->group("Run");
  AddFlag(app, "--steps", "N", options.steps, "Steps of the run, in place of --epochs",
          CountIn(1, kMaxSteps))
      ->excludes(app.get_option("--epochs"))
      ->option_text("N")  // instead of what it excludes
      ->group("Run");
  AddFlag(app, "--eval-every", "STEPS", options.evaluate_every_steps,
          "Evaluate after so many steps, and after each epoch [each epoch]", CountIn(1, kMaxSteps))
      ->group("Run");
  AddFlag(app, "--eval-rows", "N|all", options.evaluation_rows,
          "Test rows of an evaluation, spread over all of them [all]", ParseRows)
      ->group("Run");
  AddFlag(app, "--stop-when", "CONDITION", options.stop_when,
          "End where an evaluation meets it, such as test_accuracy>0.9 [never]", ParseStopWhen)
      ->group("Run");
  AddFlag(app, "--log-every", "STEPS", options.log_every_steps,
          "Print loss, learning rate and speed of each such step [of none]", CountIn(1, kMaxSteps))
      ->group("Run");
  app.add_flag("--explain", options.explain, "Print the shapes at each step of a batch first")
      ->group("Run");
  AddCheckpointFlags(app, options);
  const auto add_file = [&](const char* name, std::string& path, const char* description) {
    AddOutput(app, name, "FILE", path, description)->group("Run");
  };
  AddOutput(app, "--metrics", "FILE", options.metrics,
            "Write them and all evaluations, as JSON lines; a resumed run adds to it", ParseFile)
      ->group("Run");
  AddFlag(app, "--tensorboard", "DIR", options.tensorboard,
          "Write them as a file of events for TensorBoard in this folder", ParseFolder)
      ->group("Run");
  add_file("--trace", options.trace, "Write when the actions of the last step were performed");
  add_file("--simulated-trace", options.simulated_trace,
           "Write the same, simulated with the measured times");
  AddFlag(app, "--check-replicas", "STEPS", options.replica_check_steps,
          Describe("How often replicas compare their parameters, 0 for never",
                   absl::StrCat(options.replica_check_steps)),
          CountIn(0, 1'000'000'000))
      ->needs("--replicas")
      ->group("Run");
  AddFlag(
      app, "--deadline", "SECONDS", options.deadline_seconds,
      Describe("Longest wait of one device for another", absl::StrCat(options.deadline_seconds)),
      NumberIn({.min = 0.0, .max = 1e6, .above_min = true}))
      ->group("Run");
}

}  // namespace stagecoach::tools
