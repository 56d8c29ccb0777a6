#include "engine/run/rank_group.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "engine/launch/host_address.h"
#include "engine/run/reduction.h"
#include "engine/transport/gloo.h"
#include "kernels/communicator.h"
#include "kernels/cuda_backend.h"

namespace stagecoach::engine {
namespace {

using schedule::Schedule;

// How long, and how often, one that misses another looks for the reason.
constexpr absl::Duration kLeastPatience = absl::Seconds(1);
constexpr absl::Duration kLeastPaceInterval = absl::Seconds(1);
constexpr absl::Duration kPatiencePause = absl::Milliseconds(20);

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

// "it has seed: 4, rank 0 has seed: 1"
std::string FirstDifference(absl::string_view own, absl::string_view of_rank_0) {
  const std::vector<absl::string_view> lines = absl::StrSplit(own, '\n');
  const std::vector<absl::string_view> other_lines = absl::StrSplit(of_rank_0, '\n');
  for (size_t i = 0; i < std::min(lines.size(), other_lines.size()); ++i) {
    if (lines[i] == other_lines[i]) continue;
    return absl::StrCat("it has ", lines[i], ", rank 0 has ", other_lines[i]);
  }
  return "one says more than the other of what it trains";
}

// "rank 2 (stage 2, replica 0)"
std::string NameOf(const Mesh& mesh, const Schedule& lowered, int device) {
  const std::vector<schedule::StageId> stages = lowered.StagesOf(mesh.rank_of(device));
  const std::string numbers = absl::StrJoin(
      stages, ", ",
      [](std::string* text, schedule::StageId stage) { absl::StrAppend(text, stage.value()); });
  return absl::StrCat("rank ", device, " (stage", stages.size() == 1 ? " " : "s ", numbers,
                      ", replica ", mesh.replica_of(device), ")");
}

absl::StatusOr<std::string> NewCommunicatorId() {
  ASSIGN_OR_RETURN(kernels::CudaBackend* const backend, kernels::CudaBackend::Load());
  return backend->NewCommunicatorId();
}

}  // namespace

absl::Status CheckRankGroup(const RankGroupOptions& options) {
  const DeviceSpec& device = options.device;
  if (!device.gpus.empty() && static_cast<int>(device.gpus.size()) < options.devices()) {
    return absl::InvalidArgumentError(absl::StrCat(device.gpus.size(), " GPUs are named for ",
                                                   options.devices(),
                                                   " devices; name one for each"));
  }
  if (options.exchange == Exchange::kNccl && device.kind != DeviceKind::kCuda) {
    return absl::InvalidArgumentError("NCCL connects CUDA devices only");
  }
  if (options.reduction == partition::ReductionKind::kRing && options.rendezvous == nullptr &&
      !UsesNccl(options)) {
    return absl::InvalidArgumentError(
        "a ring is the all-reduce of NCCL or Gloo, but these devices copy within their process: "
        "train in several processes, or sum gradients in a tree");
  }
  if (options.rendezvous == nullptr) return absl::OkStatus();
  if (options.rendezvous->ranks() != options.devices()) {
    return absl::InvalidArgumentError(absl::StrCat("there are ", options.rendezvous->ranks(),
                                                   " processes for ", options.devices(),
                                                   " devices; start one for each"));
  }
  if (options.exchange == Exchange::kCopies) {
    return absl::InvalidArgumentError(
        "copies are for devices of one process: train in one, or let the exchange be chosen");
  }
  return absl::OkStatus();
}

bool UsesNccl(const RankGroupOptions& options) {
  if (options.exchange != Exchange::kAuto) return options.exchange == Exchange::kNccl;
  if (options.device.kind == DeviceKind::kCpu || options.devices() == 1) return false;
  if (options.rendezvous != nullptr) return true;
  const std::vector<int>& gpus = options.device.gpus;
  return gpus.empty() ||
         static_cast<int>(std::set<int>(gpus.begin(), gpus.end()).size()) >= options.devices();
}

absl::StatusOr<std::unique_ptr<RankGroup>> RankGroup::Connect(const RankGroupOptions& options,
                                                              const Schedule& lowered) {
  RETURN_IF_ERROR(CheckRankGroup(options));
  std::unique_ptr<RankGroup> group(new RankGroup(options));
  for (int device = 0; device < options.devices(); ++device) {
    group->names_.push_back(NameOf(group->mesh_, lowered, device));
  }
  RETURN_IF_ERROR(group->MakeDevices());
  if (UsesNccl(options)) {
    RETURN_IF_ERROR(group->ConnectByNccl(lowered));
  } else if (options.rendezvous != nullptr) {
    RETURN_IF_ERROR(group->ConnectByGloo());
  } else {
    group->ConnectByCopies(lowered);
  }
  group->is_connected_ = true;
  return group;
}

RankGroup::~RankGroup() { Disconnect(); }

void RankGroup::Disconnect() {
  is_connected_ = false;
  activity_ = nullptr;
  // Transports use one another's devices, and jobs use the transports.
  for (const int index : local_devices_) {
    if (beside(index) != nullptr) beside(index)->stream().Run([] {});
    device(index).stream().Run([] {});
  }
  // All at the same time: ranks of a communicator may wait for each other to say goodbye.
  static_cast<void>(OnEach([this](int index) {
    Member& member = members_[Index(index)];
    member.transport.reset();
    if (member.beside != nullptr) {
      member.beside->stream().Run([&member] { member.replicas.reset(); });
    }
    return absl::OkStatus();
  }));
}

absl::Status RankGroup::MakeDevices() {
  members_.resize(Index(mesh_.num_devices()));
  // Its work is light, and takes no memory.
  DeviceSpec beside = options_.device;
  beside.threads = 1;
  beside.memory_bytes = 0;
  beside.tuning_file.clear();
  for (int index = 0; index < mesh_.num_devices(); ++index) {
    if (options_.rendezvous != nullptr && options_.rendezvous->rank() != index) continue;
    Member& member = members_[Index(index)];
    ASSIGN_OR_RETURN(member.device, MakeDevice(options_.device, index));
    if (mesh_.num_replicas() > 1) {
      ASSIGN_OR_RETURN(member.beside, MakeDevice(beside, index));
    }
    member.job = std::make_unique<Job>();
    local_devices_.push_back(index);
  }
  return absl::OkStatus();
}

void RankGroup::ConnectByCopies(const Schedule& lowered) {
  for (int replica = 0; replica < mesh_.num_replicas(); ++replica) {
    InProcessOptions in_process;
    // More than a rank ever has outstanding to one other: both kinds of messages of all its stages.
    in_process.max_outstanding = 2 * lowered.num_micro_batches * lowered.num_stages();
    for (schedule::Rank rank(0); rank.value() < mesh_.num_ranks(); ++rank) {
      in_process.devices.push_back(&device(mesh_.device_of(rank, replica)));
    }
    std::vector<std::unique_ptr<Transport>> transports = CreateInProcessTransports(in_process);
    for (schedule::Rank rank(0); rank.value() < mesh_.num_ranks(); ++rank) {
      members_[Index(mesh_.device_of(rank, replica))].transport =
          std::move(transports[Index(rank.value())]);
    }
  }
  if (mesh_.num_replicas() == 1) return;
  for (schedule::Rank rank(0); rank.value() < mesh_.num_ranks(); ++rank) {
    InProcessOptions in_process{.max_outstanding = Reduction::kMostOutstanding};
    for (int replica = 0; replica < mesh_.num_replicas(); ++replica) {
      in_process.devices.push_back(beside(mesh_.device_of(rank, replica)));
    }
    std::vector<std::unique_ptr<Transport>> transports = CreateInProcessTransports(in_process);
    for (int replica = 0; replica < mesh_.num_replicas(); ++replica) {
      members_[Index(mesh_.device_of(rank, replica))].replicas =
          std::move(transports[Index(replica)]);
    }
  }
}

absl::Status RankGroup::CompareFingerprints() {
  ASSIGN_OR_RETURN(const std::vector<std::string> fingerprints, Gather(options_.fingerprint));
  for (size_t rank = 0; rank < fingerprints.size(); ++rank) {
    if (fingerprints[rank] == fingerprints.front()) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", rank, " does not train the same as rank 0: ",
                     FirstDifference(fingerprints[rank], fingerprints.front()),
                     "; start all processes with the same model, plan and options"));
  }
  return absl::OkStatus();
}

