#include "tools/cli/predict_command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/data/arrays.h"
#include "engine/data/load.h"
#include "engine/launch/launch.h"
#include "engine/launch/rendezvous.h"
#include "engine/train/trainer.h"
#include "tools/cli/exit_status.h"
#include "tools/cli/flags.h"
#include "tools/cli/launched.h"
#include "tools/cli/machine.h"
#include "tools/cli/messages.h"
#include "tools/cli/prediction.h"
#include "tools/cli/prediction_report.h"
#include "tools/cli/rings.h"
#include "tools/cli/run_options.h"
#include "tools/cli/saved_run.h"
#include "tools/cli/slow_notice.h"
#include "tools/cli/stop_signal.h"
#include "tools/cli/training.h"

namespace stagecoach::tools {
namespace {

// Options of a checkpoint that decide what is predicted, where flags say nothing else.
constexpr absl::string_view kTakenOptions[] = {
    "--data",   "--label", "--channels", "--test-data", "--test-fraction", "--model",
    "--layers", "--width", "--seed",     "--device",    "--precision",     "--tokenizer"};

bool IsGiven(const CLI::App& flags, const std::string& name) {
  return flags.get_option(name)->count() > 0;
}

// Fills in what the flags leave to the checkpoint.
absl::Status TakeOptions(const CLI::App& flags, const engine::Manifest& manifest,
                         PredictOptions& options) {
  if (manifest.options.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the checkpoint does not say how its model is made, since it was not saved by this program"
        "; a program that knows the model can predict (Trainer::Restore, Trainer::Predict)"));
  }
  CLI::App saved;
  AddPlanFlags(saved, options.run);
  AddTestSetFlags(saved, options.run);
  for (const engine::SavedOption& option : manifest.options) {
    const CLI::Option* const own = flags.get_option_no_throw(option.name);
    const bool is_given = own != nullptr && own->count() > 0;
    const bool is_taken = std::find(std::begin(kTakenOptions), std::end(kTakenOptions),
                                    option.name) != std::end(kTakenOptions);
    if (is_taken && !is_given) RETURN_IF_ERROR(TakeSavedOption(saved, option));
  }
  options.run.model_text = manifest.model_source;
  options.has_threads = IsGiven(flags, "--threads-per-device");
  if (!options.micro_batch_rows.has_value()) {
    options.micro_batch_rows = manifest.plan.plan.micro_batch_rows;
  }
  return absl::OkStatus();
}

// What the model tells apart, at each position if there are several.
int64_t ClassesOf(const engine::Manifest& manifest) {
  const engine::Shape& output = manifest.output;
  return output.rank() == 0 ? 1 : output.dim(output.rank() - 1);
}

absl::Status CheckFitsModel(const std::string& name, const engine::Dataset& data,
                            const engine::Manifest& manifest) {
  RETURN_IF_ERROR(base::Annotate(
      CheckFits(data.spec(), manifest.input, {}, manifest.encoding.vocabulary), name));
  const int64_t classes = ClassesOf(manifest);
  if (data.classes() <= classes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": the data has ", data.classes(), " classes; the model takes ", classes));
}

