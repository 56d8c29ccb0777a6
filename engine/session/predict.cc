// Predict, of engine/session/session.h.

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/comm/launch.h"
#include "engine/comm/rendezvous.h"
#include "engine/data/chat/chat_dataset.h"
#include "engine/data/data_files.h"
#include "engine/data/formats/arrays.h"
#include "engine/data/formats/format.h"
#include "engine/data/formats/load.h"
#include "engine/session/machine/machine.h"
#include "engine/session/machine/recorders.h"
#include "engine/session/predict/scores.h"
#include "engine/session/process_group.h"
#include "engine/session/saved_run.h"
#include "engine/session/session.h"
#include "engine/session/training.h"
#include "engine/train/trainer.h"

namespace stagecoach::engine {
namespace {

absl::Status CheckFitsModel(const std::string& name, const Dataset& data,
                            const Manifest& manifest) {
  RETURN_IF_ERROR(base::Annotate(
      CheckFits(data.spec(), manifest.input, {}, manifest.encoding.vocabulary), name));
  const int64_t classes = manifest.outputs();
  if (data.classes() <= classes) return absl::OkStatus();
  return base::DataError(
      absl::StrCat(name, ": the data has ", data.classes(), " classes; the model takes ", classes));
}

// Returns an error if the configuration asks for scores that the model or the data do not have.
absl::Status CheckMayScore(const PredictConfig& config, const Manifest& manifest) {
  if (config.scores.empty()) return absl::OkStatus();
  if (manifest.encoding.vocabulary == 0) {
    return base::UsageError("--scores is for language models, and the model takes no tokens");
  }
  if (config.has_data || !HoldsChats(TestDataOf(config.run))) return absl::OkStatus();
  return base::UsageError(absl::StrCat(
      "--scores has a line for each of a file: name it, such as --data ", TestDataOf(config.run)));
}

DataSource SourceOf(const PredictConfig& options, const Manifest& manifest) {
  return {
      .spec = DataOf(options.run),
      .test_spec = options.run.test_data,
      .test_fraction = options.run.test_fraction,
      .label_column = options.run.label,
      .dropped_columns = options.run.dropped_columns,
      .labels = manifest.encoding.labels_are_numbers() ? LabelKind::kNumbers : LabelKind::kClasses,
      .channels = options.run.channels,
      .model_input = manifest.input,
      .image_size = options.run.image_size.value_or(0),
      .skips_broken_images = options.run.skips_broken_images,
      .seed = options.run.seed,
      .tokens = {.context = manifest.input.elements(),
                 .vocabulary = manifest.encoding.vocabulary,
                 .tokenizer = options.run.tokenizer,
                 .chat_template = options.run.chat_template,
                 .trains_on_all = options.run.trains_on_all},
      .on_notice = options.run.notices.on_notice};
}

constexpr const char* kFlagsOfTokens[] = {"--tokenizer", "--chat-template", "--train-on"};

// Returns an error if a flag is for other data. `has_tokens`: the model's samples are tokens.
absl::Status CheckFlags(const PredictConfig& options, const DataSource& source, bool has_tokens) {
  if (FindDataFormat(source) == nullptr) return absl::OkStatus();  // LoadSamples tells
  for (const std::string& flag : options.given) RETURN_IF_ERROR(CheckFlagOfForm(flag, source));
  if (options.given.contains("--channels") && !HoldsArrays(source.spec)) {
    return base::UsageError(absl::StrCat(
        "--channels is for a directory of arrays (x_test.npy), and ", source.spec, " is none"));
  }
  for (const char* const flag : kFlagsOfTokens) {
    if (has_tokens || !options.given.contains(flag)) continue;
    return base::UsageError(absl::StrCat(flag, " is for text and ids of tokens, which ",
                                         source.spec, " does not hold"));
  }
  return absl::OkStatus();
}

// What is to be predicted, without where to. Of a run's own data: what it tested itself with.
absl::StatusOr<PredictionTask> LoadTask(const PredictConfig& options, const Manifest& manifest) {
  const DataSource source = SourceOf(options, manifest);
  RETURN_IF_ERROR(CheckFlags(options, source, manifest.encoding.vocabulary > 0));
  PredictionTask task{.wants_scores = !options.scores.empty()};
  const auto work = options.run.notices.BeginWork(DescribeReading(DataOf(options.run)));
  if (!options.has_data) {
    ASSIGN_OR_RETURN(TrainTest data, LoadData(source));
    task.data = std::move(data.test);
    task.encoding = std::move(data.encoding);
    const bool is_known = manifest.encoding != DataEncoding();
    if (is_known && !task.encoding.EncodesAs(manifest.encoding)) {
      return base::DataError(
          absl::StrCat(DataOf(options.run),
                       " is not what the model was trained on: its columns, classes or "
                       "statistics differ; to predict all that is in it now, name it with --data"));
    }
  } else if (task.wants_scores && HoldsChats(source.spec)) {
    ASSIGN_OR_RETURN(const std::vector<std::string> files, DataFilesOf(source.spec));
    if (files.size() > 1) {
      return base::UsageError(absl::StrCat("--scores has a line for each of one file, and ",
                                           source.spec, " names ", files.size(),
                                           ": score them one by one"));
    }
    ASSIGN_OR_RETURN(ChatSamples samples,
                     LoadChatLines(source.spec, source.tokens, manifest.encoding, nullptr));
    task.data = std::move(samples.data);
    task.lines = std::move(samples.lines);
    task.encoding = manifest.encoding;
  } else {
    ASSIGN_OR_RETURN(task.data, LoadSamples(source, manifest.encoding, manifest.outputs()));
    task.encoding = manifest.encoding;
  }
  RETURN_IF_ERROR(CheckFitsModel(DataOf(options.run), *task.data, manifest));
  if (options.given.contains("--label") && !task.has_labels()) {
    return base::DataError(
        absl::StrCat(DataOf(options.run), " has no labels, but --label names them"));
  }
  return task;
}

// OK if the plan fits the machine, with the outputs of all micro-batches in host memory: where the
// last stages put them, and in order.
absl::Status CheckFitsHere(const PredictConfig& options, const PreparedRun& run,
                           const ModelProfile& profile) {
  const int64_t rows = options.scores.empty() ? run.plan().batch_rows() : 0;
  const int64_t values = rows * profile.output.elements();
  return CheckHasRoom(options.run, run, {.output_bytes = 2 * values * int64_t{sizeof(float)}});
}

// With as many micro-batches at a time as memory allows, so that the pipeline is seldom empty.
// Where "--device auto" has found too few GPUs, `options` name CPU devices from then on, so that it
// says so once.
absl::StatusOr<PreparedRun> PlanOver(PredictConfig& options, const Model& model, int64_t rows,
                                     int stages) {
  constexpr int kMostPerStage = 64;  // the pipeline is then empty for a 64th of the time
  RunConfig run = options.run;
  const int devices = stages * run.replicas;
  if (!options.has_threads) {
    ASSIGN_OR_RETURN(run.device, ShareProcessors(run, devices));
  }
  ASSIGN_OR_RETURN(const DeviceSpec device, ChooseDevices(run, devices));
  if (device.kind == DeviceKind::kCpu) {
    options.run.device.UseCpu();
  }
  PlanOptions plan = {.devices = stages,
                      .replication = {run.replicas, run.replicas},
                      .predicts = true,
                      .micro_batch_rows = *options.micro_batch_rows,
                      .device = device,
                      .exchange = ExchangeOf(run.device, device)};
  plan.results = ResultsOf(run, plan.replication);
  ASSIGN_OR_RETURN(const ModelProfile profile,
                   OnDevices(device, AnalyzeModel(model, ProfileOptionsOf(plan))));
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
    absl::StatusOr<PreparedRun> prepared = PrepareRun(model, profile, plan);
    const absl::Status fits =
        prepared.ok() ? CheckFitsHere(options, *prepared, profile) : prepared.status();
    if (fits.ok()) return prepared;
    if (count == 1 || !IsLackOfMemory(fits)) return fits;
    count = (count + 1) / 2;
    plan.micro_batches = count * run.replicas;
  }
}

// Over the fewest devices that have enough memory, unless their number is given.
absl::StatusOr<PreparedRun> PlanForward(PredictConfig options, const Model& model, int64_t rows) {
  if (options.run.devices_left.has_value()) {
    options.run.replicas = 1;
    return PlanOver(options, model, rows, *options.run.devices_left);
  }
  if (options.run.stages.has_value()) return PlanOver(options, model, rows, *options.run.stages);
  return OverFewestDevices(model.num_layers(),
                           [&](int stages) { return PlanOver(options, model, rows, stages); });
}

absl::StatusOr<std::unique_ptr<Trainer>> CreateTrainer(const PredictConfig& options,
                                                       PreparedRun prepared, int64_t rows,
                                                       const ProcessGroup& group) {
  const DeviceSpec device = prepared.device;
  const Optimizer optimizer = prepared.optimizer;
  return OnDevices(
      device, Trainer::Create(std::move(prepared),
                              {.optimizer = optimizer,
                               .draws_parameters = false,
                               .device = device,
                               .exchange = ExchangeOf(options.run.device, device),
                               .rendezvous = group.rendezvous.get(),
                               .fingerprint = absl::StrCat("rows to predict: ", rows, "\n"),
                               .deadline = absl::Seconds(options.run.deadline_seconds),
                               .recorders = FindRecorders(group.launch, options.run.notices)}));
}

// What would otherwise surface after the work.
absl::Status CheckFiles(const PredictConfig& options) {
  for (const std::string& path : {options.outputs, options.classes}) {
    if (path.empty()) continue;
    RETURN_IF_ERROR(PredictionFormat::Create(path, {}).status());
    RETURN_IF_ERROR(base::CheckWritable(path));
  }
  if (options.scores.empty()) return absl::OkStatus();
  if (!options.outputs.empty() || !options.classes.empty()) {
    return base::UsageError("--scores excludes --outputs and --classes");
  }
  if (options.micro_batch_rows.value_or(1) != 1) {
    return base::UsageError("--scores takes each sample as a micro-batch: --microbatch-rows is 1");
  }
  RETURN_IF_ERROR(CheckScoresName(options.scores));
  return base::CheckWritable(options.scores);
}

void AddFiles(const PredictConfig& options, PredictionTask& task) {
  using Content = PredictionLayout::Content;
  for (const auto& [path, content] : {std::pair(&options.outputs, Content::kOutputs),
                                      std::pair(&options.classes, Content::kClasses)}) {
    if (!path->empty()) task.files.push_back({*path, content});
  }
  task.scores = options.scores;
}

// Returns an error if the configuration asks for what the model does not have.
absl::Status CheckWanted(const PredictConfig& config, const PredictHooks& hooks,
                         const Manifest& manifest, const PredictionTask& task) {
  if (task.wants_scores) {
    return task.has_labels() ? absl::OkStatus()
                             : base::DataError(absl::StrCat(
                                   DataOf(config.run), " has no targets, which --scores needs"));
  }
  if (manifest.output.rank() > 1 && !config.classes.empty()) {
    return base::UsageError(
        absl::StrCat("--classes: the model gives outputs of shape ", manifest.output.ToString(),
                     " for a row, and so not one class; --outputs has them all"));
  }
  if (manifest.encoding.labels_are_numbers() && !config.classes.empty()) {
    return base::UsageError("--classes: the model predicts numbers, which --outputs writes");
  }
  if (!task.has_labels() && config.outputs.empty() && config.classes.empty() &&
      hooks.on_outputs == nullptr) {
    return base::UsageError(
        "the data has no labels to compare with: name a file for what is predicted, "
        "with --outputs or --classes");
  }
  return absl::OkStatus();
}

// `group`: the processes of the run; it has no rendezvous if there is one process.
absl::StatusOr<Prediction> PredictOnDevices(const PredictConfig& config, const PredictHooks& hooks,
                                            const Checkpoint& checkpoint,
                                            const ProcessGroup& group) {
  Rendezvous* const rendezvous = group.rendezvous.get();
  const Manifest& manifest = checkpoint.manifest();
  RETURN_IF_ERROR(CheckMayScore(config, manifest));
  ASSIGN_OR_RETURN(PredictionTask task, LoadTask(config, manifest));
  PredictionObserver* const observer =
      rendezvous == nullptr || rendezvous->rank() == 0 ? hooks.observer : nullptr;
  if (rendezvous == nullptr || rendezvous->rank() == 0) AddFiles(config, task);
  RETURN_IF_ERROR(CheckWanted(config, hooks, manifest, task));
  ASSIGN_OR_RETURN(const Model model,
                   MakeModel(config.run, config.run.model_text,
                             {.input = manifest.input,
                              .vocabulary = manifest.encoding.vocabulary,
                              .classes = manifest.outputs(),
                              .has_numbers = manifest.encoding.labels_are_numbers()}));
  const int64_t rows = task.data->rows();
  ASSIGN_OR_RETURN(
      PreparedRun prepared,
      WithFallBack(config.run.device, config.run.notices, [&](const DeviceChoice& device) {
        PredictConfig on_device = config;
        on_device.run.device = device;
        return PlanForward(std::move(on_device), model, rows);
      }));
  if (const LossSpec& loss = prepared.profile.loss_spec;
      task.wants_scores && !loss.is_log_likelihood) {
    return base::UsageError(absl::StrCat("--scores: the loss of the model is ", loss.description,
                                         ", and no log-likelihood"));
  }
  if (hooks.on_planned != nullptr) hooks.on_planned();
  ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer,
                   CreateTrainer(config, std::move(prepared), rows, group));
  RETURN_IF_ERROR(trainer->Restore(checkpoint.path()).status());
  if (observer != nullptr) {
    observer->Start(checkpoint, *trainer, task);
    task.on_rows = [&](int64_t done) { observer->Progress(done); };
  }
  task.on_outputs = hooks.on_outputs;
  task.is_stopped = [&] {
    return config.run.wants_stop != nullptr && config.run.wants_stop() != 0;
  };
  absl::StatusOr<Prediction> prediction =
      task.wants_scores ? ScoreAll(*trainer, task) : PredictAll(*trainer, task);
  // Before the trainer is destroyed, which parts from ranks that may still wait for this one.
  if (!prediction.ok() && rendezvous != nullptr) {
    rendezvous->Fail(prediction.status(),
                     base::Deadline::After(absl::Seconds(config.run.deadline_seconds)));
  }
  RETURN_IF_ERROR(prediction.status());
  ASSIGN_OR_RETURN(const std::vector<DeviceReport> devices, trainer->Devices());
  if (observer != nullptr) observer->End(task, *prediction, devices);
  return prediction;
}

