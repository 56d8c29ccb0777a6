#include "engine/comm/launch.h"

#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/error_class.h"
#include "base/status_macros.h"

namespace stagecoach::engine {
namespace {

constexpr int kMaxRanks = 1 << 16;
constexpr int kMostRestarts = 1'000'000'000;

// The first of Slurm's numbers for what is not a step of srun: the shell of salloc, a batch script,
// and the like.
constexpr int64_t kFirstSpecialSlurmStep = 0xfffffff0;

constexpr char kDevicesVariable[] = "STAGECOACH_DEVICES";

struct Number {
  const char* variable;
  int value;
};

// The variables of one launcher. `rank` and `ranks` are set together.
struct Found {
  const char* launcher;
  Number rank;
  Number ranks;
  std::optional<Number> local_rank;
};

absl::Status Bad(const char* variable, const std::string& value, absl::string_view why) {
  return base::UsageError(absl::StrCat(variable, " is \"", value, "\": ", why));
}

// Reads variables by `get`, which must outlive this. An empty value counts as none everywhere
// below.
class Variables {
 public:
  explicit Variables(Environment get) : get_(get) {}

  std::optional<std::string> Text(const char* name) const {
    std::optional<std::string> value = get_(name);
    if (value.has_value() && value->empty()) value.reset();
    return value;
  }

  bool Has(const char* name) const { return Text(name).has_value(); }

  absl::StatusOr<std::optional<Number>> Integer(const char* name, int min, int max) const {
    const std::optional<std::string> text = Text(name);
    if (!text.has_value()) return std::nullopt;
    int value = 0;
    if (!absl::SimpleAtoi(*text, &value)) return Bad(name, *text, "not a whole number");
    if (value < min || value > max) {
      return Bad(name, *text, absl::StrCat("must be from ", min, " to ", max));
    }
    return Number{name, value};
  }

