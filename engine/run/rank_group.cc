#include "engine/run/rank_group.h"

#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "kernels/communicator.h"
#include "kernels/cuda_backend.h"

namespace stagecoach::engine {
namespace {

using schedule::Schedule;

// How often a working process checks the others for failures.
constexpr absl::Duration kLookInterval = absl::Milliseconds(200);

// With which ranks a rank exchanges tensors.
std::vector<int> PeersOf(const Schedule& lowered, schedule::Rank rank) {
  std::set<int> peers;
  for (const schedule::Action& action : lowered.list_of(rank)) {
    if (schedule::IsTransfer(action.op)) peers.insert(PeerOf(lowered, action).value());
    if (!schedule::IsCollective(action.op)) continue;
    for (const schedule::Rank member : lowered.group(action.group).ranks) {
      if (member != rank) peers.insert(member.value());
    }
  }
  return {peers.begin(), peers.end()};
}

absl::StatusOr<std::string> NewCommunicatorId() {
  ASSIGN_OR_RETURN(kernels::CudaBackend* const backend, kernels::CudaBackend::Load());
  return backend->NewCommunicatorId();
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
                                                              const Schedule& lowered) {
  RETURN_IF_ERROR(CheckRankGroup(options));
  std::unique_ptr<RankGroup> group(new RankGroup(options));
  RETURN_IF_ERROR(group->MakeDevices());
  RETURN_IF_ERROR(UsesNccl(options) ? group->ConnectByNccl(lowered)
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
    ASSIGN_OR_RETURN(state.device,
                     MakeDevice(options_.device, mesh_.device_of(schedule::Rank(rank))));
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
absl::StatusOr<std::string> RankGroup::AgreeOnId() {
  ASSIGN_OR_RETURN(const std::vector<std::string> fingerprints, Gather(options_.fingerprint));
  for (size_t rank = 0; rank < fingerprints.size(); ++rank) {
    if (fingerprints[rank] == fingerprints.front()) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", rank,
                     " does not train the same as rank 0: start all processes with "
                     "the same model, plan and options"));
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> ids,
                   Gather(local_ranks_.front() == 0 ? NewCommunicatorId() : ""));
  return ids.front();
}

absl::StatusOr<std::vector<std::string>> RankGroup::Gather(const absl::StatusOr<std::string>& own) {
  if (options_.rendezvous == nullptr) {
    RETURN_IF_ERROR(own.status());
    return std::vector<std::string>{*own};
  }
  RETURN_IF_ERROR(status());
  if (!own.ok()) return Fail(own.status());
  base::MutexLock lock(rendezvous_mutex_);
  absl::StatusOr<std::vector<std::string>> all = options_.rendezvous->AllGather(*own, Deadline());
  if (!all.ok()) return NoteFirst(all.status());
  return all;
}

absl::Status RankGroup::Agree(const absl::Status& own) {
  if (!own.ok()) return Gather(own).status();
  return Gather("").status();
}

absl::Status RankGroup::ConnectByNccl(const Schedule& lowered) {
  ASSIGN_OR_RETURN(const std::string id, AgreeOnId());
  const absl::Status any = OnEach([&](int rank) -> absl::Status {
    const kernels::CommunicatorOptions options = {
        .id = id,
        .ranks = options_.ranks,
        .rank = rank,
        .peers = PeersOf(lowered, schedule::Rank(rank)),
        .deadline = options_.deadline,
        // Every transfer might be a group, and every collective is one.
        .max_groups = static_cast<int>(lowered.list_of(schedule::Rank(rank)).size())};
    absl::StatusOr<std::unique_ptr<Transport>> transport =
        CreateCommunicatorTransport(device(rank), options, abort_);
    if (!transport.ok()) {
      const absl::Status failure = Fail(transport.status());
      abort_->Raise(failure);  // the others need not wait for this rank
      return failure;
    }
    ranks_[static_cast<size_t>(rank)].transport = *std::move(transport);
    return absl::OkStatus();
  });
  return any.ok() ? any : status();
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
    Await(job);
    first.Update(job.status);
  }
  return first;
}

void RankGroup::Await(Job& job) {
  // Ranks wait for each other with deadlines, so each comes to an end by itself.
  const bool alone = options_.rendezvous == nullptr;
  while (true) {
    const absl::Status status =
        job.done.Wait(alone ? base::Deadline::Never() : base::Deadline::After(kLookInterval));
    if (status.ok()) return;
    LookAtOthers();
  }
}

void RankGroup::LookAtOthers() {
  if (!status().ok()) return;
  absl::Status failure;
  {
    base::MutexLock lock(rendezvous_mutex_);
    failure = options_.rendezvous->CheckOthers(Deadline());
  }
  if (!failure.ok()) abort_->Raise(NoteFirst(failure));
}

absl::Status RankGroup::Fail(const absl::Status& own) {
  // A failure here that another one caused is not reported again.
  if (options_.rendezvous == nullptr || !status().ok()) return NoteFirst(own);
  absl::Status before;
  {
    base::MutexLock lock(rendezvous_mutex_);
    const base::Deadline deadline = Deadline();
    options_.rendezvous->Fail(own, deadline);
    before = options_.rendezvous->CheckOthers(deadline);
  }
  if (before.ok()) return NoteFirst(own);
  return NoteFirst(
      absl::Status(before.code(), absl::StrCat(before.message(), "; here: ", own.message())));
}

absl::Status RankGroup::NoteFirst(const absl::Status& error) {
  base::MutexLock lock(mutex_);
  first_error_.Update(error);
  return first_error_;
}

absl::Status RankGroup::Together(absl::FunctionRef<absl::Status(int)> function) {
  RETURN_IF_ERROR(status());
  const absl::Status any = OnEach([&](int rank) {
    absl::Status status = function(rank);
    if (!status.ok()) {
      // Before the abort: the others are to hear the reason first, and then that NCCL has failed.
      status = Fail(status);
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
