#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "engine/comm/gloo.h"
#include "engine/comm/host_address.h"
#include "engine/comm/rendezvous.h"
#include "engine/runtime/part_sums.h"
#include "engine/runtime/rank_group.h"
#include "engine/runtime/reduction.h"
#include "kernels/communicator.h"
#include "kernels/cuda_backend.h"
#include "partition/cost/tie.h"

namespace stagecoach::engine {
namespace {

using schedule::Schedule;

// Returns the ranks with which a rank exchanges tensors.
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

// Returns "it has seed: 4, rank 0 has seed: 1".
std::string FirstDifference(absl::string_view own, absl::string_view of_rank_0) {
  const std::vector<absl::string_view> lines = absl::StrSplit(own, '\n');
  const std::vector<absl::string_view> other_lines = absl::StrSplit(of_rank_0, '\n');
  for (size_t i = 0; i < std::min(lines.size(), other_lines.size()); ++i) {
    if (lines[i] == other_lines[i]) continue;
    return absl::StrCat("it has ", lines[i], ", rank 0 has ", other_lines[i]);
  }
  return "one says more than the other of what it trains";
}

// Returns "rank 2 (stage 2, replica 0)".
std::string NameOf(const Mesh& mesh, const Schedule& lowered, int device) {
  const std::vector<schedule::StageId> stages = lowered.StagesOf(mesh.rank_of(device));
  const std::string numbers = absl::StrJoin(
      stages, ", ",
      [](std::string* text, schedule::StageId stage) { absl::StrAppend(text, stage.value()); });
  return absl::StrCat("rank ", device, " (stage", stages.size() == 1 ? " " : "s ", numbers,
                      ", replica ", mesh.replica_of(device),
                      mesh.num_parts() > 1 ? absl::StrCat(", part ", mesh.part_of(device)) : "",
                      ")");
}

absl::StatusOr<std::string> NewCommunicatorId() {
  ASSIGN_OR_RETURN(kernels::CudaBackend* const backend, kernels::CudaBackend::Load());
  return backend->NewCommunicatorId();
}

}  // namespace

absl::Status CheckRankGroup(const RankGroupOptions& options) {
  const DeviceSpec& device = options.device;
  RETURN_IF_ERROR(CheckClusterOf(device, options.devices()));
  if (!device.gpus.empty() && static_cast<int>(device.gpus.size()) < options.devices()) {
    return absl::InvalidArgumentError(absl::StrCat(device.gpus.size(), " GPUs are named for ",
                                                   options.devices(),
                                                   " devices; name one for each"));
  }
  if (options.exchange == Exchange::kNccl && device.kind != DeviceKind::kCuda) {
    return absl::InvalidArgumentError("NCCL connects CUDA devices only");
  }
  if (options.replication.reduction == partition::ReductionKind::kRing &&
      options.rendezvous == nullptr && !UsesNccl(options)) {
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
    RETURN_IF_ERROR(group->ConnectByCopies(lowered));
  }
  group->is_connected_ = true;
  return group;
}

absl::Status RankGroup::MakeDevices() {
  members_.resize(Index(mesh_.num_devices()));
  // The work of the second device is light, and takes no memory.
  DeviceSpec beside = options_.device.Unlimited();
  beside.threads = 1;
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

std::vector<int> RankGroup::ColumnOf(int device) const {
  std::vector<int> devices;
  for (schedule::Rank rank(0); rank.value() < mesh_.num_ranks(); ++rank) {
    devices.push_back(mesh_.device_of(rank, mesh_.replica_of(device), mesh_.part_of(device)));
  }
  return devices;
}

std::vector<int> RankGroup::ReplicasOf(int device) const {
  std::vector<int> devices;
  for (int replica = 0; replica < mesh_.num_replicas(); ++replica) {
    devices.push_back(mesh_.device_of(mesh_.rank_of(device), replica, mesh_.part_of(device)));
  }
  return devices;
}

std::vector<int> RankGroup::PartsOf(int device) const {
  std::vector<int> devices;
  for (int part = 0; part < mesh_.num_parts(); ++part) {
    devices.push_back(mesh_.device_of(mesh_.rank_of(device), mesh_.replica_of(device), part));
  }
  return devices;
}

absl::Status RankGroup::ConnectByCopies(const Schedule& lowered) {
  for (int column = 0; column < mesh_.num_columns(); ++column) {
    InProcessOptions in_process;
    // More than a rank ever sends to one other: both kinds of messages of all its stages, and parts
    // of ties.
    in_process.max_outstanding =
        2 * lowered.num_micro_batches * lowered.num_stages() + options_.ties * partition::kTieParts;
    const std::vector<int> devices = ColumnOf(column);  // the first rank's, of that number
    for (const int index : devices) {
      in_process.devices.push_back(&device(index));
      in_process.peers.push_back(PeersOf(lowered, mesh_.rank_of(index)));
    }
    ASSIGN_OR_RETURN(std::vector<std::unique_ptr<Transport>> transports,
                     CreateInProcessTransports(in_process));
    for (size_t i = 0; i < devices.size(); ++i) {
      members_[Index(devices[i])].transport = std::move(transports[i]);
    }
  }
  if (mesh_.num_parts() > 1) RETURN_IF_ERROR(ConnectPartsByCopies());
  return mesh_.num_replicas() > 1 ? ConnectReplicasByCopies() : absl::OkStatus();
}

absl::Status RankGroup::ConnectPartsByCopies() {
  for (int first = 0; first < mesh_.num_devices(); first += mesh_.num_parts()) {
    InProcessOptions in_process{.max_outstanding = TransportPartSums::kMostOutstanding};
    const std::vector<int> devices = PartsOf(first);
    for (const int index : devices) in_process.devices.push_back(&device(index));
    ASSIGN_OR_RETURN(std::vector<std::unique_ptr<Transport>> transports,
                     CreateInProcessTransports(in_process));
    for (size_t i = 0; i < devices.size(); ++i) {
      members_[Index(devices[i])].parts = std::move(transports[i]);
    }
  }
  return absl::OkStatus();
}

absl::Status RankGroup::ConnectReplicasByCopies() {
  for (int first = 0; first < mesh_.num_devices(); ++first) {
    if (mesh_.replica_of(first) > 0) continue;
    InProcessOptions in_process{.max_outstanding =
                                    Reduction::MostOutstanding(options_.replication)};
    const std::vector<int> devices = ReplicasOf(first);
    for (const int index : devices) in_process.devices.push_back(beside(index));
    ASSIGN_OR_RETURN(std::vector<std::unique_ptr<Transport>> transports,
                     CreateInProcessTransports(in_process));
    for (size_t i = 0; i < devices.size(); ++i) {
      members_[Index(devices[i])].replicas = std::move(transports[i]);
    }
  }
  return absl::OkStatus();
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
  const std::vector<int> of_rank = ReplicasOf(index);  // the processes of the others
  std::vector<int> all(Index(mesh_.num_devices()));
  std::iota(all.begin(), all.end(), 0);
  // Gloo's collectives involve all processes of a mesh.
  const bool in_ring = options_.replication.reduction == partition::ReductionKind::kRing;
  meshes_.push_back(GlooMesh::Create());
  if (in_ring) meshes_.push_back(GlooMesh::Create());
  const absl::Status connected = ForEachLocalDevice([&](int) -> absl::Status {
    for (const std::shared_ptr<GlooMesh>& mesh : meshes_) {
      RETURN_IF_ERROR(mesh->Connect({.process = index,
                                     .processes = mesh == meshes_.front() ? all : of_rank,
                                     .address = address,
                                     .gather = gather,
                                     .deadline = options_.deadline}));
    }
    Member& member = members_[Index(index)];
    GlooMesh& mesh = *meshes_.front();
    member.transport = mesh.Join(mesh_.rank_of(index), ColumnOf(index), /*channel=*/0);
    if (mesh_.num_parts() > 1) {
      member.parts = mesh.Join(schedule::Rank(mesh_.part_of(index)), PartsOf(index), /*channel=*/2);
    }
    if (mesh_.num_replicas() > 1) {
      const schedule::Rank replica(mesh_.replica_of(index));
      member.replicas = meshes_.back()->Join(replica, of_rank, /*channel=*/1);
    }
    return absl::OkStatus();
  });
  if (connected.ok()) return Agree(connected);
  const absl::Status failed = Fail(connected);
  // A process that cannot be reached is not a device that is gone.
  return absl::IsUnavailable(failed) ? OfAnotherRank(failed) : failed;
}

// Device 0 names the groups.
absl::StatusOr<std::vector<std::string>> RankGroup::AgreeOnIds() {
  RETURN_IF_ERROR(CompareFingerprints());
  const int groups = mesh_.num_columns() + NumReplicaGroups() +
                     (mesh_.num_parts() > 1 ? mesh_.num_ranks() * mesh_.num_replicas() : 0);
  std::vector<std::string> ids;
  for (int i = 0; i < groups; ++i) {
    ASSIGN_OR_RETURN(const std::vector<std::string> all,
                     Gather(local_devices_.front() == 0 ? NewCommunicatorId() : ""));
    ids.push_back(all.front());
  }
  return ids;
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

absl::StatusOr<std::unique_ptr<Transport>> RankGroup::JoinOthers(kernels::Device& on, int index,
                                                                 const std::vector<int>& devices,
                                                                 const std::string& id,
                                                                 int max_groups) {
  const auto own = std::find(devices.begin(), devices.end(), index) - devices.begin();
  std::vector<int> peers;
  for (int other = 0; other < std::ssize(devices); ++other) {
    if (other != own) peers.push_back(other);
  }
  return JoinCommunicator(on, {.id = id,
                               .ranks = static_cast<int>(devices.size()),
                               .rank = static_cast<int>(own),
                               .peers = peers,
                               .max_groups = max_groups});
}

absl::Status RankGroup::ConnectByNccl(const Schedule& lowered) {
  ASSIGN_OR_RETURN(const std::vector<std::string> ids, AgreeOnIds());
  const int columns = mesh_.num_columns(), parts = mesh_.num_parts();
  absl::Status any = ForEachLocalDevice([&](int index) -> absl::Status {
    const schedule::Rank rank = mesh_.rank_of(index);
    ASSIGN_OR_RETURN(
        members_[Index(index)].transport,
        JoinCommunicator(device(index),
                         {.id = ids[Index(mesh_.column_of(index))],
                          .ranks = mesh_.num_ranks(),
                          .rank = rank.value(),
                          .peers = PeersOf(lowered, rank),
                          // Every transfer might be a group, and every collective is one, except
                          // for the parts of ties.
                          .max_groups = static_cast<int>(lowered.list_of(rank).size()) +
                                        options_.ties * partition::kTieParts}));
    return absl::OkStatus();
  });
  if (any.ok() && parts > 1) {
    any = ForEachLocalDevice([&](int index) -> absl::Status {
      const int group =
          mesh_.rank_of(index).value() * mesh_.num_replicas() + mesh_.replica_of(index);
      ASSIGN_OR_RETURN(members_[Index(index)].parts,
                       JoinOthers(device(index), index, PartsOf(index),
                                  ids[Index(columns + NumReplicaGroups() + group)],
                                  TransportPartSums::MostGroups(parts, options_.part_rounds)));
      return absl::OkStatus();
    });
  }
  if (any.ok() && mesh_.num_replicas() > 1) {
    any = ForEachLocalDevice([&](int index) -> absl::Status {
      Member& member = members_[Index(index)];
      const int group = mesh_.rank_of(index).value() * parts + mesh_.part_of(index);
      absl::Status status;
      member.beside->stream().Run([&] {
        absl::StatusOr<std::unique_ptr<Transport>> joined =
            JoinOthers(*member.beside, index, ReplicasOf(index), ids[Index(columns + group)],
                       Reduction::kMostGroups);
        status = joined.status();
        if (joined.ok()) member.replicas = *std::move(joined);
      });
      return status;
    });
  }
  return any.ok() ? any : status();
}

}  // namespace stagecoach::engine