// What is to be predicted, without where to. Of a run's own data: what it tested itself with.
absl::StatusOr<PredictionTask> LoadTask(const CLI::App& flags, const PredictOptions& options,
                                        const engine::Manifest& manifest) {
  const engine::DataSource source = {.spec = DataOf(options.run),
                                     .test_spec = options.run.test_data,
                                     .test_fraction = options.run.test_fraction,
                                     .label_column = options.run.label,
                                     .labels = manifest.encoding.labels_are_numbers()
                                                   ? engine::LabelKind::kNumbers
                                                   : engine::LabelKind::kClasses,
                                     .channels = options.run.channels,
                                     .model_input = manifest.input,
                                     .seed = options.run.seed,
                                     .tokens = {.context = manifest.input.elements(),
                                                .vocabulary = manifest.encoding.vocabulary,
                                                .tokenizer = options.run.tokenizer}};
  if (IsGiven(flags, "--channels") && !engine::HoldsArrays(source.spec)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--channels is for a directory of arrays (x_test.npy), and ", source.spec, " is none"));
  }
  PredictionTask task;
  const SlowNotice notice(DescribeReading(DataOf(options.run)));
  if (!IsGiven(flags, "--data")) {
    ASSIGN_OR_RETURN(engine::TrainTest data, engine::LoadData(source));
    task.data = std::move(data.test);
    task.encoding = std::move(data.encoding);
    const bool is_known = manifest.encoding != engine::DataEncoding();
    if (is_known && !task.encoding.EncodesAs(manifest.encoding)) {
      return absl::InvalidArgumentError(
          absl::StrCat(DataOf(options.run),
                       " is not what the model was trained on: its columns, classes or "
                       "statistics differ; to predict all that is in it now, name it with --data"));
    }
  } else {
    ASSIGN_OR_RETURN(task.data, LoadSamples(source, manifest.encoding, ClassesOf(manifest)));
    task.encoding = manifest.encoding;
  }
  RETURN_IF_ERROR(CheckFitsModel(DataOf(options.run), *task.data, manifest));
  if (IsGiven(flags, "--label") && !task.has_labels()) {
    return absl::InvalidArgumentError(
        absl::StrCat(DataOf(options.run), " has no labels, but --label names them"));
  }
  return task;
}

// OK if the plan fits the machine, with the outputs of all micro-batches in host memory: where the
// last stages put them, and in order.
absl::Status CheckFitsHere(const RunOptions& options, const engine::PreparedRun& run,
                           const engine::ModelProfile& profile) {
  RETURN_IF_ERROR(CheckGpusHaveRoom(options, run));
  const int64_t values = run.plan.batch_rows() * profile.output.elements();
  return CheckHasMemoryFor(run, {.output_bytes = 2 * values * int64_t{sizeof(float)}});
}

// With as many micro-batches at a time as memory allows, so that the pipeline is seldom empty.
// Where "--device auto" has found too few GPUs, `options` name CPU devices from then on, so that it
// says so once.
absl::StatusOr<engine::PreparedRun> PlanOver(PredictOptions& options, const engine::Model& model,
                                             int64_t rows, int stages) {
  constexpr int kMostPerStage = 64;  // the pipeline is then empty for a 64th of the time
  RunOptions run = options.run;
  const int devices = stages * run.replicas;
  if (!options.has_threads) {
    run.device.threads = std::max(1, InspectMachine().processors / devices);
  }
  ASSIGN_OR_RETURN(const engine::DeviceSpec device, ChooseDevices(run, devices));
  if (device.kind == engine::DeviceKind::kCpu) {
    options.run.device.UseCpu();
  }
  engine::PlanOptions plan = {.devices = stages,
                              .replication = {run.replicas, run.replicas},
                              .predicts = true,
                              .micro_batch_rows = *options.micro_batch_rows,
                              .device = device,
                              .exchange = ExchangeOf(run.device, device)};
  plan.results = ResultsOf(run, plan.replication);
  ASSIGN_OR_RETURN(const engine::ModelProfile profile,
                   OnDevices(device, AnalyzeModel(model, {.micro_batch_rows = plan.micro_batch_rows,
                                                          .optimizer = plan.optimizer,
                                                          .device = device,
                                                          .results = plan.results})));
  const int64_t rows_at_once = plan.micro_batch_rows * run.replicas;
  const int64_t needed = (rows + rows_at_once - 1) / rows_at_once;
  int count = static_cast<int>(std::min<int64_t>(needed, int64_t{kMostPerStage} * stages));
  if (run.micro_batches.has_value()) {
    plan.micro_batches = *run.micro_batches;
    RETURN_IF_ERROR(CheckReplication(plan.replication, plan.micro_batches));
    count = 1;
  } else {
    plan.micro_batches = count * run.replicas;
  }
  while (true) {
    absl::StatusOr<engine::PreparedRun> prepared = PrepareRun(model, profile, plan);
    const absl::Status fits =
        prepared.ok() ? CheckFitsHere(run, *prepared, profile) : prepared.status();
    if (fits.ok()) return prepared;
    if (count == 1 || !IsLackOfMemory(fits)) return fits;
    count = (count + 1) / 2;
    plan.micro_batches = count * run.replicas;
  }
}

