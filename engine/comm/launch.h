#ifndef STAGECOACH_ENGINE_COMM_LAUNCH_H_
#define STAGECOACH_ENGINE_COMM_LAUNCH_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

namespace stagecoach::engine {

// The name of this program's own launcher, whose processes are on one host.
inline constexpr char kOwnLauncher[] = "stagecoach launch";

// Identifies this process among those that a launcher has started for one run, one process per
// device.
struct Launch {
  int rank = 0;        // in [0, ranks)
  int ranks = 1;       // at least 2: one process alone is not a launch
  int local_rank = 0;  // among the ranks of its host: the device it should take
  // Tells apart the launches that may meet at one place, including attempts after a restart. Empty
  // if the launcher has no such name.
  std::string id;
  // The place where the ranks find each other: "tcp://host:port" or "file:/folder", see
  // rendezvous.h. Empty if neither the user nor the launcher names a place and none can be derived.
  std::string rendezvous;
  // For messages: "mpirun"; "stagecoach launch"; "STAGECOACH_RANKS" if the user set that.
  std::string launcher;
  // Number of times that the launcher has restarted the run, or a process of it, as far as it
  // tells.
  int restarts = 0;
  // True if the process replaces one that was lost; the others live on (supervisor.h).
  bool is_replacement = false;
  // The devices left after others were lost, by their numbers in the first start; the process of
  // rank r has devices[r]. Empty: none has been lost, or the launcher does not tell.
  std::vector<int> devices = {};
};

// Returns the value of an environment variable, if it is set. An empty value counts as not set.
using Environment = absl::FunctionRef<std::optional<std::string>(const char* name)>;

// Finds the launch that the environment describes, by the first of these that applies:
//
//   launcher      rank                    ranks                  local rank
//   (the user)    STAGECOACH_RANK         STAGECOACH_RANKS       STAGECOACH_LOCAL_RANK, or the rank
//   torchrun      RANK                    WORLD_SIZE             LOCAL_RANK
//   mpirun        OMPI_COMM_WORLD_RANK    OMPI_COMM_WORLD_SIZE   OMPI_COMM_WORLD_LOCAL_RANK
//   mpiexec       PMI_RANK                PMI_SIZE               MPI_LOCALRANKID, or the rank
//   srun          SLURM_PROCID            SLURM_STEP_NUM_TASKS,  SLURM_LOCALID
//                                         or SLURM_NTASKS
//
// Restarts are STAGECOACH_RESTARTS, TORCHELASTIC_RESTART_COUNT or SLURM_RESTART_COUNT, the id
// of the user's launches is STAGECOACH_LAUNCH, a replacement has STAGECOACH_REPLACEMENT, and the
// devices that are left are STAGECOACH_DEVICES ("0,2,3").
//
// torchrun's names are common ones, so they count only together with TORCHELASTIC_RUN_ID or
// MASTER_ADDR. Slurm's count only within a step that srun has started (SLURM_STEP_ID): a batch
// script and the shell of salloc have a SLURM_PROCID and the SLURM_NTASKS of what they may yet
// start. If one launcher has started another (srun an mpirun, or one torchrun per host), the inner
// one counts. Two of which neither can have started the other must agree. srun counts before an
// mpiexec that says the same, since it may provide PMI itself.
//
// STAGECOACH_LOCAL_RANK and STAGECOACH_RENDEZVOUS also work alone and override the launcher's.
// Otherwise the place is tcp://MASTER_ADDR:MASTER_PORT if both are set, but one port above
// MASTER_PORT if torchrun's agent keeps a store of its own there (TORCHELASTIC_USE_AGENT_STORE);
// or, for mpirun and srun on one host, "file:" with TMPDIR, or /tmp.
//
// Returns nothing without a launcher, or for one process. InvalidArgument names the variable, its
// value and what is wrong: no number, a rank outside [0, ranks), a rank or a size without the
// other, launchers that contradict each other.
absl::StatusOr<std::optional<Launch>> FindLaunch(Environment get);

// Does the same for the environment of this process. Not to be called while another thread changes
// it.
absl::StatusOr<std::optional<Launch>> FindLaunch();

// Returns Launch::devices, also for the last process that is left of a run, which alone is no
// launch.
absl::StatusOr<std::vector<int>> FindDevicesLeft(Environment get);
absl::StatusOr<std::vector<int>> FindDevicesLeft();

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_COMM_LAUNCH_H_