absl::Status RankGroup::ConnectByGloo() {
  RETURN_IF_ERROR(CompareFingerprints());
  const auto gather = [this](const std::string& text) { return Gather(text); };
  ASSIGN_OR_RETURN(const std::string address,
                   AgreeOnAddress(options_.rendezvous->own_address(), gather));
  const int index = local_devices_.front();
  const int replica = mesh_.replica_of(index);
  const schedule::Rank rank = mesh_.rank_of(index);
  std::vector<int> of_replica, of_rank;  // the processes of the others, each of which has a device
  for (schedule::Rank other(0); other.value() < mesh_.num_ranks(); ++other) {
    of_replica.push_back(mesh_.device_of(other, replica));
  }
  for (int other = 0; other < mesh_.num_replicas(); ++other) {
    of_rank.push_back(mesh_.device_of(rank, other));
  }
  std::vector<int> all(Index(mesh_.num_devices()));
  std::iota(all.begin(), all.end(), 0);
  // Gloo's collectives are of all processes of a mesh.
  const bool in_ring = options_.reduction == partition::ReductionKind::kRing;
  meshes_.push_back(GlooMesh::Create());
  if (in_ring) meshes_.push_back(GlooMesh::Create());
  const absl::Status connected = OnEach([&](int) -> absl::Status {
    for (const std::shared_ptr<GlooMesh>& mesh : meshes_) {
      RETURN_IF_ERROR(mesh->Connect({.process = index,
                                     .processes = mesh == meshes_.front() ? all : of_rank,
                                     .address = address,
                                     .gather = gather,
                                     .deadline = options_.deadline}));
    }
    Member& member = members_[Index(index)];
    member.transport = meshes_.front()->Join(rank, of_replica, /*channel=*/0);
    if (mesh_.num_replicas() > 1) {
      member.replicas = meshes_.back()->Join(schedule::Rank(replica), of_rank, /*channel=*/1);
    }
    return absl::OkStatus();
  });
  return connected.ok() ? Agree(connected) : Fail(connected);
}