// Over the fewest devices that have enough memory, unless their number is given.
absl::StatusOr<engine::PreparedRun> FindPlan(PredictOptions options, const engine::Model& model,
                                             int64_t rows) {
  if (options.run.devices_left.has_value()) {
    options.run.replicas = 1;
    return PlanOver(options, model, rows, *options.run.devices_left);
  }
  if (options.run.stages.has_value()) return PlanOver(options, model, rows, *options.run.stages);
  absl::Status first;
  for (int stages = 1; stages <= model.num_layers(); ++stages) {
    absl::StatusOr<engine::PreparedRun> prepared = PlanOver(options, model, rows, stages);
    if (prepared.ok()) return prepared;
    if (first.ok()) first = prepared.status();
    if (!IsLackOfMemory(prepared.status())) break;
  }
  return first;
}

absl::StatusOr<std::unique_ptr<engine::Trainer>> CreateTrainer(const PredictOptions& options,
                                                               engine::PreparedRun prepared,
                                                               int64_t rows,
                                                               const Meeting& meeting) {
  const engine::DeviceSpec device = prepared.device;
  const engine::Optimizer optimizer = prepared.optimizer;
  return OnDevices(
      device, engine::Trainer::Create(std::move(prepared),
                                      {.optimizer = optimizer,
                                       .draws_parameters = false,
                                       .device = device,
                                       .exchange = ExchangeOf(options.run.device, device),
                                       .rendezvous = meeting.rendezvous.get(),
                                       .fingerprint = absl::StrCat("rows to predict: ", rows, "\n"),
                                       .deadline = absl::Seconds(options.run.deadline_seconds),
                                       .rings = FindRings(meeting.launch)}));
}

// What would otherwise surface after the work.
absl::Status CheckFiles(const PredictOptions& options) {
  for (const std::string& path : {options.outputs, options.classes}) {
    if (path.empty()) continue;
    RETURN_IF_ERROR(PredictionFormat::Create(path, {}).status());
    RETURN_IF_ERROR(From(Origin::kOutput, base::CheckWritable(path)));
  }
  return absl::OkStatus();
}

void AddFiles(const PredictOptions& options, PredictionTask& task) {
  using Content = PredictionLayout::Content;
  for (const auto& [path, content] : {std::pair(&options.outputs, Content::kOutputs),
                                      std::pair(&options.classes, Content::kClasses)}) {
    if (!path->empty()) task.files.push_back({*path, content});
  }
}

