#ifndef STAGECOACH_ENGINE_LAUNCH_SOCKET_H_
#define STAGECOACH_ENGINE_LAUNCH_SOCKET_H_

#include <cstddef>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"

namespace stagecoach::engine {

// A file descriptor, closed with its owner. Move-only.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor();

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

struct Address {
  std::string host;  // a name or number, without brackets
  int port = 0;      // from 1
};

// From "host:port" or "[host]:port". InvalidArgument.
absl::StatusOr<Address> ParseAddress(absl::string_view text);

// "localhost", 127.x.y.z or ::1, as written: what a name resolves to differs among hosts.
bool IsLoopback(const std::string& host);

// All sockets are non-blocking TCP sockets that children of this process do not inherit.

// Listens at the port: of the loopback interfaces that the host means, or of every interface if it
// is not a loopback address, since it may be known by other addresses elsewhere.
// FailedPrecondition: another program does, or this user may not.
absl::StatusOr<Descriptor> Listen(const Address& address);

// One attempt. Unavailable: no process listens there, or the name is not known yet.
absl::StatusOr<Descriptor> Connect(const Address& address, base::Deadline deadline);

// Small messages leave at once, and a host that has gone silent is noticed in the end. Done for
// what Connect returns.
void Tune(const Descriptor& socket);

// Sends all of it. Unavailable: the other end has gone away.
absl::Status SendAll(const Descriptor& socket, absl::string_view bytes, base::Deadline deadline);

// At least one byte of what arrives. Unavailable: the other end has gone away.
absl::StatusOr<std::string> ReceiveSome(const Descriptor& socket, base::Deadline deadline);

// The number of an address of this host, which `host` names, to which sockets can be bound: one of
// its loopback interface only if there is no other. Unavailable: there is none.
absl::StatusOr<std::string> OwnHost(const std::string& host);

// The number of the address of this end; "" if it has none.
std::string LocalHost(const Descriptor& socket);

// What poll() takes: milliseconds, rounded up, -1 for ever.
int PollTimeout(base::Deadline deadline);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_LAUNCH_SOCKET_H_
