#ifndef STAGECOACH_ENGINE_COMM_SUPERVISOR_H_
#define STAGECOACH_ENGINE_COMM_SUPERVISOR_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "engine/comm/launch.h"
#include "engine/comm/socket.h"

namespace stagecoach::engine {

// A launcher that can replace a single process of its run, as seen by the processes: each has a
// socket to it, whose number is in STAGECOACH_SUPERVISOR. A process announces that it can continue
// without any other one. If one is lost after all others have done so, the launcher starts another
// in its place, and tells the others where all meet again; otherwise it ends them.
class Supervisor {
 public:
  // The messages: kCanGoOn by a process, ToText by the launcher, one message (SOCK_SEQPACKET) each.
  static constexpr absl::string_view kCanGoOn = "can continue";
  static std::string ToText(const Launch& launch);

  // Returns null if this process has none.
  static std::unique_ptr<Supervisor> Find(Environment get);
  static std::unique_ptr<Supervisor> Find();

  explicit Supervisor(Descriptor socket) : socket_(std::move(socket)) {}

  // Announces that this process can continue from now on. Unavailable: the launcher is gone.
  absl::Status CanGoOn();
  bool can_go_on() const { return can_go_on_; }

  // Called after a failure: returns `launch` with the id and the place at which all meet again, by
  // the last message of the launcher. Unavailable: it ends the run. DeadlineExceeded: it has not
  // missed a process.
  absl::StatusOr<Launch> AwaitReplacement(Launch launch, base::Deadline deadline);

 private:
  Descriptor socket_;
  bool can_go_on_ = false;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_COMM_SUPERVISOR_H_
