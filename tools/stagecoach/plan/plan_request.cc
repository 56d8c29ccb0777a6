#include "tools/stagecoach/plan/plan_request.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "base/text/line.h"
#include "base/text/units.h"
#include "engine/nn/block_order.h"
#include "engine/runtime/rank_group.h"
#include "engine/runtime/stage/profile.h"
#include "engine/train/measured_profile.h"
#include "partition/cost/device_groups.h"
#include "partition/io/cluster_file.h"
#include "partition/io/csv_profile.h"
#include "partition/io/pipedream_profile.h"
#include "partition/io/profile_file.h"
#include "partition/io/transformer_file.h"
#include "schedule/io/asked_schedule.h"
#include "schedule/io/schedule_file.h"
#include "tools/stagecoach/flags/add_flag.h"
#include "tools/stagecoach/flags/run_flags.h"
#include "tools/stagecoach/terminal/slow_notice.h"
#include "tools/stagecoach/values/flag_values.h"
#include "tools/stagecoach/values/flags.h"
#include "tools/stagecoach/values/schedule_option.h"

namespace stagecoach::tools {
namespace {

using partition::Cluster;
using partition::ModelOption;
using partition::PlannerRequest;
using partition::Profile;

constexpr int64_t kMaxPlannedBatch = int64_t{1} << 30;
constexpr int kMaxPlanned = 1 << 20;
constexpr int64_t kDefaultModelBatch = 128;
// The number of micro-batches for each device if there is no number of samples to divide.
constexpr int64_t kMicroBatchesPerDevice = 4;
constexpr int64_t kMostMicroBatches = 64;  // into which the batch of a model is divided
constexpr size_t kMostMeasured = 3;        // sizes, since that takes seconds each

bool IsProfileFile(const PlanFlags& flags) {
  return flags.profile != "analytic" && flags.profile != "measured";
}

// Hugging Face's name of the file that describes a model.
bool IsConfigOfTransformer(const std::string& path) {
  return std::filesystem::path(path).filename() == "config.json";
}

// Returns the name of the file, or of the folder of a config.json.
std::string NameOfTransformer(const std::string& path) {
  const std::filesystem::path file = base::InputName(path);
  const std::string folder = file.parent_path().filename().string();
  return IsConfigOfTransformer(path) && !folder.empty() ? folder : file.stem().string();
}

// Returns the options of the model that a file describes.
absl::StatusOr<std::vector<ModelOption>> ReadOptions(const PlanFlags& flags,
                                                     const Cluster& cluster) {
  const std::string& path = flags.profile;
  const std::string lower = absl::AsciiStrToLower(path);
  const bool is_stream = base::IsStream(path);
  const auto is = [&](const char* format, const char* ending) {
    if (flags.format.empty() && is_stream) return absl::string_view(format) == "stagecoach";
    return flags.format.empty() ? absl::EndsWith(lower, ending) : flags.format == format;
  };
  const auto only =
      [&](absl::StatusOr<Profile> profile) -> absl::StatusOr<std::vector<ModelOption>> {
    if (!profile.ok()) return profile.status();
    return std::vector<ModelOption>{{"", *std::move(profile), cluster}};
  };
  if (is("transformer", ".toml") || (flags.format.empty() && IsConfigOfTransformer(path))) {
    ASSIGN_OR_RETURN(const partition::TransformerDescription description,
                     partition::ReadTransformer(path));
    absl::StatusOr<std::vector<ModelOption>> options =
        partition::TransformerOptions(description, NameOfTransformer(path), cluster);
    if (!options.ok()) return base::InFile(options.status(), path);
    return options;
  }
  if (is("stagecoach", ".json")) return only(partition::ReadProfileFile(path));
  if (is("csv", ".csv")) return only(partition::ReadCsvProfile(path));
  if (is("pipedream", ".txt")) return only(partition::ReadPipedreamProfile(path));
  return base::DataError(absl::StrCat(
      path,
      ": unknown kind of profile; expected analytic, measured, a file that ends in .json, .csv, "
      ".toml or .txt, a config.json, or --format stagecoach, csv, transformer or pipedream"));
}

// Returns micro-batch sizes for a batch: all that divide it into a sensible number, or the
// requested one.
absl::StatusOr<std::vector<int64_t>> SizesFor(const PlanFlags& flags, int64_t batch,
                                              std::optional<int64_t> micro_batches) {
  if (micro_batches.has_value()) {
    RETURN_IF_ERROR(engine::CheckBatch(batch, *micro_batches));
    return std::vector<int64_t>{batch / *micro_batches};
  }
  std::vector<int64_t> sizes;
  for (int64_t count = std::min(kMostMicroBatches, batch); count >= 1; --count) {
    if (batch % count == 0) sizes.push_back(batch / count);
  }
  if (flags.profile == "measured" && sizes.size() > kMostMeasured) {
    // The sizes kept have about as many micro-batches as pipelines use: neither the smallest nor
    // the whole.
    const auto middle = static_cast<ptrdiff_t>((sizes.size() - kMostMeasured) / 2);
    sizes = {sizes.begin() + middle, sizes.begin() + middle + kMostMeasured};
  }
  return sizes;
}

// Returns the device for a measurement of layers that devices share, of which each has a core or a
// GPU of its own here.
absl::StatusOr<engine::DeviceSpec> DeviceToMeasure(const engine::RunConfig& run,
                                                   engine::DeviceSpec device) {
  if (device.kind != engine::DeviceKind::kCpu) {
    engine::DeviceChoice choice = run.device;
    choice.kind = "cuda";
    ASSIGN_OR_RETURN(const engine::DeviceSpec all, Resolve(choice, run.tensor_parts, run.notices));
    device.gpus = all.gpus;
    return device;
  }
  const int cores = engine::DevicesAtOnce(run.tensor_parts, device);
  if (cores == run.tensor_parts) return device;
  return absl::InvalidArgumentError(absl::StrCat(
      "to measure layers that ", run.tensor_parts,
      " devices share takes as many at once, and here ",
      cores == 1 ? "is one" : absl::StrCat("are ", cores), ": estimate times instead"));
}

// `run`: the model, and how many devices share its layers.
absl::StatusOr<Profile> ProfileModel(const PlanFlags& flags, const engine::RunConfig& run,
                                     engine::DeviceSpec device, int64_t batch, int devices,
                                     std::optional<int64_t> micro_batches) {
  const int tensor_parts = run.tensor_parts;
  if (tensor_parts > 1 && flags.profile == "measured") {
    ASSIGN_OR_RETURN(device, DeviceToMeasure(run, std::move(device)));
  }
  ASSIGN_OR_RETURN(const std::vector<int64_t> sizes, SizesFor(flags, batch, micro_batches));
  ASSIGN_OR_RETURN(const engine::PlannedModel planned, PrepareModel(run));
  const engine::ProfileOptions options = {
      .optimizer = planned.optimizer, .device = device, .tensor_parts = tensor_parts};
  const std::string name = NameOfModel(flags.run);
  std::optional<SlowNotice> notice;
  if (flags.profile == "measured") notice.emplace(engine::DescribeMeasuring(sizes));
  if (flags.profile != "measured") return AnalyzeProfile(planned.model, name, sizes, options);
  ASSIGN_OR_RETURN(Profile measured,
                   MeasureProfile(planned.model, name, sizes, options,
                                  {.devices = engine::DevicesAtOnce(devices, device)}));
  notice.reset();
  if (flags.offload != 0.0 || flags.offloads_optimizer) {
    ASSIGN_OR_RETURN(measured.overheads.host_link, engine::MeasureHostLink(device));
  }
  return measured;
}

// Sets the time of messages and of copies to the host, unless --cluster describes them: the devices
// are then taken for those that the profile was measured on.
void SetMessageTime(const PlanFlags& flags, const Profile& profile, Cluster& cluster) {
  if (!flags.cluster.empty()) return;
  cluster.within_host.latency_ns = std::llround(profile.overheads.message_ns);
  cluster.host_link = profile.overheads.host_link;
}

// Returns the numbers of devices that may share the layers of a model.
std::vector<int> TensorPartsFor(const PlanFlags& flags, int devices) {
  if (flags.tensor_parts.has_value()) return {*flags.tensor_parts};
  const int most = flags.run.tensor_blocks.value_or(engine::kMostTensorBlocks);
  std::vector<int> all;
  for (int parts = 1; parts <= most && devices % parts == 0; parts *= 2) all.push_back(parts);
  return all;
}

// Calls `profile` for each number of devices that may share layers (RunConfig::tensor_parts), and
// returns the options of which the planner chooses. Where the number is open, a notice says from
// which one on the model or the devices do not allow it.
absl::StatusOr<std::vector<ModelOption>> ShareLayers(
    const PlanFlags& flags, const Cluster& cluster,
    absl::FunctionRef<absl::StatusOr<Profile>(const engine::RunConfig&)> profile) {
  std::vector<ModelOption> options;
  for (const int parts : TensorPartsFor(flags, cluster.size())) {
    engine::RunConfig run = flags.run;
    run.tensor_parts = parts;
    if (!options.empty()) run.notices = {};  // they have been told
    const auto share = [&]() -> absl::Status {
      absl::StatusOr<partition::GroupedCluster> grouped =
          GroupDevices(cluster, parts, /*message_parts=*/1);
      if (!grouped.ok()) return base::Annotate(grouped.status(), "--tensor");
      partition::GroupedCluster& groups = *grouped;
      ASSIGN_OR_RETURN(Profile own, profile(run));
      SetMessageTime(flags, own, groups.cluster);
      options.push_back({.name = absl::StrCat("tensor parallelism ", parts),
                         .profile = WithExchangeTimes(std::move(own), parts, groups.within),
                         .cluster = std::move(groups.cluster),
                         .tensor_parts = parts});
      return absl::OkStatus();
    };
    const absl::Status shared = share();
    if (shared.ok()) continue;
    const bool is_option = absl::IsInvalidArgument(shared) || absl::IsUnavailable(shared);
    if (options.empty() || !is_option) return shared;
    flags.run.notices.Tell(
        absl::StrCat("--tensor auto: no ", parts, " devices share layers: ", shared.message()));
    break;
  }
  if (options.size() == 1 && options.front().tensor_parts == 1) options.front().name.clear();
  return options;
}

absl::StatusOr<Cluster> ClusterOf(const PlanFlags& flags, int64_t usual_devices) {
  if (flags.cluster.empty()) {
    const auto devices = std::min<int64_t>(usual_devices, partition::kMaxDevices);
    return partition::UniformCluster(flags.devices.value_or(static_cast<int>(devices)),
                                     flags.device_memory_bytes);
  }
  ASSIGN_OR_RETURN(Cluster cluster, partition::ReadClusterFile(flags.cluster));
  if (flags.devices.has_value() && *flags.devices != cluster.size()) {
    return absl::InvalidArgumentError(absl::StrCat("--devices is ", *flags.devices, ", but ",
                                                   flags.cluster, " has ", cluster.size()));
  }
  for (partition::ClusterDevice& device : cluster.devices) {
    if (device.memory_bytes == 0) device.memory_bytes = flags.device_memory_bytes;
  }
  return cluster;
}

// How `train` would perform transfers between devices of that kind.
schedule::Transfers TransfersBetween(int devices, engine::DeviceSpec device,
                                     const engine::DeviceChoice& choice) {
  // A plan for many GPUs can be made on one: others than those that are named are not there.
  if (static_cast<int>(device.gpus.size()) < devices) device.gpus.clear();
  return engine::TransfersOf(
      {.ranks = devices, .device = device, .exchange = ExchangeOf(choice, device)});
}

// Returns a parser of a number, by `parse`, or "auto", which leaves it open.
template <typename Parse>
auto OrAuto(Parse parse) {
  return [parse](const std::string& text) -> absl::StatusOr<std::optional<int>> {
    if (text == "auto") return std::optional<int>();
    const absl::StatusOr<int> number = parse(text);
    if (number.ok()) return std::optional<int>(*number);
    return absl::InvalidArgumentError(absl::StrCat(number.status().message(), ", or \"auto\""));
  };
}

absl::StatusOr<partition::PlanObjective> ParseObjective(const std::string& name) {
  RETURN_IF_ERROR(ParseChoice(name, {"step", "bottleneck"}).status());
  return name == "step" ? partition::PlanObjective::kStep : partition::PlanObjective::kBottleneck;
}

void AddProfileFlags(CLI::App& app, PlanFlags& flags) {
  const std::string group = "Profile";
  app.add_option("--profile", flags.profile,
                 "analytic or measured, or a file instead of a model [analytic]")
      ->option_text("NAME|FILE")
      ->group(group);
  AddFlag(app, "--format", "NAME", flags.format,
          "Its format: stagecoach, csv, transformer, pipedream [by extension]",
          [](const std::string& name) {
            return ParseChoice(name, {"stagecoach", "csv", "transformer", "pipedream"});
          })
      ->group(group);
}

void AddDeviceFlags(CLI::App& app, PlanFlags& flags) {
  const std::string group = "Devices";
  AddFlag(app, "--devices,--stages", "N", flags.devices,
          absl::StrCat("Devices to plan for [", engine::kDefaultStages, "]"),
          [](const std::string& text) { return ParseCount(text, 1, partition::kMaxDevices); })
      ->group(group);
  app.add_option("--cluster", flags.cluster,
                 "Speeds, memory and links of the devices (docs/planner.md)")
      ->option_text("FILE.toml")
      ->group(group);
  AddFlag(app, "--device-memory", "SIZE", flags.device_memory_bytes,
          "Memory limit of devices without one of their own, such as 600MB [none]", ParseMemory)
      ->group(group);
}

void AddChoiceFlags(CLI::App& app, PlanFlags& flags) {
  const std::string group = "What the planner may choose";
  AddFlag(app, "--schedule", "NAME|FILE", flags.schedule,
          "Pipeline schedule: see simulate --help, or auto for any [auto]", ParseScheduleOption)
      ->group(group);
  AddFlag(app, "--chunks", "N|auto", flags.chunks,
          "Virtual stages (model chunks) per device [auto]", OrAuto(IntIn(1, kMaxPlanned)))
      ->group(group);
  AddFlag(app, "--global-batch-size", "N", flags.batch,
          absl::StrCat("Samples per step [", kDefaultModelBatch,
                       "; files: ", kMicroBatchesPerDevice, " large micro-batches per device]"),
          [](const std::string& text) { return ParseCount(text, 1, kMaxPlannedBatch); })
      ->group(group);
  AddFlag(app, "--micro-batches", "N|auto", flags.micro_batches,
          "Micro-batches per step [auto: by the sizes in the profile]",
          OrAuto(IntIn(1, kMaxPlanned)))
      ->group(group);
  AddFlag(app, "--replicas", "N|auto", flags.replicas, "Data-parallel copies of the model [1]",
          OrAuto(IntIn(1, kMaxPlanned)))
      ->group(group);
  AddFlag(app, "--tensor", "N|auto", flags.tensor_parts,
          "Devices that share the layers of each stage (tensor parallelism) [1]",
          OrAuto(PowerOfTwoUpTo(engine::kMostTensorBlocks)))
      ->group(group);
  AddFlag(app, "--tensor-blocks", "N", flags.run.tensor_blocks,
          "Blocks of layers that are shared, which decide the bits [--tensor]",
          PowerOfTwoUpTo(engine::kMostTensorBlocks))
      ->group(group);
  AddFlag(app, "--gradient-blocks", "N", flags.gradient_blocks,
          "Parts of a batch whose gradients are summed in a binary tree [replicas]",
          [](const std::string& text) { return ParseCount(text, 1, kMaxPlanned); })
      ->group(group);
  app.add_flag("--shard-optimizer", flags.shards_optimizer,
               "Shard the optimizer state over the replicas (ZeRO-1)")
      ->group(group);
  AddFlag(app, "--reduction", "tree|ring", flags.reduction,
          "Gradient sum: fixed tree, or the library's all-reduce (other bits) [tree]",
          partition::ParseReductionKind)
      ->group(group);
  AddFlag(app, "--recompute", "auto|none|full", flags.recompute,
          "Activation recomputation [auto: where memory is short]",
          [](const std::string& text) {
            return ParseChoice(text, {"auto", "none", "full"});
          })
      ->group(group);
  AddFlag(app, "--offload", "SHARE|auto", flags.offload,
          "Stashes moved to host memory: none, full, 0 to 1, auto: if faster [none]",
          [](const std::string& text) -> absl::StatusOr<std::optional<double>> {
            if (text == "auto") return std::nullopt;
            ASSIGN_OR_RETURN(const double share, ParseOffload(text));
            return share;
          })
      ->group(group);
  app.add_flag("--offload-optimizer", flags.offloads_optimizer,
               "Keep the optimizer state in host memory, which updates read and write")
      ->group(group);
  app.add_flag("--all-devices", flags.uses_all_devices,
               "Use all devices, even where fewer would be faster")
      ->group(group);
  AddFlag(app, "--objective", "NAME", flags.objective,
          "What to minimize: step, or bottleneck (if steps overlap) [step]", ParseObjective)
      ->group(group);
}

}  // namespace

void AddPlanRequestFlags(CLI::App& app, PlanFlags& flags) {
  AddModelFlags(app, flags.run);
  std::vector<CLI::Option*> of_models = app.get_options([](const CLI::Option* option) {
    if (option->get_lnames().empty()) return false;
    const std::string& name = option->get_lnames().front();
    return name != "help" && name != "exchange";
  });
  // A plan may be for another machine.
  app.get_option("--device")
      ->description("cpu, cuda (needs one GPU), or auto: cuda if there is one [cpu]");
  app.get_option("--gpus")->description(
      "GPU of each device; the first must exist here [0,1,2,...]");
  AddProfileFlags(app, flags);
  AddDeviceFlags(app, flags);
  AddChoiceFlags(app, flags);
  for (const char* flag : {"--tensor", "--tensor-blocks"}) {
    of_models.push_back(app.get_option(flag));
  }
  // These flags would not change what a file says about the layers.
  app.final_callback([&flags, of_models] {
    for (const CLI::Option* option : of_models) {
      if (IsProfileFile(flags) && option->count() > 0) {
        throw CLI::ExcludesError(option->get_name(), "--profile " + flags.profile);
      }
    }
  });
}

namespace {

// Adds a second form of each option, with all stashes moved to the host, if that is open and memory
// has limits, without which it gains nothing.
void AddOffloadOptions(const PlanFlags& flags, std::vector<ModelOption>& options) {
  if (flags.offload.has_value()) return;
  const size_t kept = options.size();
  for (size_t i = 0; i < kept; ++i) {
    if (!options[i].cluster.limits_memory()) continue;
    ModelOption moved = options[i];
    moved.offload = 1.0;
    const absl::string_view comma = moved.name.empty() ? "" : ", ";
    absl::StrAppend(&options[i].name, comma, "stashes on the devices");
    absl::StrAppend(&moved.name, comma, "stashes in host memory");
    options.push_back(std::move(moved));
  }
}

}  // namespace

absl::StatusOr<PlanTask> MakePlanTask(const PlanFlags& flags) {
  PlanTask task;
  PlannerRequest& request = task.request;
  std::optional<int64_t> micro_batches = flags.micro_batches;
  if (schedule::IsScheduleFile(flags.schedule)) {
    // With replicas, FindPlan checks the micro-batches; the file has each replica's share.
    ASSIGN_OR_RETURN(request.given,
                     schedule::ReadAskedSchedule(
                         flags.schedule,
                         {.stages = {},
                          .micro_batches = flags.replicas == 1 ? flags.micro_batches : std::nullopt,
                          .chunks = flags.chunks.value_or(0)}));
    // Devices of a replica.
    const int devices = request.given->num_ranks() * flags.tensor_parts.value_or(1);
    ASSIGN_OR_RETURN(request.cluster,
                     ClusterOf(flags, int64_t{devices} * flags.replicas.value_or(1)));
    const int replicas = flags.replicas.value_or(std::max(request.cluster.size() / devices, 1));
    micro_batches = int64_t{replicas} * request.given->num_micro_batches;
  } else {
    request.schedule = flags.schedule;
    ASSIGN_OR_RETURN(request.cluster, ClusterOf(flags, engine::kDefaultStages));
  }
  request.chunks = flags.chunks;
  request.micro_batches = flags.micro_batches;
  request.replicas = flags.replicas;
  request.gradient_blocks = flags.gradient_blocks;
  request.shards_optimizer = flags.shards_optimizer;
  request.reduction = flags.reduction;
  request.may_recompute = flags.recompute != "none";
  request.recomputes_all = flags.recompute == "full";
  request.offload = flags.offload.value_or(0.0);
  request.offloads_optimizer = flags.offloads_optimizer;
  request.objective = flags.objective;
  request.may_leave_devices = !flags.uses_all_devices;
  if (!IsProfileFile(flags)) {
    if (!flags.format.empty()) {
      return base::UsageError(absl::StrCat(
          "--format is of a file that --profile names, and --profile ", flags.profile, " is none"));
    }
    const int devices = request.cluster.size();
    request.batch_rows = flags.batch.value_or(kDefaultModelBatch);
    const auto profile_on =
        [&](const engine::DeviceChoice& choice) -> absl::StatusOr<std::vector<ModelOption>> {
      ASSIGN_OR_RETURN(engine::DeviceSpec device, Resolve(choice, 1, flags.run.notices));
      if (!flags.cluster.empty()) {
        engine::RunConfig named = flags.run;
        named.cluster_file = flags.cluster;
        RETURN_IF_ERROR(SetCluster(named, request.cluster, devices, device));
      }
      request.cluster.transfers = TransfersBetween(devices, device, choice);
      absl::StatusOr<std::vector<ModelOption>> options =
          ShareLayers(flags, request.cluster, [&](const engine::RunConfig& run) {
            return ProfileModel(flags, run, device, request.batch_rows, devices, micro_batches);
          });
      if (options.ok()) TellOfMissingGpus(choice, device, devices, flags.run.notices);
      return options;
    };
    ASSIGN_OR_RETURN(task.options, WithFallBack(flags.run.device, flags.run.notices, profile_on));
    AddOffloadOptions(flags, task.options);
    request.profile = task.options.front().profile;
    request.cluster = task.options.front().cluster;
    return task;
  }
  if (flags.run.device.exchange == "nccl") {
    if (!request.cluster.overlaps_messages) {
      return base::UsageError(
          "--exchange nccl: messages are under way while devices compute, but the "
          "cluster says overlaps_messages = false");
    }
    request.cluster.transfers = schedule::Transfers::kGrouped;
  }
  ASSIGN_OR_RETURN(task.options, ReadOptions(flags, request.cluster));
  for (ModelOption& option : task.options) SetMessageTime(flags, option.profile, option.cluster);
  AddOffloadOptions(flags, task.options);
  const int64_t rows = task.options.front().profile.sizes.back().micro_batch_rows;
  request.batch_rows = flags.batch.value_or(
      rows * micro_batches.value_or(kMicroBatchesPerDevice * request.cluster.size()));
  request.profile = task.options.front().profile;
  request.cluster = task.options.front().cluster;
  return task;
}

}  // namespace stagecoach::tools
