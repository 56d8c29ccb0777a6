#ifndef STAGECOACH_ENGINE_COMM_GLOO_H_
#define STAGECOACH_ENGINE_COMM_GLOO_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/comm/transport.h"

namespace stagecoach::engine {

struct GlooOptions {
  int process = 0;  // this process's rank in the launch
  // The processes that the mesh connects, ascending, including this one.
  std::vector<int> processes;
  // The address at which this process listens: a numeric address of this host, to which sockets can
  // be bound and which all others reach.
  std::string address;
  // Returns the text of every process of the launch, by process, once all have called it; called
  // several times.
  std::function<absl::StatusOr<std::vector<std::string>>(const std::string&)> gather = nullptr;
  absl::Duration deadline;  // for connecting with each of them
};

// The TCP connections of this process with others of a run, made by Gloo, for tensors in host
// memory. A thread of Gloo's moves what has been posted, concurrently with the work of the devices.
//
// Until all are connected, others may connect as well, as a port scan does: the processes show each
// other numbers that strangers do not know, and start over if one does not. Nothing listens after
// that.
//
// A message moves once both its ends are posted, and messages are told apart by what they are
// (Message), so that a difference between the two ends is found at the deadline. If a process ends
// or is killed, waits for it end at once, with Unavailable.
class GlooMesh {
 public:
  static std::shared_ptr<GlooMesh> Create();
  virtual ~GlooMesh() = default;

  // Connects the mesh; to be called once, before Join. All processes of the launch call it
  // concurrently, each from a thread that does nothing but use the mesh: in it, and in all threads
  // that post, SIGPIPE is blocked from then on. Errors of `gather`; DeadlineExceeded or
  // Unavailable: a connection could not be made; Unavailable: Abort.
  virtual absl::Status Connect(const GlooOptions& options) = 0;
  // Ends a Connect that is in progress or to come: Gloo would wait for the others until the
  // deadline, even if they are dead. Thread-safe.
  virtual void Abort() = 0;

  // Returns one rank's end of a group of ranks. `processes`: the process of each rank; that of
  // `rank` is this one. Groups of different `channel`s (0 to 3: the next are of Gloo's collectives)
  // do not see one another's messages. At most one rank of a process is in the group. It keeps the
  // mesh alive. Only a group of all the mesh's processes, in their order, can sum. Gloo's
  // all-reduce then runs in Wait, and Abort ends it and everything else in progress in the mesh.
  virtual std::unique_ptr<Transport> Join(Rank rank, std::vector<int> processes, int channel) = 0;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_COMM_GLOO_H_