 private:
  Environment get_;
};

struct Names {
  const char* launcher;
  const char* rank;
  const char* ranks;
  const char* local_rank;
};

absl::StatusOr<std::optional<Found>> Read(const Variables& variables, const Names& names) {
  ASSIGN_OR_RETURN(const std::optional<Number> ranks, variables.Integer(names.ranks, 1, kMaxRanks));
  ASSIGN_OR_RETURN(const std::optional<Number> rank,
                   variables.Integer(names.rank, 0, ranks ? ranks->value - 1 : kMaxRanks - 1));
  if (!rank && !ranks) return std::nullopt;
  if (!rank)
    return Bad(names.ranks, absl::StrCat(ranks->value), absl::StrCat(names.rank, " is not set"));
  if (!ranks)
    return Bad(names.rank, absl::StrCat(rank->value), absl::StrCat(names.ranks, " is not set"));
  ASSIGN_OR_RETURN(const std::optional<Number> local_rank,
                   variables.Integer(names.local_rank, 0, ranks->value - 1));
  return Found{names.launcher, *rank, *ranks, local_rank};
}

absl::StatusOr<std::optional<Found>> ReadTorchrun(const Variables& variables) {
  const bool elastic = variables.Has("TORCHELASTIC_RUN_ID");
  if (!elastic && !variables.Has("MASTER_ADDR")) return std::nullopt;
  // MASTER_ADDR and WORLD_SIZE exported for the processes of an srun or mpirun.
  const bool others_rank = variables.Has("OMPI_COMM_WORLD_RANK") || variables.Has("PMI_RANK") ||
                           variables.Has("SLURM_PROCID");
  if (!elastic && !variables.Has("RANK") && others_rank) return std::nullopt;
  return Read(variables, {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"});
}

absl::StatusOr<std::optional<Found>> ReadSlurm(const Variables& variables) {
  const std::optional<std::string> step = variables.Text("SLURM_STEP_ID");
  if (!step.has_value()) return std::nullopt;
  int64_t number = 0;
  if (!absl::SimpleAtoi(*step, &number)) return Bad("SLURM_STEP_ID", *step, "not a whole number");
  if (number >= kFirstSpecialSlurmStep) return std::nullopt;
  const char* ranks =
      variables.Has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  return Read(variables, {"srun", "SLURM_PROCID", ranks, "SLURM_LOCALID"});
}

absl::Status CheckAgree(const Found& a, const Found& b) {
  for (const auto& [x, y] : {std::pair(a.ranks, b.ranks), std::pair(a.rank, b.rank)}) {
    if (x.value != y.value) {
      return base::UsageError(absl::StrCat(
          x.variable, " is ", x.value, " and ", y.variable, " is ", y.value,
          ": two launchers contradict each other; set STAGECOACH_RANK and STAGECOACH_RANKS"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<Found>> FindLauncher(const Variables& variables) {
  ASSIGN_OR_RETURN(std::optional<Found> own,
                   Read(variables, {"STAGECOACH_RANKS", "STAGECOACH_RANK", "STAGECOACH_RANKS",
                                    "STAGECOACH_LOCAL_RANK"}));
  if (own.has_value()) return own;

  ASSIGN_OR_RETURN(std::optional<Found> torchrun, ReadTorchrun(variables));
  // With its own variables, torchrun can only be the inner launcher: it has itself started this
  // process.
  if (torchrun.has_value() && variables.Has("TORCHELASTIC_RUN_ID")) return torchrun;

  ASSIGN_OR_RETURN(std::optional<Found> open_mpi,
                   Read(variables, {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                                    "OMPI_COMM_WORLD_LOCAL_RANK"}));
  ASSIGN_OR_RETURN(std::optional<Found> pmi,
                   Read(variables, {"mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"}));
  if (open_mpi.has_value() && pmi.has_value()) RETURN_IF_ERROR(CheckAgree(*open_mpi, *pmi));
  std::optional<Found> started = open_mpi.has_value() ? open_mpi : pmi;
  if (!open_mpi.has_value()) {
    // If srun provides PMI itself, both describe this process, and srun's variables say more.
    // Otherwise mpiexec has started its daemons by srun, whose numbers then mean hosts. mpirun
    // always does so.
    ASSIGN_OR_RETURN(const std::optional<Found> slurm, ReadSlurm(variables));
    if (slurm.has_value() && (!pmi.has_value() || CheckAgree(*pmi, *slurm).ok())) started = slurm;
  }
  if (torchrun.has_value() && started.has_value()) RETURN_IF_ERROR(CheckAgree(*torchrun, *started));
  return torchrun.has_value() ? torchrun : started;
}

std::string FindId(const Variables& variables, absl::string_view launcher) {
  const auto text = [&](const char* name) { return variables.Text(name).value_or(""); };
  if (launcher == "STAGECOACH_RANKS") return text("STAGECOACH_LAUNCH");
  if (launcher == "torchrun" && variables.Has("TORCHELASTIC_RUN_ID")) {
    return absl::StrCat(text("TORCHELASTIC_RUN_ID"), ".", text("TORCHELASTIC_RESTART_COUNT"));
  }
  if (launcher == "mpirun") {
    const std::string job = text("PMIX_NAMESPACE");
    return job.empty() ? text("OMPI_MCA_ess_base_jobid") : job;
  }
  if (launcher == "srun" && variables.Has("SLURM_JOB_ID")) {
    return absl::StrCat(text("SLURM_JOB_ID"), ".", text("SLURM_STEP_ID"), ".",
                        text("SLURM_RESTART_COUNT"));
  }
  return "";
}

absl::StatusOr<int> FindRestarts(const Variables& variables, absl::string_view launcher) {
  const char* name = nullptr;
  if (launcher == "STAGECOACH_RANKS") name = "STAGECOACH_RESTARTS";
  if (launcher == "torchrun") name = "TORCHELASTIC_RESTART_COUNT";
  if (launcher == "srun") name = "SLURM_RESTART_COUNT";
  if (name == nullptr) return 0;
  ASSIGN_OR_RETURN(const std::optional<Number> count, variables.Integer(name, 0, kMostRestarts));
  return count.has_value() ? count->value : 0;
}

// Only launchers whose ids are unique on the host have a place there.
bool IsOnOneHost(const Variables& variables, const Found& found) {
  const std::string launcher = found.launcher;
  if (launcher == "mpirun") {
    return variables.Text("OMPI_COMM_WORLD_LOCAL_SIZE") == absl::StrCat(found.ranks.value);
  }
  if (launcher != "srun") return false;
  const std::optional<std::string> step_hosts = variables.Text("SLURM_STEP_NUM_NODES");
  return (step_hosts.has_value() ? step_hosts : variables.Text("SLURM_NNODES")) == "1";
}

absl::StatusOr<std::string> FindRendezvous(const Variables& variables, const Found& found,
                                           const std::string& id) {
  if (const auto own = variables.Text("STAGECOACH_RENDEZVOUS")) return *own;
  if (absl::string_view(found.launcher) == "STAGECOACH_RANKS") return std::string();
  const std::optional<std::string> host = variables.Text("MASTER_ADDR");
  ASSIGN_OR_RETURN(const std::optional<Number> port, variables.Integer("MASTER_PORT", 1, 65535));
  if (host.has_value() && port.has_value()) {
    const bool taken = variables.Text("TORCHELASTIC_USE_AGENT_STORE") == "True";
    const bool bare_ipv6 = host->find(':') != std::string::npos && host->front() != '[';
    return absl::StrCat("tcp://", bare_ipv6 ? "[" : "", *host, bare_ipv6 ? "]" : "", ":",
                        port->value + (taken ? 1 : 0));
  }
  if (id.empty() || !IsOnOneHost(variables, found)) return std::string();
  return absl::StrCat("file:", variables.Text("TMPDIR").value_or("/tmp"));
}

}  // namespace

absl::StatusOr<std::optional<Launch>> FindLaunch(Environment get) {
  const Variables variables(get);
  ASSIGN_OR_RETURN(const std::optional<Found> found, FindLauncher(variables));
  if (!found.has_value() || found->ranks.value == 1) return std::nullopt;
  Launch launch = {.rank = found->rank.value,
                   .ranks = found->ranks.value,
                   .local_rank = found->local_rank.value_or(found->rank).value,
                   .id = FindId(variables, found->launcher),
                   .launcher = found->launcher};
  if (variables.Has("STAGECOACH_STARTED")) launch.launcher = kOwnLauncher;
  ASSIGN_OR_RETURN(launch.rendezvous, FindRendezvous(variables, *found, launch.id));
  ASSIGN_OR_RETURN(const std::optional<Number> local_rank,
                   variables.Integer("STAGECOACH_LOCAL_RANK", 0, launch.ranks - 1));
  if (local_rank.has_value()) launch.local_rank = local_rank->value;
  ASSIGN_OR_RETURN(launch.restarts, FindRestarts(variables, found->launcher));
  launch.is_replacement = variables.Has("STAGECOACH_REPLACEMENT");
  ASSIGN_OR_RETURN(launch.devices, FindDevicesLeft(get));
  if (!launch.devices.empty() && std::ssize(launch.devices) != launch.ranks) {
    return Bad(kDevicesVariable, absl::StrJoin(launch.devices, ","),
               absl::StrCat("must be one for each of ", launch.ranks, " ranks"));
  }
  return launch;
}

namespace {

std::optional<std::string> OfThisProcess(const char* name) {
  const char* const value = std::getenv(name);
  if (value == nullptr) return std::nullopt;
  return value;
}

}  // namespace

absl::StatusOr<std::optional<Launch>> FindLaunch() { return FindLaunch(OfThisProcess); }

absl::StatusOr<std::vector<int>> FindDevicesLeft(Environment get) {
  const std::optional<std::string> text = Variables(get).Text(kDevicesVariable);
  std::vector<int> devices;
  if (!text.has_value()) return devices;
  for (const absl::string_view part : absl::StrSplit(*text, ',')) {
    int device = 0;
    const bool is_next = absl::SimpleAtoi(part, &device) && device >= 0 && device < kMaxRanks &&
                         (devices.empty() || device > devices.back());
    if (!is_next) {
      return Bad(kDevicesVariable, *text, "must be ascending numbers with commas between them");
    }
    devices.push_back(device);
  }
  return devices;
}

absl::StatusOr<std::vector<int>> FindDevicesLeft() { return FindDevicesLeft(OfThisProcess); }

}  // namespace stagecoach::engine
