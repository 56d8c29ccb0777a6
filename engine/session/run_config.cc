#include "engine/session/run_config.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/error_class.h"
#include "base/parallel.h"
#include "base/status_macros.h"
#include "base/text/units.h"
#include "engine/session/machine/machine.h"
#include "engine/session/plan_choice.h"
#include "engine/session/training.h"
#include "partition/io/cluster_file.h"
#include "partition/plan/plan_evaluation.h"

namespace stagecoach::engine {
namespace {

// `asked`: the rows of a batch; nullopt: as many as suit the data.
absl::Status CheckRows(const RunConfig& options, const Dataset& train,
                       std::optional<int64_t> asked) {
  const int64_t batch_rows = asked.value_or(
      DefaultBatch(train.rows(), options.micro_batches.value_or(kDefaultMicroBatches)));
  if (train.rows() >= batch_rows) return absl::OkStatus();
  const bool is_limited = options.rows.value_or(0) > 0;
  return absl::InvalidArgumentError(
      absl::StrCat("the training data has ", train.rows(), " rows",
                   is_limited ? absl::StrCat(" (", RowsFlag(options), ")") : "",
                   ", less than one batch of ", batch_rows, ": use more rows or a smaller batch"));
}

absl::StatusOr<TrainingRun> MakeRunOnDevices(const RunConfig& options) {
  TrainingRun run;
  ASSIGN_OR_RETURN(
      run.prepared,
      ChoosePlan(options, [&](std::optional<int64_t> batch_rows) -> absl::StatusOr<PlannedModel> {
        ASSIGN_OR_RETURN(Workload workload, PrepareWorkload(options));
        RETURN_IF_ERROR(CheckRows(options, *workload.data.train, batch_rows));
        run.data = std::move(workload.data);
        run.model_text = std::move(workload.model_text);
        return PlannedModel{std::move(workload.model), workload.optimizer, run.data.train->rows()};
      }));
  RETURN_IF_ERROR(CheckGpusHaveRoom(options, run.prepared));
  const int64_t steps = StepsOf(options, run);
  if (options.traced_step.value_or(0) > steps) {
    return base::UsageError(absl::StrCat("--trace-step is ", *options.traced_step,
                                         ", but the run has ", steps, " steps in all"));
  }
  ASSIGN_OR_RETURN(run.learning_rate,
                   LearningRateOf(options, NetworkFeaturesOf(*run.data.train), steps));
  return run;
}

}  // namespace

std::string RowsFlag(const RunConfig& options) {
  const bool is_saved = absl::c_linear_search(options.taken, "--train-samples");
  return absl::StrCat("--train-samples is ", *options.rows, is_saved ? ", in the checkpoint" : "");
}

int64_t DefaultBatch(int64_t rows, int64_t micro_batches) {
  constexpr int64_t kUsual = 128, kSteps = 8;
  int64_t batch = kUsual;
  while (rows > 0 && batch > 1 && batch * kSteps > rows) batch /= 2;
  return micro_batches * std::max<int64_t>(1, batch / micro_batches);
}

absl::Status CheckBatch(int64_t batch, int64_t micro_batches) {
  if (micro_batches < 1) {
    return base::UsageError(
        absl::StrCat("--micro-batches is ", micro_batches, ", expected at least 1"));
  }
  const int64_t rest = batch % micro_batches;
  if (rest == 0) return absl::OkStatus();
  const int64_t below = batch - rest;
  const int64_t above = below + micro_batches;
  return absl::InvalidArgumentError(absl::StrFormat(
      "a batch of %d rows does not divide into %d equal micro-batches: use --global-batch-size %d",
      batch, micro_batches, below > 0 && rest <= micro_batches / 2 ? below : above));
}

double CoresFor(const DeviceSpec& device) {
  if (device.kind != DeviceKind::kCpu) return std::numeric_limits<double>::infinity();
  if (device.are_alike()) return base::AvailableCpus() / static_cast<double>(device.threads);
  int threads = 0;
  for (int i = 0; i < device.cluster.size(); ++i) threads += device.threads_of(i);
  return base::AvailableCpus() * static_cast<double>(device.cluster.size()) / threads;
}

std::string DescribeMeasuring(absl::Span<const int64_t> micro_batch_rows) {
  return absl::StrCat("measures the layers, with micro-batches of ",
                      absl::StrJoin(micro_batch_rows, ", "),
                      micro_batch_rows == absl::Span<const int64_t>({1}) ? " row" : " rows");
}

int DevicesAtOnce(int devices, const DeviceSpec& device) {
  if (device.kind != DeviceKind::kCpu) return 1;
  return std::clamp(InspectMachine().processors / device.threads, 1, devices);
}

absl::Status CheckCanMeasure(const std::vector<partition::LayerCost>& layers,
                             const DeviceSpec& device) {
  if (device.kind != DeviceKind::kCpu) return absl::OkStatus();
  int64_t needed_bytes = 0;
  for (const partition::LayerCost& layer : layers) {
    needed_bytes +=
        2 * layer.memory.parameter_bytes + layer.memory.optimizer_bytes + layer.memory.frozen_bytes;
  }
  const int64_t memory_bytes = InspectMachine().memory_bytes;
  if (memory_bytes == 0 || needed_bytes <= memory_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "to measure the layers, all are trained at once, which takes ",
      base::FormatBytes(needed_bytes), "; this machine has ", base::FormatBytes(memory_bytes),
      ": use estimated times, or measure a model of fewer layers"));
}

