#ifndef STAGECOACH_ENGINE_LAUNCH_SUPERVISOR_H_
#define STAGECOACH_ENGINE_LAUNCH_SUPERVISOR_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "engine/launch/launch.h"
#include "engine/launch/socket.h"

namespace stagecoach::engine {

// A launcher that can replace a single process of its run, as the processes see it: each has a
// socket to it, whose number is in STAGECOACH_SUPERVISOR. A process says that it can go on without
// any other one. If one is lost while all others have said so, the launcher starts another in its
// place, and tells the others where all meet again; else it ends them.
class Supervisor {
 public:
  // What is sent: kCanGoOn by a process, ToText by the launcher, one message (SOCK_SEQPACKET) each.
  static constexpr absl::string_view kCanGoOn = "can go on";
  static std::string ToText(const Launch& launch);

  // Null: this process has none.
  static std::unique_ptr<Supervisor> Find(Environment get);
  static std::unique_ptr<Supervisor> Find();

  explicit Supervisor(Descriptor socket) : socket_(std::move(socket)) {}

  // From now on this process can go on. Unavailable: the launcher is gone.
  absl::Status CanGoOn();
  bool can_go_on() const { return can_go_on_; }

  // After a failure: `launch` with the id and the place at which all meet again, by the last word
  // of the launcher. Unavailable: it ends the run. DeadlineExceeded: it has not missed a process.
  absl::StatusOr<Launch> AwaitReplacement(Launch launch, base::Deadline deadline);

 private:
  Descriptor socket_;
  bool can_go_on_ = false;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_LAUNCH_SUPERVISOR_H_
