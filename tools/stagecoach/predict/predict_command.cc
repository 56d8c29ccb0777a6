#include <CLI/CLI.hpp>
#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "engine/checkpoint/manifest.h"
#include "engine/data/data_files.h"
#include "engine/session/predict_config.h"
#include "engine/session/run_config.h"
#include "engine/session/session.h"
#include "tools/stagecoach/flags/add_flag.h"
#include "tools/stagecoach/flags/commands.h"
#include "tools/stagecoach/flags/run_flags.h"
#include "tools/stagecoach/flags/saved_options.h"
#include "tools/stagecoach/predict/prediction_report.h"
#include "tools/stagecoach/terminal/exit_status.h"
#include "tools/stagecoach/terminal/messages.h"
#include "tools/stagecoach/terminal/stop_signal.h"
#include "tools/stagecoach/values/flag_values.h"
#include "tools/stagecoach/values/flags.h"

namespace stagecoach::tools {
namespace {

// Returns whether the path is one of the files of data.
bool IsAmongFilesOf(const std::string& data, const std::string& path) {
  const absl::StatusOr<std::vector<std::string>> files = engine::DataFilesOf(data);
  return files.ok() && std::any_of(files->begin(), files->end(),
                                   [&](const std::string& file) { return IsSameFile(path, file); });
}

// Options of a checkpoint that decide what is predicted, where flags say nothing else.
constexpr absl::string_view kTakenOptions[] = {"--data",
                                               "--label",
                                               "--channels",
                                               "--test-data",
                                               "--test-fraction",
                                               "--model",
                                               "--layers",
                                               "--width",
                                               "--seed",
                                               "--device",
                                               "--precision",
                                               "--tokenizer",
                                               "--chat-template",
                                               "--train-on",
                                               "--image-size",
                                               "--drop",
                                               "--skip-broken-images"};

// The options above that say how to read the data.
constexpr const char* kReadingFlags[] = {"--label",         "--drop",      "--channels",
                                         "--image-size",    "--tokenizer", "--skip-broken-images",
                                         "--chat-template", "--train-on"};

bool IsGiven(const CLI::App& flags, const std::string& name) {
  return flags.get_option(name)->count() > 0;
}

// Fills in what the flags leave to the checkpoint.
absl::Status TakeOptions(const CLI::App& flags, const engine::Manifest& manifest,
                         engine::PredictConfig& options) {
  if (manifest.options.empty()) {
    return base::DataError(
        absl::StrCat(
            "the checkpoint does not say how its model is made, since it was not saved by this "
            "program; a program that knows the model can predict (Trainer::Restore, "
            "Trainer::Predict)"),
        absl::StatusCode::kFailedPrecondition);
  }
  CLI::App saved;
  AddTrainFlags(saved, options.run);
  for (const engine::SavedOption& option : manifest.options) {
    const std::string name = PresentName(option.name);
    const CLI::Option* const own = flags.get_option_no_throw(name);
    const bool is_given = own != nullptr && own->count() > 0;
    const bool is_taken = std::find(std::begin(kTakenOptions), std::end(kTakenOptions), name) !=
                          std::end(kTakenOptions);
    if (is_taken && !is_given) RETURN_IF_ERROR(TakeSavedOption(saved, option));
  }
  options.has_threads = IsGiven(flags, "--threads-per-device");
  options.has_data = IsGiven(flags, "--data");
  for (const char* const name : kReadingFlags) {
    if (IsGiven(flags, name)) options.given.insert(name);
  }
  for (const std::string& path : {options.outputs, options.classes, options.scores}) {
    if (!IsAmongFilesOf(DataOf(options.run), path)) continue;
    return base::UsageError(absl::StrCat(path, " is what is to be predicted: name another file"));
  }
  return absl::OkStatus();
}

absl::StatusOr<int> Predict(const CLI::App& flags, engine::PredictConfig& options,
                            const OutputOptions& output) {
  std::optional<StopOnHangUp> hang_up;
  std::unique_ptr<engine::PredictionObserver> report = MakePredictionReport(output.json);
  std::optional<int> refused;
  const engine::PredictHooks hooks = {
      .observer = report.get(),
      .complete = [&](const engine::Manifest& manifest,
                      engine::PredictConfig& config) -> absl::Status {
        RETURN_IF_ERROR(TakeOptions(flags, manifest, options));
        config = options;
        return absl::OkStatus();
      },
      .on_planned =
          [&] {
            StopOnSignals();
            if (!hang_up.has_value()) hang_up.emplace();
          },
      .on_refused = [&](const absl::Status& error) { refused = Fail("predict", error); }};
  const absl::Status status = engine::Predict(options, hooks).status();
  if (refused.has_value()) return *refused;
  if (absl::IsCancelled(status)) {
    report.reset();
    if (!HasHungUp()) PrintNotice("stopped by a signal: nothing is written");
    return StatusOfStop();
  }
  RETURN_IF_ERROR(status);
  return kExitOk;
}

void AddPredictFlags(CLI::App& app, engine::PredictConfig& options, OutputOptions& output) {
  const char* const own = "Options";  // the group of what is not of the table
  AddFlag(app, "--checkpoint", "DIR", options.checkpoint,
          "A checkpoint, or a run's folder for its newest", ParseFolder)
      ->required();
  AddRunFlags(app, options.run,
              {{"--data", "As in train, or a file of IDX images [the run's test set]", own},
               {"--label", "Label column of a .csv file, if it has one [the run's]", own},
               {"--drop", "Columns of a .csv file to ignore, if it has them [the run's]", own},
               {"--channels", "Position of the channel axis in arrays of images [the run's]", own},
               {"--image-size", "Side of square samples made of image files [the run's]", own},
               {"--skip-broken-images"},
               {"--tokenizer", "The run's tokenizer, if it has moved [where it was]", own},
               {"--chat-template", DescribeChatTemplate("Chats", "the run's"), own},
               {"--train-on", "Tokens of chats and completions that count [the run's]", own}});
  AddFlag(app, "--outputs", "FILE", options.outputs,
          "Write the model's output for each sample: .csv, .jsonl or .npy", ParseFile)
      ->type_name(kOutputFile);
  AddFlag(app, "--classes", "FILE", options.classes,
          "Write the predicted class of each sample, in the same formats", ParseFile)
      ->type_name(kOutputFile);
  AddFlag(app, "--scores", "FILE", options.scores,
          "Write the log-likelihood of each sample's tokens: .jsonl or .csv", ParseFile)
      ->type_name(kOutputFile);
  AddRunFlags(app, options.run,
              {{"--devices", "Devices to split the model over [the fewest with enough memory]"},
               {"--replicas", "Data-parallel copies of the model [1]"}});
  AddFlag(app, "--microbatch-rows", "N", options.micro_batch_rows,
          "Samples per micro-batch [the run's]", CountIn(1, kMaxBatch))
      ->group("Pipeline");
  AddFlag(app, "--micro-batches", "N", options.run.micro_batches,
          "Micro-batches in flight at a time [as memory allows]", CountIn(1, kMaxInt))
      ->group("Pipeline");
  AddRunFlags(
      app, options.run,
      {{"--device", "cpu, cuda, or auto: cuda if GPUs suffice [the run's]"},
       {"--threads-per-device", "Cores per CPU device [an equal share]"},
       {"--precision", "fp32, bf16, or tf32 on CUDA devices (docs/data-and-models.md) [the run's]"},
       {"--gpus"},
       {"--exchange"},
       {"--tuning"},
       {"--device-memory"},
       {"--cluster"},
       {"--timeout"},
       {"--json"}},
      &output);
}

}  // namespace

Command AddPredictCommand(CLI::App& app) {
  CLI::App* flags = app.add_subcommand("predict", "Run a trained model over data");
  const auto options = std::make_shared<engine::PredictConfig>();
  const auto output = std::make_shared<OutputOptions>();
  AddPredictFlags(*flags, *options, *output);
  return {flags, [flags, options, output] { return Predict(*flags, *options, *output); }};
}

}  // namespace stagecoach::tools