schedule::ResultsPlace ResultsOf(const RunConfig& options,
                                 const partition::Replication& replication) {
  if (!options.is_process()) return schedule::ResultsPlace::kNowhere;
  const bool has_living_copies = replication.replicas > 1 && !replication.shards_optimizer;
  return options.is_supervised && has_living_copies ? schedule::ResultsPlace::kBeforeSteps
                                                    : schedule::ResultsPlace::kEnd;
}

absl::StatusOr<DeviceChoice> ShareProcessors(const RunConfig& options, int devices) {
  ASSIGN_OR_RETURN(const std::optional<partition::Cluster> cluster, ReadCluster(options));
  DeviceChoice choice = options.device;
  choice.threads = cluster.has_value() && NamesThreads(*cluster)
                       ? DeviceChoice().threads
                       : std::max(1, InspectMachine().processors / devices);
  return choice;
}

absl::StatusOr<DeviceSpec> ChooseDevices(const RunConfig& options, int devices) {
  ASSIGN_OR_RETURN(const std::optional<partition::Cluster> cluster, ReadCluster(options));
  if (cluster.has_value()) {
    DeviceSpec any;  // what is wrong with the cluster comes first
    RETURN_IF_ERROR(SetCluster(options, *cluster, devices, any));
  }
  ASSIGN_OR_RETURN(DeviceSpec device, Resolve(options.device, devices, options.notices));
  device.memory_bytes = options.device_memory_bytes;
  if (cluster.has_value()) RETURN_IF_ERROR(SetCluster(options, *cluster, devices, device));
  return device;
}

absl::Status SetCluster(const RunConfig& options, const partition::Cluster& cluster, int devices,
                        DeviceSpec& device) {
  const std::string name = NameOfCluster(options);
  if (cluster.size() < devices) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, " has ", partition::Counted(cluster.size(), "device"), ", and the run takes ",
        devices, ": name fewer with --devices, or describe more"));
  }
  if (NamesThreads(cluster) && options.device.threads != DeviceChoice().threads) {
    return base::UsageError(absl::StrCat("--threads-per-device is ", options.device.threads,
                                         ", but ", name, " says the threads of its devices"));
  }
  device.cluster = cluster;
  return base::Annotate(CheckClusterOf(device, devices), name);
}

absl::StatusOr<std::optional<partition::Cluster>> ReadCluster(const RunConfig& options) {
  if (options.cluster.has_value() || options.cluster_file.empty()) return options.cluster;
  return partition::ReadClusterFile(options.cluster_file);
}

bool NamesThreads(const partition::Cluster& cluster) {
  return absl::c_any_of(cluster.devices, [](const auto& device) { return device.threads > 0; });
}

std::string NameOfCluster(const RunConfig& options) {
  return options.cluster_file.empty() ? "the cluster" : options.cluster_file;
}

// Before anything is created on GPUs: other programs may use their memory, too.
absl::Status CheckGpusHaveRoom(const RunConfig& options, const PreparedRun& run) {
  std::vector<int64_t> bytes(static_cast<size_t>(run.plan().num_devices()));
  for (int device = 0; device < run.plan().num_devices(); ++device) {
    const schedule::Rank rank(device / run.plan().devices_of_rank());
    const bool is_here = !options.is_process() || *options.rank == device;
    if (is_here) bytes[static_cast<size_t>(device)] = run.compiled.of(rank).peak_bytes();
  }
  return CheckGpuMemory(run.device, bytes);
}

absl::StatusOr<TrainingRun> MakeRun(const RunConfig& options) {
  return WithFallBack(options.device, options.notices, [&](const DeviceChoice& device) {
    RunConfig on_device = options;
    on_device.device = device;
    return MakeRunOnDevices(on_device);
  });
}

}  // namespace stagecoach::engine
