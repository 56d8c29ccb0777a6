#ifndef STAGECOACH_ENGINE_COMM_FREE_PORT_H_
#define STAGECOACH_ENGINE_COMM_FREE_PORT_H_

#include <utility>

#include "absl/status/statusor.h"
#include "engine/comm/socket.h"

namespace stagecoach::engine {

// A TCP port of the loopback interface, and the next one, that the system assigns to no other
// process during its lifetime: both are bound. Nothing listens there until a socket with
// SO_REUSEADDR does, such as that of a rendezvous.
class FreePort {
 public:
  // Takes a free port. Unavailable: no port is free.
  static absl::StatusOr<FreePort> Take();

  int number() const { return number_; }

 private:
  FreePort(int number, Descriptor first, Descriptor second)
      : number_(number), first_(std::move(first)), second_(std::move(second)) {}

  int number_;
  Descriptor first_, second_;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_COMM_FREE_PORT_H_
