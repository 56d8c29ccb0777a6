#ifndef STAGECOACH_ENGINE_RUN_RANK_GROUP_H_
#define STAGECOACH_ENGINE_RUN_RANK_GROUP_H_

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
#include "engine/device/device_spec.h"
#include "engine/device/mesh.h"
#include "engine/launch/rendezvous.h"
#include "engine/transport/communicator.h"
#include "engine/transport/transport.h"
#include "kernels/device.h"
#include "partition/replication.h"
#include "schedule/schedule.h"

namespace stagecoach::engine {

class GlooMesh;

// How devices exchange tensors. It determines how ranks perform transfers (TransfersOf), for which
// schedules are lowered, and so how a simulation of the run sends (schedule::SendsOf).
enum class Exchange : uint8_t {
  // CPU devices: kCopies; among several processes, over TCP (transport/gloo.h). CUDA devices:
  // kNccl between several GPUs or several processes, kCopies otherwise.
  kAuto,
  kCopies,  // straight from one device's memory to another's, within this process
  kNccl,    // NCCL, at most one device on each GPU
};

struct RankGroupOptions {
  int ranks = 1;     // of the schedule
  int replicas = 1;  // of each rank, each on a device of its own
  partition::ReductionKind reduction = partition::ReductionKind::kTree;  // among them
  int ties = 0;  // pairs of tied parameters (TiedGradients)
  DeviceSpec device;
  Exchange exchange = Exchange::kAuto;
  // One process per device: this one has device rendezvous->rank(). Null: this process has all.
  Rendezvous* rendezvous = nullptr;
  // What must be the same in all processes: lines "name: value", in the same order.
  std::string fingerprint;
  absl::Duration deadline = absl::Minutes(5);  // of any wait of one rank for another

  int devices() const { return ranks * replicas; }
};

// InvalidArgument: devices that cannot exchange tensors or sum in that way, a device without a GPU,
// or another number of processes than devices.
absl::Status CheckRankGroup(const RankGroupOptions& options);

// Whether those devices exchange tensors by NCCL, and so perform transfers in groups.
bool UsesNccl(const RankGroupOptions& options);
inline schedule::Transfers TransfersOf(const RankGroupOptions& options) {
  return UsesNccl(options) ? schedule::Transfers::kGrouped : schedule::Transfers::kSeparate;
}

// The devices of a run that are in this process, connected with one another and with those of other
// processes. Work is done on all of them at once; the first failure ends the waits of all, and
// every later call fails with it. Among processes, failures are reported through the rendezvous: a
// process that fails writes its reason there, and a working one looks there a few times a second.
// So a failure that NCCL does not pass on, and (tcp place) a process that was killed, ends the
// waits of all within a second, or, above a thousand processes, Rendezvous::look_interval. Each
// process also shows there that it lives, and where it is: a wait that reaches its deadline is
// blamed on those that do not, and not on one that waits for them itself.
// Not thread-safe.
class RankGroup {
 public:
  // `lowered`: the schedule that says which ranks exchange tensors. Errors: those of MakeDevice and
  // of the connections; InvalidArgument if the processes are another number than the ranks, or of
  // devices that only one process can connect.
  static absl::StatusOr<std::unique_ptr<RankGroup>> Connect(const RankGroupOptions& options,
                                                            const schedule::Schedule& lowered);
  ~RankGroup();
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  const Mesh& mesh() const { return mesh_; }
  // In what this process is, for the others to know (Rendezvous::ShowLife): asked from now on until
  // Disconnect while devices are at work, and beside it.
  absl::Status DescribeBy(std::function<std::string()> activity);
  // "rank 2 (stage 2, replica 0)", by device.
  const std::vector<std::string>& names() const { return names_; }
  // The devices of this process, by their numbers in the mesh, ascending.
  const std::vector<int>& local_devices() const { return local_devices_; }
  kernels::Device& device(int index) const { return *members_[Index(index)].device; }
  // Connects a device with those of the other ranks of its replica.
  Transport& transport(int device) const { return *members_[Index(device)].transport; }
  // Connects it with those of the other replicas of its rank, for work beside that of the device:
  // on a second device of the same place. Null if there is one replica.
  Transport* replicas(int device) const { return members_[Index(device)].replicas.get(); }
  kernels::Device* beside(int device) const { return members_[Index(device)].beside.get(); }

