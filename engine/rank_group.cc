#include "engine/rank_group.h"

#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "engine/transport/communicator.h"
#include "kernels/communicator.h"
#include "kernels/cuda/cuda_backend.h"

namespace stagecoach::engine {
namespace {

using schedule::Schedule;

// With which ranks a rank exchanges tensors.
std::vector<int> PeersOf(const Schedule& lowered, schedule::Rank rank, bool all) {
  std::set<int> peers;
  for (int peer = 0; all && peer < lowered.num_ranks(); ++peer) {
    if (peer != rank.value()) peers.insert(peer);
  }
  for (const schedule::Action& action : lowered.list_of(rank)) {
    if (schedule::IsTransfer(action.op)) peers.insert(PeerOf(lowered, action).value());
  }
  return {peers.begin(), peers.end()};
}

}  // namespace

absl::Status CheckRankGroup(const RankGroupOptions& options) {
  const DeviceSpec& device = options.device;
  if (!device.gpus.empty() && static_cast<int>(device.gpus.size()) < options.ranks) {
    return absl::InvalidArgumentError(absl::StrCat(device.gpus.size(), " GPUs are named for ",
                                                   options.ranks, " devices; name one for each"));
  }
  if (options.exchange == Exchange::kNccl && device.kind != DeviceKind::kCuda) {
    return absl::InvalidArgumentError("NCCL connects CUDA devices only");
  }
  if (options.rendezvous == nullptr) return absl::OkStatus();
  if (options.rendezvous->ranks() != options.ranks) {
    return absl::InvalidArgumentError(absl::StrCat("there are ", options.rendezvous->ranks(),
                                                   " processes for ", options.ranks,
                                                   " devices; start one for each"));
  }
  if (!UsesNccl(options) || options.device.kind != DeviceKind::kCuda) {
    return absl::InvalidArgumentError(
        "only CUDA devices that use NCCL can be in several processes; train in one process");
  }
  return absl::OkStatus();
}

bool UsesNccl(const RankGroupOptions& options) {
  if (options.exchange != Exchange::kAuto) return options.exchange == Exchange::kNccl;
  if (options.device.kind == DeviceKind::kCpu || options.ranks == 1) return false;
  if (options.rendezvous != nullptr) return true;
  const std::vector<int>& gpus = options.device.gpus;
  return gpus.empty() ||
         static_cast<int>(std::set<int>(gpus.begin(), gpus.end()).size()) >= options.ranks;
}

absl::StatusOr<std::unique_ptr<RankGroup>> RankGroup::Connect(const RankGroupOptions& options,
                                                              const Schedule& lowered,
                                                              bool all_meet) {
  RETURN_IF_ERROR(CheckRankGroup(options));
  std::unique_ptr<RankGroup> group(new RankGroup(options));
  RETURN_IF_ERROR(group->MakeDevices());
  RETURN_IF_ERROR(UsesNccl(options) ? group->ConnectByNccl(lowered, all_meet)
                                    : group->ConnectByCopies(lowered));
  return group;
}

RankGroup::~RankGroup() { Disconnect(); }

void RankGroup::Disconnect() {
  // Transports use one another's devices, and jobs use the transports.
  for (const int rank : local_ranks_) device(rank).stream().Run([] {});
  // All at the same time: ranks of a communicator may wait for each other to say goodbye.
  static_cast<void>(OnEach([this](int rank) {
    ranks_[static_cast<size_t>(rank)].transport.reset();
    return absl::OkStatus();
  }));
}

absl::Status RankGroup::MakeDevices() {
  ranks_.resize(static_cast<size_t>(options_.ranks));
  for (int rank = 0; rank < options_.ranks; ++rank) {
    if (options_.rendezvous != nullptr && options_.rendezvous->rank() != rank) continue;
    State& state = ranks_[static_cast<size_t>(rank)];
    ASSIGN_OR_RETURN(state.device, MakeDevice(options_.device, rank));
    state.job = std::make_unique<Job>();
    local_ranks_.push_back(rank);
  }
  return absl::OkStatus();
}

absl::Status RankGroup::ConnectByCopies(const Schedule& lowered) {
  InProcessOptions in_process;
  // More than a rank ever has outstanding to one other: both kinds of messages of all its stages.
  in_process.max_outstanding = 2 * lowered.num_micro_batches * lowered.num_stages();
  for (const int rank : local_ranks_) in_process.devices.push_back(&device(rank));
  std::vector<std::unique_ptr<Transport>> transports = CreateInProcessTransports(in_process);
  for (const int rank : local_ranks_) {
    ranks_[static_cast<size_t>(rank)].transport = std::move(transports[static_cast<size_t>(rank)]);
  }
  return absl::OkStatus();
}

// Rank 0 names the group.
absl::StatusOr<std::string> RankGroup::AgreeOnId() const {
  std::string id;
  if (local_ranks_.front() == 0) {
    ASSIGN_OR_RETURN(kernels::CudaBackend* const backend, kernels::CudaBackend::Load());
    ASSIGN_OR_RETURN(id, backend->NewCommunicatorId());
  }
  if (options_.rendezvous == nullptr) return id;
  const base::Deadline deadline = base::Deadline::After(options_.deadline);
  ASSIGN_OR_RETURN(const std::vector<std::string> fingerprints,
                   options_.rendezvous->AllGather(options_.fingerprint, deadline));
  for (size_t rank = 0; rank < fingerprints.size(); ++rank) {
    if (fingerprints[rank] == fingerprints.front()) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", rank,
                     " trains something else than rank 0: start all processes with "
                     "the same model, plan and options"));
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> ids,
                   options_.rendezvous->AllGather(id, deadline));
  return ids.front();
}

