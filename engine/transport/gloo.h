#ifndef STAGECOACH_ENGINE_TRANSPORT_GLOO_H_
#define STAGECOACH_ENGINE_TRANSPORT_GLOO_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/transport/transport.h"

namespace stagecoach::engine {

struct GlooOptions {
  int process = 0;  // this one: its rank of the launch
  // Those that the mesh connects, ascending, this one among them.
  std::vector<int> processes;
  // Where this process listens: the number of an address of this host, to which sockets can be
  // bound and which all others reach.
  std::string address;
  // Returns the text of every process of the launch, by process, once all have called it; is called
  // several times.
  std::function<absl::StatusOr<std::vector<std::string>>(const std::string&)> gather = nullptr;
  absl::Duration deadline;  // of connecting with each of them
};

// The TCP connections of this process with others of a run, made by Gloo, for tensors in host
// memory. A thread of Gloo's moves what has been posted, beside the work of the devices.
//
// Until all are connected, others may connect as well, as a scan of ports does: the processes show
// each other numbers that strangers do not know, and begin anew where one does not. Nothing listens
// after that.
//
// A message moves once both its ends are posted, and messages are told apart by what they are
// (Message), so that a difference between the two ends is found at the deadline. A process that
// ends or is killed ends the waits of those that wait for it at once, with Unavailable.
class GlooMesh {
 public:
  static std::shared_ptr<GlooMesh> Create();
  virtual ~GlooMesh() = default;

  // Once, before Join. All processes of the launch call it at the same time, each from a thread
  // that does nothing else than to use the mesh: in it, and in all that post, SIGPIPE is blocked
  // from then on. Errors of `gather`; DeadlineExceeded or Unavailable: a connection could not be
  // made; Unavailable: Abort.
  virtual absl::Status Connect(const GlooOptions& options) = 0;
  // Ends a Connect that is under way or to come: Gloo would wait for the others until the deadline,
  // even if they are dead. Thread-safe.
  virtual void Abort() = 0;

  // One rank's end of a group of ranks. `processes`: of each rank; that of `rank` is this one.
  // Groups of different `channel`s (0 to 3: the next are of Gloo's collectives) do not see one
  // another's messages. At most one rank of a process is in the group. It keeps the mesh alive.
  // Only a group of all the mesh's processes, in their order, can sum. Gloo's all-reduce then runs
  // in Wait, and Abort ends it and all else that the mesh has under way.
  virtual std::unique_ptr<Transport> Join(Rank rank, std::vector<int> processes, int channel) = 0;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_TRANSPORT_GLOO_H_