// Device 0 names the groups.
absl::StatusOr<std::vector<std::string>> RankGroup::AgreeOnIds() {
  RETURN_IF_ERROR(CompareFingerprints());
  const int groups = mesh_.num_replicas() == 1 ? 1 : mesh_.num_replicas() + mesh_.num_ranks();
  std::vector<std::string> ids;
  for (int i = 0; i < groups; ++i) {
    ASSIGN_OR_RETURN(const std::vector<std::string> all,
                     Gather(local_devices_.front() == 0 ? NewCommunicatorId() : ""));
    ids.push_back(all.front());
  }
  return ids;
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

absl::StatusOr<std::unique_ptr<Transport>> RankGroup::JoinCommunicator(
    kernels::Device& on, kernels::CommunicatorOptions options) {
  options.deadline = options_.deadline;
  absl::StatusOr<std::unique_ptr<Transport>> transport =
      CreateCommunicatorTransport(on, std::move(options), abort_);
  if (transport.ok()) return transport;
  const absl::Status failure = Fail(transport.status());
  abort_->Raise(failure);  // the others need not wait for this rank
  return failure;
}

absl::Status RankGroup::ConnectByNccl(const Schedule& lowered) {
  ASSIGN_OR_RETURN(const std::vector<std::string> ids, AgreeOnIds());
  absl::Status any = OnEach([&](int index) -> absl::Status {
    const schedule::Rank rank = mesh_.rank_of(index);
    ASSIGN_OR_RETURN(
        members_[Index(index)].transport,
        JoinCommunicator(device(index),
                         {.id = ids[Index(mesh_.replica_of(index))],
                          .ranks = mesh_.num_ranks(),
                          .rank = rank.value(),
                          .peers = PeersOf(lowered, rank),
                          // Every transfer might be a group, and every collective is one.
                          .max_groups = static_cast<int>(lowered.list_of(rank).size())}));
    return absl::OkStatus();
  });
  if (any.ok() && mesh_.num_replicas() > 1) {
    any = OnEach([&](int index) -> absl::Status {
      Member& member = members_[Index(index)];
      const int own = mesh_.replica_of(index);
      std::vector<int> peers;
      for (int replica = 0; replica < mesh_.num_replicas(); ++replica) {
        if (replica != own) peers.push_back(replica);
      }
      const int rank = mesh_.rank_of(index).value();
      absl::Status status;
      member.beside->stream().Run([&] {
        absl::StatusOr<std::unique_ptr<Transport>> joined =
            JoinCommunicator(*member.beside, {.id = ids[Index(mesh_.num_replicas() + rank)],
                                              .ranks = mesh_.num_replicas(),
                                              .rank = own,
                                              .peers = peers,
                                              .max_groups = Reduction::kMostGroups});
        status = joined.status();
        if (joined.ok()) member.replicas = *std::move(joined);
      });
      return status;
    });
  }
  return any.ok() ? any : status();
}

absl::Status RankGroup::OnEach(absl::FunctionRef<absl::Status(int)> function) {
  for (const int index : local_devices_) {
    Job& job = *members_[Index(index)].job;
    job.function = &function;
    job.device = index;
    kernels::Stream& stream = device(index).stream();
    // The queue is empty between calls, so there is room.
    STAGECOACH_CHECK_OK(stream.Submit(job));
    STAGECOACH_CHECK_OK(stream.Record(job.done));
  }
  absl::Status first;
  for (const int index : local_devices_) {
    Job& job = *members_[Index(index)].job;
    Await(job);
    first.Update(job.status);
  }
  return first;
}

void RankGroup::Await(Job& job) {
  // Ranks wait for each other with deadlines, so each comes to an end by itself.
  Rendezvous* const rendezvous = options_.rendezvous;
  while (true) {
    const absl::Status status =
        job.done.Wait(rendezvous == nullptr ? base::Deadline::Never()
                                            : base::Deadline::After(rendezvous->look_interval()));
    if (status.ok()) return;
    LookAtOthers();
  }
}

absl::Status RankGroup::WaitUntil(absl::FunctionRef<bool(base::Deadline until)> is_done) {
  const Rendezvous* const rendezvous = options_.rendezvous;
  while (!is_done(rendezvous == nullptr ? base::Deadline::Never()
                                        : base::Deadline::After(rendezvous->look_interval()))) {
    LookAtOthers();
    RETURN_IF_ERROR(status());
  }
  return absl::OkStatus();
}

void RankGroup::LookAtOthers() {
  if (!status().ok()) return;
  absl::Status failure;
  {
    base::MutexLock lock(rendezvous_mutex_);
    failure = options_.rendezvous->CheckOthers(Deadline());
    failure.Update(ShowLife());
  }
  if (!failure.ok()) AbortAll(NoteFirst(failure));
}

absl::Status RankGroup::ShowLife() {
  const std::string doing = activity_ ? activity_() : "the start or the end of the run";
  return options_.rendezvous->ShowLife(doing, Deadline());
}

absl::Duration RankGroup::pace_interval() const {
  return std::max(kLeastPaceInterval, options_.rendezvous->look_interval());
}

std::vector<std::string> RankGroup::ShowPace(const std::string& pace) {
  base::MutexLock lock(rendezvous_mutex_);
  Rendezvous& rendezvous = *options_.rendezvous;
  if (!rendezvous.ShowPace(pace, Deadline()).ok() || rendezvous.rank() != 0) return {};
  absl::StatusOr<std::vector<std::string>> paces = rendezvous.LookAtPaces(Deadline());
  return paces.ok() ? *std::move(paces) : std::vector<std::string>();
}

absl::Status RankGroup::DescribeBy(std::function<std::string()> activity) {
  activity_ = std::move(activity);
  if (options_.rendezvous == nullptr) return absl::OkStatus();
  base::MutexLock lock(rendezvous_mutex_);
  return ShowLife();
}

void RankGroup::AbortAll(const absl::Status& reason) {
  abort_->Raise(reason);
  if (!is_connected_) {
    for (const std::shared_ptr<GlooMesh>& mesh : meshes_) mesh->Abort();
    return;
  }
  for (const int index : local_devices_) {
    const Member& member = members_[Index(index)];
    if (member.transport != nullptr) member.transport->Abort(reason);
    if (member.replicas != nullptr) member.replicas->Abort(reason);
  }
}

absl::Status RankGroup::Fail(const absl::Status& own) {
  // A failure here that another one caused is not reported again.
  if (options_.rendezvous == nullptr || !status().ok()) return NoteFirst(own);
  absl::Status before;
  absl::Status cause = own;
  {
    base::MutexLock lock(rendezvous_mutex_);
    const base::Deadline deadline = Deadline();
    before = FailureElsewhere(own);
    if (before.ok() && absl::IsDeadlineExceeded(own)) {
      const absl::StatusOr<std::vector<Rendezvous::Silent>> silent =
          options_.rendezvous->FindSilent();
      before = silent.status();
      if (silent.ok()) cause = CauseOf(own, *silent);
    }
    if (before.ok()) {
      options_.rendezvous->Fail(cause, deadline);
      before = options_.rendezvous->CheckOthers(deadline);
    }
  }
  if (before.ok()) return NoteFirst(cause);
  return NoteFirst(OfAnotherRank(
      absl::Status(before.code(), absl::StrCat(before.message(), "; here: ", own.message()))));
}

// A connection that has been closed says that another process is gone, but not why: it may be about
// to tell.
absl::Status RankGroup::FailureElsewhere(const absl::Status& own) {
  if (!absl::IsUnavailable(own)) return absl::OkStatus();
  const base::Deadline patience =
      base::Deadline::After(kLeastPatience + options_.rendezvous->silence_interval());
  absl::Status failure;
  while (failure.ok() && !patience.Expired()) {
    failure = options_.rendezvous->CheckOthers(Deadline());
    failure.Update(ShowLife());
    if (failure.ok()) std::this_thread::sleep_for(absl::ToChronoMilliseconds(kPatiencePause));
  }
  return failure;
}

absl::Status RankGroup::CauseOf(const absl::Status& own,
                                const std::vector<Rendezvous::Silent>& silent) const {
  if (silent.empty()) return own;
  constexpr size_t kMostNamed = 4;
  std::vector<std::string> names, seen;
  for (const Rendezvous::Silent& other : silent) {
    names.push_back(names_[Index(other.rank)]);
    if (!other.last_seen.empty()) {
      seen.push_back(absl::StrCat("; rank ", other.rank, " was last seen in ", other.last_seen));
    }
    if (names.size() == kMostNamed) break;
  }
  if (silent.size() > names.size()) {
    names.push_back(absl::StrCat(silent.size() - names.size(), " more"));
  }
  return absl::DeadlineExceededError(absl::StrCat(
      absl::StrJoin(names, ", "), " timed out: ", own.message(), absl::StrJoin(seen, "")));
}

absl::Status RankGroup::NoteFirst(const absl::Status& error) {
  base::MutexLock lock(mutex_);
  first_error_.Update(error);
  return first_error_;
}

absl::Status RankGroup::Together(absl::FunctionRef<absl::Status(int)> function) {
  RETURN_IF_ERROR(status());
  const absl::Status any = OnEach([&](int index) {
    absl::Status status = function(index);
    if (!status.ok()) {
      // Before the abort: the others are to hear the reason first, and then that NCCL has failed.
      status = Fail(status);
      transport(index).Abort(status);
      if (replicas(index) != nullptr) replicas(index)->Abort(status);
      static_cast<void>(transport(index).Poll());  // ends this rank's own transfers
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
