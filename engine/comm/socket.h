#ifndef STAGECOACH_ENGINE_COMM_SOCKET_H_
#define STAGECOACH_ENGINE_COMM_SOCKET_H_

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
  std::string host;  // a name or numeric address, without brackets
  int port = 0;      // from 1
};

// Parses "host:port" or "[host]:port". InvalidArgument.
absl::StatusOr<Address> ParseAddress(absl::string_view text);

// Returns true for "localhost", 127.x.y.z or ::1, as written: what a name resolves to differs among
// hosts.
bool IsLoopback(const std::string& host);

// All sockets are non-blocking TCP sockets that children of this process do not inherit.

// Listens at the port of the loopback interfaces that the host means, or of every interface if it
// is not a loopback address, since it may be known by other addresses elsewhere.
// FailedPrecondition: another program listens there, or this user may not.
absl::StatusOr<Descriptor> Listen(const Address& address);

// Makes one attempt. Unavailable: no process listens there, or the name is not known yet.
absl::StatusOr<Descriptor> Connect(const Address& address, base::Deadline deadline);

// Makes small messages leave at once, and detects a host that has gone silent eventually. Connect
// does so for what it returns.
void Tune(const Descriptor& socket);

// Sends all of it. Unavailable: the other end has gone away.
absl::Status SendAll(const Descriptor& socket, absl::string_view bytes, base::Deadline deadline);

// Returns at least one byte of what arrives. Unavailable: the other end has gone away.
absl::StatusOr<std::string> ReceiveSome(const Descriptor& socket, base::Deadline deadline);

// Returns the numeric form of an address of this host, which `host` names, to which sockets can be
// bound: one of its loopback interface only if there is no other. Unavailable: there is none.
absl::StatusOr<std::string> OwnHost(const std::string& host);

// Returns the numeric address of this end; "" if it has none.
std::string LocalHost(const Descriptor& socket);

// Returns the argument of poll(): milliseconds, rounded up, -1 for no limit.
int PollTimeout(base::Deadline deadline);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_COMM_SOCKET_H_