// Finds the checkpoint and completes the configuration with what it says.
absl::StatusOr<Checkpoint> FindModel(const PredictHooks& hooks, PredictConfig& config) {
  RETURN_IF_ERROR(CheckFiles(config));
  ASSIGN_OR_RETURN(Checkpoint checkpoint, OpenCheckpoint(config.checkpoint, config.run.notices));
  const Manifest& manifest = checkpoint.manifest();
  if (hooks.complete != nullptr) RETURN_IF_ERROR(hooks.complete(manifest, config));
  config.run.model_text = manifest.model_source;
  ASSIGN_OR_RETURN(config.run.cluster, ReadCluster(config.run));
  if (!config.micro_batch_rows.has_value()) {
    config.micro_batch_rows = config.scores.empty() ? manifest.plan.plan.micro_batch_rows : 1;
  }
  return checkpoint;
}

}  // namespace

absl::StatusOr<Prediction> Predict(PredictConfig config, const PredictHooks& hooks) {
  ASSIGN_OR_RETURN(const std::optional<Launch> launch, FindLaunch());
  const absl::StatusOr<Checkpoint> checkpoint = FindModel(hooks, config);
  if (!launch.has_value()) {
    RETURN_IF_ERROR(checkpoint.status());
    return PredictOnDevices(config, hooks, *checkpoint, {});
  }
  absl::StatusOr<Prediction> prediction = absl::UnknownError("");
  RETURN_IF_ERROR(RunAsRank(*launch, config.run, checkpoint.status(), hooks.on_refused,
                            [&](const RunConfig& run, const ProcessGroup& group) {
                              PredictConfig own = config;
                              own.run = run;
                              prediction = PredictOnDevices(own, hooks, *checkpoint, group);
                              return prediction.status();
                            }));
  return prediction;
}

}  // namespace stagecoach::engine