  bool is_among_processes() const { return options_.rendezvous != nullptr; }
  // Among processes, between runs: shows the others how fast this one computes, in a text without
  // line breaks. For rank 0 by rank what they have shown last, "" if nothing; else, and if the
  // rendezvous fails, which other calls find, nothing. Not to be called more often than that.
  std::vector<std::string> ShowPace(const std::string& pace);
  absl::Duration pace_interval() const;

  // Calls function(device) for each device of this process, in a job of its stream, all at the same
  // time. The first error by device.
  absl::Status OnEach(absl::FunctionRef<absl::Status(int)> function);
  // The same for what the ranks do together: the first to fail ends the waits of the others, and
  // its error is returned now and from then on.
  absl::Status Together(absl::FunctionRef<absl::Status(int)> function);
  // Between runs, waits for something in this process that may itself wait for other processes:
  // calls is_done, which waits until then at most, until it says so. Looks after the other
  // processes meanwhile; their failure is its error.
  absl::Status WaitUntil(absl::FunctionRef<bool(base::Deadline until)> is_done);
  // Among processes: every process's text, by rank, once all have called this at the same place. A
  // process that comes with an error, which it is given back, ends the wait of all others: Aborted.
  // In one process: `own` alone.
  absl::StatusOr<std::vector<std::string>> Gather(const absl::StatusOr<std::string>& own);
  // The same without texts.
  absl::Status Agree(const absl::Status& own);
  // Ends the group with this error: it is told to the other processes, and returned now and from
  // then on, unless there was one before, which is likely to be its cause. Thread-safe.
  absl::Status Fail(const absl::Status& own);
  // The error of a Together that failed, of a Fail or, among processes, of a Gather.
  absl::Status status();

  // Ends what ranks still wait for, and cuts their connections: before memory is freed that
  // transfers may use.
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
    std::unique_ptr<Transport> transport, replicas;
    std::unique_ptr<Job> job;
  };

  explicit RankGroup(const RankGroupOptions& options)
      : options_(options), mesh_(options.ranks, options.replicas) {}
  static size_t Index(int device) { return static_cast<size_t>(device); }
  base::Deadline Deadline() const { return base::Deadline::After(options_.deadline); }
  absl::Status MakeDevices();
  absl::Status ConnectByCopies(const schedule::Schedule& lowered);
  absl::Status ConnectByGloo();
  absl::Status ConnectByNccl(const schedule::Schedule& lowered);
  // Connects a device of this process with the other ranks of a communicator, of which it is
  // `options.rank`, by `on`, the device or the one beside.
  absl::StatusOr<std::unique_ptr<Transport>> JoinCommunicator(kernels::Device& on,
                                                              kernels::CommunicatorOptions options);
  // FailedPrecondition if the processes do not train the same.
  absl::Status CompareFingerprints();
  // Names for the groups of devices that communicate: those of each replica, then those of each
  // rank.
  absl::StatusOr<std::vector<std::string>> AgreeOnIds();
  // Waits for what OnEach has submitted, and looks after the other processes meanwhile.
  void Await(Job& job);
  void LookAtOthers();
  absl::Status ShowLife();
  // Ends what the devices of this process wait for.
  void AbortAll(const absl::Status& reason);
  // Why another process is gone, if `own` says that one is and the reason comes to be known. Holds
  // the rendezvous.
  absl::Status FailureElsewhere(const absl::Status& own);
  // A wait's deadline has passed, and others were silent.
  absl::Status CauseOf(const absl::Status& own,
                       const std::vector<Rendezvous::Silent>& silent) const;
  absl::Status NoteFirst(const absl::Status& error);

  const RankGroupOptions options_;
  const Mesh mesh_;
  std::vector<int> local_devices_;
  std::vector<std::string> names_;  // of devices, for messages
  std::function<std::string()> activity_;
  // Of the transports, if they are Gloo's: of all processes, and for a ring of the replicas'.
  std::vector<std::shared_ptr<GlooMesh>> meshes_;
  bool is_connected_ = false;    // the members stay as they are
  std::vector<Member> members_;  // index: device; empty where one is elsewhere
  const std::shared_ptr<AbortFlag> abort_ = std::make_shared<AbortFlag>();  // of communicators
  base::Mutex rendezvous_mutex_;  // held to use options_.rendezvous: jobs tell their failures there
  base::Mutex mutex_;
  absl::Status first_error_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_RUN_RANK_GROUP_H_
