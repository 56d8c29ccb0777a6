#include "engine/session/process_group.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "engine/session/machine/machine.h"
#include "engine/session/plan_choice.h"
#include "kernels/cuda_backend.h"
#include "schedule/io/schedule_file.h"

namespace stagecoach::engine {
namespace {

// Returns the devices of each stage's layers.
int OfEachStage(const RunConfig& options) { return options.replicas * options.tensor_parts; }

// When a process is replaced: until the launcher says so, and until all meet again. That does not
// take long, since it is the first that a new process does; and one that is lost meanwhile is
// replaced as well, in a further group.
constexpr absl::Duration kLongestReplacement = absl::Seconds(10);
constexpr absl::Duration kLongestMeeting = absl::Seconds(10);

// How long a process whose flags are wrong waits to tell the others.
constexpr absl::Duration kLongestRefusal = absl::Seconds(5);
// Processes that a launcher starts together are usually there by then.
constexpr absl::Duration kPatience = absl::Milliseconds(1500);

std::string DescribeWait(const Launch& launch, const std::vector<int>& missing, absl::Time until) {
  constexpr size_t kMostNamed = 8;
  const size_t named = std::min(missing.size(), kMostNamed);
  return absl::StrCat(
      "waits for rank", missing.size() == 1 ? " " : "s ",
      absl::StrJoin(missing.begin(), missing.begin() + static_cast<std::ptrdiff_t>(named), ", "),
      missing.size() > named ? absl::StrCat(" and ", missing.size() - named, " more") : "", " of ",
      launch.ranks, " at ", launch.rendezvous, " until ",
      absl::FormatTime("%F %T", until, absl::LocalTimeZone()), " (--timeout)");
}

// Returns once all are there, so that each hears why another ends.
absl::StatusOr<ProcessGroup> Meet(const Launch& launch, absl::Duration deadline,
                                  LateNotice* late = nullptr) {
  ASSIGN_OR_RETURN(std::shared_ptr<Rendezvous> rendezvous,
                   ConnectRendezvous(launch, deadline, late));
  RETURN_IF_ERROR(rendezvous->Barrier(base::Deadline::After(deadline), late));
  return ProcessGroup{launch, std::move(rendezvous)};
}

// The first group of the launch, and what is said if it takes long. Rank 0 says it for all that
// have met it.
absl::StatusOr<ProcessGroup> MeetAtFirst(const Launch& launch, absl::Duration deadline,
                                         const Notices& notices) {
  const absl::Time until = absl::Now() + deadline;
  LateNotice late(base::Deadline::After(kPatience), [&](const std::vector<int>& missing) {
    if (launch.rank != 0 && missing.front() != 0) return;
    notices.TellOfRank(DescribeWait(launch, missing, until));
  });
  return Meet(launch, deadline, launch.is_replacement ? nullptr : &late);
}

// What the bits of a device's work depend on.
absl::StatusOr<std::string> ComputesWith(const RunConfig& options, int rank) {
  if (options.device.kind != "cuda") return InspectMachine().instruction_set;
  ASSIGN_OR_RETURN(kernels::CudaBackend* const backend, kernels::CudaBackend::Load());
  const std::vector<kernels::CudaGpu> gpus = backend->Inspect().gpus;
  const auto own = static_cast<size_t>(rank);
  if (own >= options.device.gpus.size()) return "";  // refused later
  const auto gpu = static_cast<size_t>(options.device.gpus[own]);
  return gpu < gpus.size() ? gpus[gpu].name : "";
}

// Says it if the processes compute with different things, as then another partition has other bits.
absl::Status CompareProcessors(const ProcessGroup& group, const RunConfig& options) {
  const int rank = group.launch.rank;
  ASSIGN_OR_RETURN(const std::string own, ComputesWith(options, rank));
  const auto deadline = base::Deadline::After(absl::Seconds(options.deadline_seconds));
  ASSIGN_OR_RETURN(const std::vector<std::string> all, group.rendezvous->AllGather(own, deadline));
  const auto other = std::find_if(all.begin(), all.end(),
                                  [&](const std::string& one) { return one != all.front(); });
  if (other == all.end()) return absl::OkStatus();
  options.notices.Tell(absl::StrCat("rank ", other - all.begin(), " computes with ", *other,
                                    ", rank 0 with ", all.front(),
                                    ": the bits will depend on which of them has which layers"));
  return absl::OkStatus();
}

}  // namespace

std::string DescribeLaunch(const Launch& launch) {
  return absl::StrCat(launch.launcher == "STAGECOACH_RANKS" ? "by STAGECOACH_RANKS there are "
                                                            : launch.launcher + " has started ",
                      launch.ranks);
}

absl::Status CheckProcesses(const Launch& launch, int devices, absl::string_view of) {
  if (devices == launch.ranks) return absl::OkStatus();
  const bool is_own = launch.launcher == kOwnLauncher;
  return absl::InvalidArgumentError(absl::StrCat(
      is_own
          ? absl::StrCat(kOwnLauncher, " --processes ", launch.ranks, " has started ", launch.ranks)
          : DescribeLaunch(launch),
      " processes for ", devices, " devices (", of, "); start one for each",
      is_own ? absl::StrCat(": --processes ", devices) : ""));
}

absl::Status KeepDevicesLeft(const std::vector<int>& devices, RunConfig& options) {
  ASSIGN_OR_RETURN(options.cluster, PlannedCluster(options));
  if (!options.cluster.has_value() || devices.empty()) return absl::OkStatus();
  if (devices.back() >= options.cluster->size()) {
    return base::UsageError(absl::StrCat("STAGECOACH_DEVICES names device ", devices.back(),
                                         ", but ", NameOfCluster(options), " has ",
                                         options.cluster->size()));
  }
  options.cluster = options.cluster->Keep(devices);
  return absl::OkStatus();
}

absl::StatusOr<RunConfig> OptionsOfRank(const Launch& launch, RunConfig options) {
  if (options.device.kind == "auto") {
    return base::UsageError(
        absl::StrCat(DescribeLaunch(launch),
                     " processes, which must all have the same kind of device: say --device cpu or "
                     "--device cuda"));
  }
  const bool is_cuda = options.device.kind == "cuda";
  if (options.device.exchange == "copies") {
    return base::UsageError("--exchange copies is for devices of one process");
  }
  if (WantsTraces(options)) {
    return base::UsageError(
        "a process knows its own device's times only: trace a run of one process");
  }
  if (options.profile == "measured") {
    return base::UsageError(
        "each process would measure for itself: plan with --profile measured once, and train "
        "--plan");
  }
  RETURN_IF_ERROR(KeepDevicesLeft(launch.devices, options));
  if (options.cluster.has_value() && !options.stages.has_value() && options.plan_file.empty()) {
    RETURN_IF_ERROR(CheckProcesses(launch, options.cluster->size(), NameOfCluster(options)));
  }
  if (!options.stages.has_value())
    options.stages = std::max(1, launch.ranks / OfEachStage(options));
  const int devices = *options.stages * OfEachStage(options);
  const bool has_own_plan =
      !options.plan_file.empty() || schedule::IsScheduleFile(options.schedule);
  if (launch.restarts > 0 && (devices != launch.ranks || has_own_plan)) {
    options.devices_left = launch.ranks;
    const bool is_told = launch.launcher == kOwnLauncher || !launch.devices.empty();
    if (!is_told && options.cluster.has_value() && options.cluster->size() > launch.ranks) {
      return base::UsageError(
          absl::StrCat(DescribeLaunch(launch), " processes, and does not tell which of the ",
                       options.cluster->size(), " devices of ", NameOfCluster(options),
                       " they have: name a cluster of those that are left"));
    }
  } else if (options.plan_file.empty()) {
    RETURN_IF_ERROR(CheckProcesses(
        launch, devices,
        absl::StrCat(
            "--stages ", *options.stages,
            options.replicas > 1 ? absl::StrCat(", --replicas ", options.replicas) : "",
            options.tensor_parts > 1 ? absl::StrCat(", --tensor ", options.tensor_parts) : "")));
  }
  if (is_cuda) options.device.exchange = "nccl";
  options.rank = launch.rank;
  return options;
}

absl::StatusOr<int> GpuOfRank(const Launch& launch, int visible) {
  if (launch.local_rank < visible) return launch.local_rank;
  if (visible == 1) return 0;
  return absl::UnavailableError(absl::StrCat(
      "local rank ", launch.local_rank, " takes GPU ", launch.local_rank, ", but sees ", visible,
      " GPUs; start as many processes on a host as it has GPUs, or let each see one of its own "
      "(CUDA_VISIBLE_DEVICES), or name one for each rank with --gpus"));
}

absl::Status ChooseGpu(const Launch& launch, RunConfig& options) {
  if (options.device.kind == "cpu") return absl::OkStatus();
  kernels::RequestHardwareQueues({});  // for the one device that this process makes
  if (options.device.kind != "cuda" || !options.device.gpus.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(kernels::CudaBackend* const backend, kernels::CudaBackend::Load());
  const kernels::CudaSystem system = backend->Inspect();
  RETURN_IF_ERROR(system.usable);
  ASSIGN_OR_RETURN(const int gpu, GpuOfRank(launch, static_cast<int>(system.gpus.size())));
  // This process makes the device of its own rank only.
  options.device.gpus.assign(static_cast<size_t>(launch.ranks), gpu);
  return absl::OkStatus();
}

absl::Status RunAsRank(const Launch& launch, const RunConfig& given, const absl::Status& so_far,
                       const std::function<void(const absl::Status&)>& on_refused,
                       absl::FunctionRef<absl::Status(const RunConfig&, const ProcessGroup&)> work,
                       Supervisor* supervisor) {
  absl::StatusOr<RunConfig> options = OptionsOfRank(launch, given);
  if (!so_far.ok()) options = so_far;
  const absl::Duration deadline = absl::Seconds(given.deadline_seconds);
  if (!options.ok()) {
    if (on_refused != nullptr) on_refused(options.status());
    const absl::StatusOr<ProcessGroup> group = Meet(launch, std::min(deadline, kLongestRefusal));
    if (group.ok()) {
      group->rendezvous->Fail(options.status(), base::Deadline::After(kLongestRefusal));
    }
    return options.status();
  }
  absl::StatusOr<ProcessGroup> group = MeetAtFirst(launch, deadline, given.notices);
  RETURN_IF_ERROR(group.status());
  options->is_supervised = supervisor != nullptr;
  // The others hear of an error of this as well.
  const absl::Status chosen = ChooseGpu(launch, *options);
  if (!chosen.ok()) options = chosen;
  const auto attempt = [&]() -> absl::Status {
    RETURN_IF_ERROR(group.status());
    RETURN_IF_ERROR(options.status());
    RETURN_IF_ERROR(CompareProcessors(*group, *options));
    return work(*options, *group);
  };
  absl::Status result = attempt();
  while (true) {
    if (result.ok()) return result;
    if (group.ok()) {
      group->rendezvous->Fail(result, base::Deadline::After(deadline));
    }
    const bool is_of_another = IsOfAnotherRank(result) || absl::IsDeadlineExceeded(result);
    const bool goes_on = supervisor != nullptr && supervisor->can_go_on() && is_of_another;
    if (!goes_on) return result;
    const absl::StatusOr<Launch> next =
        supervisor->AwaitReplacement(launch, base::Deadline::After(kLongestReplacement));
    if (!next.ok()) return result;
    group = Meet(*next, std::min(deadline, kLongestMeeting));
    result = attempt();
  }
}

}  // namespace stagecoach::engine