// `meeting`: with the other processes of the run; without a rendezvous if there is one.
absl::StatusOr<int> PredictOnDevices(const CLI::App& flags, const PredictOptions& options,
                                     const engine::Checkpoint& checkpoint, const Meeting& meeting) {
  engine::Rendezvous* const rendezvous = meeting.rendezvous.get();
  const engine::Manifest& manifest = checkpoint.manifest();
  ASSIGN_OR_RETURN(PredictionTask task, From(Origin::kData, LoadTask(flags, options, manifest)));
  const bool reports = rendezvous == nullptr || rendezvous->rank() == 0;
  if (reports) AddFiles(options, task);
  if (manifest.output.rank() > 1 && !options.classes.empty()) {
    return From(Origin::kUsage,
                absl::InvalidArgumentError(absl::StrCat(
                    "--classes: the model gives outputs of shape ", manifest.output.ToString(),
                    " for a row, and so not one class; --outputs has them all")));
  }
  if (manifest.encoding.labels_are_numbers() && !options.classes.empty()) {
    return From(Origin::kUsage,
                absl::InvalidArgumentError(
                    "--classes: the model predicts numbers, which --outputs writes"));
  }
  if (!task.has_labels() && options.outputs.empty() && options.classes.empty()) {
    return From(Origin::kUsage,
                absl::InvalidArgumentError(
                    "the data has no labels to compare with: name a file for what is predicted, "
                    "with --outputs or --classes"));
  }
  ASSIGN_OR_RETURN(const engine::Model model,
                   From(Origin::kConfiguration,
                        MakeModel(options.run, options.run.model_text,
                                  {.input = manifest.input,
                                   .vocabulary = manifest.encoding.vocabulary,
                                   .classes = ClassesOf(manifest),
                                   .has_numbers = manifest.encoding.labels_are_numbers()})));
  const int64_t rows = task.data->rows();
  ASSIGN_OR_RETURN(engine::PreparedRun prepared,
                   WithFallBack(options.run.device, [&](const DeviceChoice& device) {
                     PredictOptions on_device = options;
                     on_device.run.device = device;
                     return From(Origin::kConfiguration,
                                 FindPlan(std::move(on_device), model, rows));
                   }));
  StopOnSignals();
  const StopOnHangUp hang_up;
  ASSIGN_OR_RETURN(
      const std::unique_ptr<engine::Trainer> trainer,
      From(Origin::kConfiguration, CreateTrainer(options, std::move(prepared), rows, meeting)));
  RETURN_IF_ERROR(From(Origin::kData, trainer->Restore(checkpoint.path()).status()));
  std::unique_ptr<PredictionReport> report;
  if (reports) {
    report = MakePredictionReport(options.run.json);
    report->Start(checkpoint, *trainer, task);
    task.on_rows = [&](int64_t done) { report->Progress(done); };
  }
  absl::StatusOr<Prediction> prediction = PredictAll(*trainer, task);
  // Before the trainer is destroyed, which parts from ranks that may still wait for this one.
  if (!prediction.ok() && rendezvous != nullptr) {
    rendezvous->Fail(prediction.status(),
                     base::Deadline::After(absl::Seconds(options.run.deadline_seconds)));
  }
  if (absl::IsCancelled(prediction.status())) {
    report.reset();
    if (!hang_up.has_hung_up()) PrintNotice("stopped by a signal: nothing is written");
    return StatusOfStop();
  }
  RETURN_IF_ERROR(prediction.status());
  ASSIGN_OR_RETURN(const std::vector<engine::DeviceReport> devices, trainer->Devices());
  if (report != nullptr) report->End(task, *prediction, devices);
  return kExitOk;
}

// Finds the checkpoint, and what of it the flags leave open.
absl::StatusOr<engine::Checkpoint> Prepare(const CLI::App& flags, PredictOptions& options) {
  RETURN_IF_ERROR(From(Origin::kUsage, CheckFiles(options)));
  ASSIGN_OR_RETURN(engine::Checkpoint checkpoint, OpenCheckpoint(options.checkpoint));
  RETURN_IF_ERROR(From(Origin::kConfiguration, TakeOptions(flags, checkpoint.manifest(), options)));
  for (const std::string& path : {options.outputs, options.classes}) {
    if (!IsSameFile(path, DataOf(options.run))) continue;
    return From(Origin::kUsage, absl::InvalidArgumentError(absl::StrCat(
                                    path, " is what is to be predicted: name another file")));
  }
  return checkpoint;
}

absl::StatusOr<int> Predict(const CLI::App& flags, PredictOptions& options) {
  ASSIGN_OR_RETURN(const std::optional<engine::Launch> launch,
                   From(Origin::kUsage, engine::FindLaunch()));
  const absl::StatusOr<engine::Checkpoint> checkpoint = Prepare(flags, options);
  if (launch.has_value()) {
    return WorkAsRank("predict", *launch, options.run, checkpoint.status(),
                      [&](const RunOptions& run, const Meeting& meeting) {
                        PredictOptions own = options;
                        own.run = run;
                        return PredictOnDevices(flags, own, *checkpoint, meeting);
                      });
  }
  RETURN_IF_ERROR(checkpoint.status());
  return PredictOnDevices(flags, options, *checkpoint, {});
}

}  // namespace

Command AddPredictCommand(CLI::App& app) {
  CLI::App* flags =
      app.add_subcommand("predict", "Run the model of a checkpoint forward over data");
  const auto options = std::make_shared<PredictOptions>();
  AddPredictFlags(*flags, *options);
  return {flags, [flags, options] { return Predict(*flags, *options); }};
}

}  // namespace stagecoach::tools
