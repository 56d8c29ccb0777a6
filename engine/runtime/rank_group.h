#ifndef STAGECOACH_ENGINE_RUNTIME_RANK_GROUP_H_
#define STAGECOACH_ENGINE_RUNTIME_RANK_GROUP_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/mutex.h"
#include "engine/comm/communicator.h"
#include "engine/comm/rendezvous.h"
#include "engine/comm/transport.h"
#include "engine/runtime/device/device_spec.h"
#include "engine/runtime/device/mesh.h"
#include "kernels/device.h"
#include "partition/cost/replication.h"
#include "schedule/ir/schedule.h"

namespace stagecoach::engine {

class GlooMesh;

// The way in which devices exchange tensors. It determines how ranks perform transfers
// (TransfersOf), for which schedules are lowered, and so how a simulation of the run sends
// (schedule::SendsOf).
enum class Exchange : uint8_t {
  // CPU devices: kCopies; among several processes, over TCP (engine/comm/gloo.h). CUDA devices:
  // kNccl between several GPUs or several processes, kCopies otherwise.
  kAuto,
  kCopies,  // directly from one device's memory to another's, within this process
  kNccl,    // NCCL, at most one device per GPU
};

struct RankGroupOptions {
  int ranks = 1;                       // of the schedule
  partition::Replication replication;  // of each rank: every replica is on devices of its own
  int tensor_parts = 1;                // devices of a replica of a rank
  int part_rounds = 0;                 // partition::PartExchange::rounds of a step, at most
  int ties = 0;                        // pairs of tied parameters (TiedGradients)
  DeviceSpec device;
  Exchange exchange = Exchange::kAuto;
  // With one process per device, this one has device rendezvous->rank(). Null: this process has
  // all.
  Rendezvous* rendezvous = nullptr;
  // Lines "name: value" that must be the same, in the same order, in all processes.
  std::string fingerprint;
  absl::Duration deadline = absl::Minutes(5);  // for any wait of one rank for another

  int devices() const { return ranks * replication.replicas * tensor_parts; }
};

// Checks the options. InvalidArgument: devices that cannot exchange tensors or sum in that way, a
// device without a GPU, or another number of processes than devices.
absl::Status CheckRankGroup(const RankGroupOptions& options);

// Returns whether those devices exchange tensors by NCCL, and so perform transfers in groups.
bool UsesNccl(const RankGroupOptions& options);
inline schedule::Transfers TransfersOf(const RankGroupOptions& options) {
  return UsesNccl(options) ? schedule::Transfers::kGrouped : schedule::Transfers::kSeparate;
}

// The devices of a run that are in this process, connected with one another and with those of other
// processes. Work is done on all of them at once; the first failure ends the waits of all, and
// every later call fails with it. Among processes, failures are reported through the rendezvous: a
// process that fails writes its reason there, and a working one looks there a few times a second.
// So a failure that NCCL does not pass on and, with a tcp place, the death of a process end the
// waits of all within a second, or, above a thousand processes, Rendezvous::look_interval. Each
// process also shows there that it is alive, and where it is: a wait that reaches its deadline is
// blamed on processes that do not, and not on one that waits for them itself. Not thread-safe.
class RankGroup {
 public:
  // `lowered`: the schedule that says which ranks exchange tensors. Errors: those of MakeDevice and
  // of the connections; InvalidArgument if the number of processes differs from that of ranks, or
  // if only one process can connect the devices.
  static absl::StatusOr<std::unique_ptr<RankGroup>> Connect(const RankGroupOptions& options,
                                                            const schedule::Schedule& lowered);
  ~RankGroup();
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  const Mesh& mesh() const { return mesh_; }
  // Sets the function that describes this process's state to the others (Rendezvous::Heartbeat): it
  // is called from now on until Disconnect while devices are at work, concurrently with them.
  absl::Status DescribeBy(std::function<std::string()> activity);
  // Names by device: "rank 2 (stage 2, replica 0)".
  const std::vector<std::string>& names() const { return names_; }
  // The devices of this process, by their numbers in the mesh, ascending.
  const std::vector<int>& local_devices() const { return local_devices_; }
  kernels::Device& device(int index) const { return *members_[Index(index)].device; }
  // Connects a device with those of the other ranks of its replica and part.
  Transport& transport(int device) const { return *members_[Index(device)].transport; }
  // Connects it with those of its rank and replica that have the other parts. Null if it has none.
  Transport* parts(int device) const { return members_[Index(device)].parts.get(); }
  // Connects it with those of the other replicas of its rank, for work next to that of the device:
  // on a second device of the same place. Null if there is one replica.
  Transport* replicas(int device) const { return members_[Index(device)].replicas.get(); }
  kernels::Device* beside(int device) const { return members_[Index(device)].beside.get(); }

  bool is_among_processes() const { return options_.rendezvous != nullptr; }
  // Among processes, between runs: shows the others how fast this one computes, in a text without
  // line breaks. On rank 0, returns what each has shown last, by rank, "" if nothing; otherwise,
  // and if the rendezvous fails, which other calls will detect, returns nothing. Not to be called
  // more often than pace_interval().
  std::vector<std::string> ShowPace(const std::string& step_time);
  absl::Duration pace_interval() const;

