#ifndef STAGECOACH_TOOLS_CLI_LAUNCHED_H_
#define STAGECOACH_TOOLS_CLI_LAUNCHED_H_

#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/launch/launch.h"
#include "engine/launch/rendezvous.h"
#include "engine/launch/supervisor.h"
#include "tools/cli/run_options.h"

// `train` or `predict` as one of several processes that a launcher has started, one for each
// device.
namespace stagecoach::tools {

// "mpirun has started 4", "by STAGECOACH_RANKS there are 4", of processes.
std::string DescribeLaunch(const engine::Launch& launch);

// InvalidArgument, marked with its origin: another number of processes than of `devices`, which
// are those `of` "--stages 4" or a plan.
absl::Status CheckProcesses(const engine::Launch& launch, int devices, absl::string_view of);

// The options of this process, but for its GPU. InvalidArgument: what does not go among processes,
// or another number of them than of devices (stages of all replicas), unless some have been
// lost.
absl::StatusOr<RunOptions> OptionsOfRank(const engine::Launch& launch, RunOptions options);

// The GPU of the process among the `visible` ones: that of its local rank; or, where it sees only
// one, that one, since launchers can give each process a GPU of its own (CUDA_VISIBLE_DEVICES per
// process). Unavailable if it sees several, but too few.
absl::StatusOr<int> GpuOfRank(const engine::Launch& launch, int visible);

// Names that GPU in the options, unless --gpus has named one for each device, or they are CPUs.
absl::Status ChooseGpu(const engine::Launch& launch, RunOptions& options);

// Where the processes of a run have met.
struct Meeting {
  engine::Launch launch;
  std::shared_ptr<engine::Rendezvous> rendezvous;
};

// Meets the other processes and does this one's work, which is given its own options. A process
// that waits longer than a launch takes says for which ranks. When one process ends, all others
// hear why, also where that was before: `so_far`. What is wrong with this process's own flags is
// printed (as an error of `command`) before it meets the others, and only those that come soon hear
// of it. With a `supervisor`, the work is done again at another meeting if it can go on when
// another process is replaced.
absl::StatusOr<int> WorkAsRank(
    absl::string_view command, const engine::Launch& launch, const RunOptions& given,
    const absl::Status& so_far,
    absl::FunctionRef<absl::StatusOr<int>(const RunOptions&, const Meeting&)> work,
    engine::Supervisor* supervisor = nullptr);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_CLI_LAUNCHED_H_
