#ifndef STAGECOACH_ENGINE_SESSION_PROCESS_GROUP_H_
#define STAGECOACH_ENGINE_SESSION_PROCESS_GROUP_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/comm/launch.h"
#include "engine/comm/rendezvous.h"
#include "engine/comm/supervisor.h"
#include "engine/session/run_config.h"

// Work that several processes do together, which a launcher has started, one for each device.
namespace stagecoach::engine {

// Returns "mpirun has started 4" or "by STAGECOACH_RANKS there are 4", which are processes.
std::string DescribeLaunch(const Launch& launch);

// Returns InvalidArgument unless there are as many processes as devices. `of` is what the devices
// come from, such as "--stages 4" or a plan.
absl::Status CheckProcesses(const Launch& launch, int devices, absl::string_view of);

// Of the cluster, if there is one, keeps the devices that the plan names, and of these the given
// ones (Launch::devices), unless none have been lost.
absl::Status KeepDevicesLeft(const std::vector<int>& devices, RunConfig& options);

// Returns the configuration of this process, except for its GPU. InvalidArgument: an option that
// does not work with processes, or another number of them than of devices (stages of all replicas),
// unless some have been lost.
absl::StatusOr<RunConfig> OptionsOfRank(const Launch& launch, RunConfig options);

// Returns the GPU of the process among the `visible` ones: that of its local rank, or the only one
// that it sees, since launchers can give each process a GPU of its own (CUDA_VISIBLE_DEVICES per
// process). Unavailable if it sees several, but too few.
absl::StatusOr<int> GpuOfRank(const Launch& launch, int visible);

// Sets that GPU in the configuration, unless it has one for each device already, or they are CPUs.
absl::Status ChooseGpu(const Launch& launch, RunConfig& options);

// The processes of a run, and where they have met.
struct ProcessGroup {
  Launch launch;
  std::shared_ptr<Rendezvous> rendezvous;
};

// Meets the other processes and calls `work`, with the options of this process. A process that
// waits longer than a launch takes says which ranks it waits for. When one process ends, all others
// hear why, also if it failed earlier, with `so_far`. `on_refused` hears what is wrong with this
// process's own options before it meets the others, of which only those that arrive soon hear of
// it; the same error is then returned. With a `supervisor`, the work is done again in another group
// if it can continue when another process is replaced.
absl::Status RunAsRank(const Launch& launch, const RunConfig& given, const absl::Status& so_far,
                       const std::function<void(const absl::Status&)>& on_refused,
                       absl::FunctionRef<absl::Status(const RunConfig&, const ProcessGroup&)> work,
                       Supervisor* supervisor = nullptr);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_SESSION_PROCESS_GROUP_H_