  // Calls function(device) for each device of this process, in a job of its stream, all
  // concurrently. Returns the first error by device.
  absl::Status ForEachLocalDevice(absl::FunctionRef<absl::Status(int)> function);
  // Does the same for what the ranks do together: the first to fail ends the waits of the others,
  // and its error is returned now and from then on.
  absl::Status RunCollective(absl::FunctionRef<absl::Status(int)> function);
  // Between runs, waits for something in this process that may itself wait for other processes:
  // calls is_done, which waits at most until the given time, until it returns true. Watches the
  // other processes meanwhile; their failure is its error.
  absl::Status WaitUntil(absl::FunctionRef<bool(base::Deadline until)> is_done);
  // Among processes: returns every process's text, by rank, once all have called this at the same
  // place. If a process passes an error, its own call returns that error, and the waits of all
  // others end: Aborted. In one process: `own` alone.
  absl::StatusOr<std::vector<std::string>> Gather(const absl::StatusOr<std::string>& own);
  // Does the same without texts.
  absl::Status Agree(const absl::Status& own);
  // Ends the group with this error: it is sent to the other processes, and returned now and from
  // then on, unless there was one before, which is likely to be its cause. Thread-safe.
  absl::Status Fail(const absl::Status& own);
  // Returns the error of a RunCollective that failed, of a Fail or, among processes, of a Gather.
  absl::Status status();

  // Ends what ranks still wait for, and cuts their connections: to be called before memory is freed
  // that transfers may use.
  void Disconnect();

 private:
  struct Job final : kernels::Job {
    void Run() override { status = (*function)(device); }
    const absl::FunctionRef<absl::Status(int)>* function = nullptr;
    int device = 0;
    absl::Status status;
    kernels::Event done;
  };
  struct Member {
    std::unique_ptr<kernels::Device> device, beside;
    std::unique_ptr<Transport> transport, replicas, parts;
    std::unique_ptr<Job> job;
  };

  explicit RankGroup(const RankGroupOptions& options)
      : options_(options),
        mesh_(options.ranks, options.replication.replicas, options.tensor_parts) {}
  static size_t Index(int device) { return static_cast<size_t>(device); }
  base::Deadline Deadline() const { return base::Deadline::After(options_.deadline); }
  absl::Status MakeDevices();
  absl::Status ConnectByCopies(const schedule::Schedule& lowered);
  absl::Status ConnectPartsByCopies();
  absl::Status ConnectReplicasByCopies();
  // Returns the devices of a column by rank, and those of the other replicas or parts of a device,
  // itself included.
  std::vector<int> ColumnOf(int device) const;
  std::vector<int> ReplicasOf(int device) const;
  std::vector<int> PartsOf(int device) const;
  absl::Status ConnectByGloo();
  absl::Status ConnectByNccl(const schedule::Schedule& lowered);
  // Connects a device of this process with the other ranks of a communicator, in which it is
  // `options.rank`, by `on`, the device or the one beside it.
  absl::StatusOr<std::unique_ptr<Transport>> JoinCommunicator(kernels::Device& on,
                                                              kernels::CommunicatorOptions options);
  // Does so for a device of this process and the others of `devices`, where it is one of.
  absl::StatusOr<std::unique_ptr<Transport>> JoinOthers(kernels::Device& on, int index,
                                                        const std::vector<int>& devices,
                                                        const std::string& id, int max_groups);
  // Returns the number of groups of replicas.
  int NumReplicaGroups() const {
    return mesh_.num_replicas() > 1 ? mesh_.num_ranks() * mesh_.num_parts() : 0;
  }
  // Returns FailedPrecondition if the processes do not train the same.
  absl::Status CompareFingerprints();
  // Returns names for the groups of devices that communicate: those of each column, then those of
  // replicas, then those of parts.
  absl::StatusOr<std::vector<std::string>> AgreeOnIds();
  // Waits for what ForEachLocalDevice has submitted, and watches the other processes meanwhile.
  void Await(Job& job);
  void LookAtOthers();
  absl::Status Heartbeat();
  // Ends what the devices of this process wait for.
  void AbortAll(const absl::Status& reason);
  // Called after an abort, in a job of the device: ends its transfers, and the work beside it.
  void EndTransfers(int index);
  // Returns why another process is gone, if `own` says that one is and the reason becomes known.
  // Holds the rendezvous.
  absl::Status FailureElsewhere(const absl::Status& own);
  // Returns the cause if a wait's deadline has passed, and others were silent.
  absl::Status CauseOf(const absl::Status& own,
                       const std::vector<Rendezvous::Silent>& silent) const;
  absl::Status NoteFirst(const absl::Status& error);

  const RankGroupOptions options_;
  const Mesh mesh_;
  std::vector<int> local_devices_;
  std::vector<std::string> names_;  // of devices, for messages
  std::function<std::string()> activity_;
  // Meshes of the transports, if these are Gloo's: of all processes, and for a ring of the
  // replicas.
  std::vector<std::shared_ptr<GlooMesh>> meshes_;
  bool is_connected_ = false;    // the members no longer change
  std::vector<Member> members_;  // index: device; empty if one is elsewhere
  const std::shared_ptr<AbortFlag> abort_ = std::make_shared<AbortFlag>();  // of communicators
  base::Mutex rendezvous_mutex_;  // held to use options_.rendezvous: jobs report their failures
                                  // there
  base::Mutex mutex_;
  absl::Status first_error_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_RUNTIME_RANK_GROUP_H_