absl::Status RankGroup::Agree(const absl::Status& own) {
  if (options_.rendezvous == nullptr) return own;
  ASSIGN_OR_RETURN(const std::vector<std::string> all,
                   options_.rendezvous->AllGather(std::string(own.message()),
                                                  base::Deadline::After(options_.deadline)));
  if (!own.ok()) return own;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].empty()) {
      return absl::AbortedError(absl::StrCat("rank ", rank, " has failed: ", all[rank]));
    }
  }
  return absl::OkStatus();
}

absl::Status RankGroup::ConnectByNccl(const Schedule& lowered, bool all_meet) {
  ASSIGN_OR_RETURN(const std::string id, AgreeOnId());
  auto abort = std::make_shared<AbortFlag>();
  const absl::Status any = OnEach([&](int rank) -> absl::Status {
    const kernels::CommunicatorOptions options = {
        .id = id,
        .ranks = options_.ranks,
        .rank = rank,
        .peers = PeersOf(lowered, schedule::Rank(rank), all_meet),
        .deadline = base::Deadline::After(options_.deadline),
        // Every transfer might be a group, and so are the exchanges of norms and of results.
        .max_groups = static_cast<int>(lowered.list_of(schedule::Rank(rank)).size()) + 2};
    absl::StatusOr<std::unique_ptr<Transport>> transport =
        CreateCommunicatorTransport(device(rank), options, abort);
    if (!transport.ok()) {
      abort->Raise(transport.status());  // the others need not wait for this rank
      return transport.status();
    }
    ranks_[static_cast<size_t>(rank)].transport = *std::move(transport);
    return absl::OkStatus();
  });
  return any.ok() ? any : abort->reason();
}

absl::Status RankGroup::OnEach(absl::FunctionRef<absl::Status(int)> function) {
  for (const int rank : local_ranks_) {
    Job& job = *ranks_[static_cast<size_t>(rank)].job;
    job.function = &function;
    job.rank = rank;
    kernels::Stream& stream = device(rank).stream();
    // The queue is empty between calls, so there is room.
    STAGECOACH_CHECK_OK(stream.Submit(job));
    STAGECOACH_CHECK_OK(stream.Record(job.done));
  }
  absl::Status first;
  for (const int rank : local_ranks_) {
    Job& job = *ranks_[static_cast<size_t>(rank)].job;
    // Ranks wait for each other with deadlines, so each comes to an end by itself.
    STAGECOACH_CHECK_OK(job.done.Wait(base::Deadline::Never()));
    first.Update(job.status);
  }
  return first;
}

absl::Status RankGroup::Together(absl::FunctionRef<absl::Status(int)> function) {
  RETURN_IF_ERROR(status());
  const absl::Status any = OnEach([&](int rank) {
    absl::Status status = function(rank);
    if (!status.ok()) {
      {
        base::MutexLock lock(mutex_);
        first_error_.Update(status);
      }
      transport(rank).Abort(status);
      static_cast<void>(transport(rank).Poll());  // ends this rank's own transfers
    }
    return status;
  });
  return any.ok() ? any : status();
}

absl::Status RankGroup::status() {
  base::MutexLock lock(mutex_);
  return first_error_;
}

}  // namespace stagecoach::engine
