#include "engine/comm/socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace stagecoach::engine {
namespace {

constexpr int kBacklog = 1024;
// Limit for one of a host's addresses, which may swallow what is sent to it while another answers.
constexpr absl::Duration kAttempt = absl::Seconds(5);

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

// `host` null: addresses of every interface, to listen at.
absl::StatusOr<Addresses> Resolve(const char* host, int port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (host == nullptr ? AI_PASSIVE : 0);
  addrinfo* list = nullptr;
  const int error = getaddrinfo(host, absl::StrCat(port).c_str(), &hints, &list);
  if (error != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot resolve ", host == nullptr ? "*" : host, ": ", gai_strerror(error)));
  }
  return Addresses(list);
}

absl::Status GoneAway(const char* what) {
  return absl::UnavailableError(absl::StrCat("the connection has ended: ", what,
                                             errno != 0 ? ": " : "",
                                             errno != 0 ? std::strerror(errno) : ""));
}

absl::StatusOr<Descriptor> OpenSocket(const addrinfo& address) {
  Descriptor socket(::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return absl::ErrnoToStatus(errno, "cannot make a socket");
  return socket;
}

// Waits until one of the events, or an error to be read from the socket.
absl::Status Await(const Descriptor& socket, short events, base::Deadline deadline) {
  while (true) {
    pollfd poll_socket = {.fd = socket.get(), .events = events, .revents = 0};
    const int ready = poll(&poll_socket, 1, PollTimeout(deadline));
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) return absl::ErrnoToStatus(errno, "cannot wait for a socket");
    if (deadline.Expired()) return absl::DeadlineExceededError("no answer in time");
  }
}

// Returns whether a connection to a free port of this host was assigned that very port as its own,
// so that it meets itself (simultaneous open); it would keep rank 0 from listening there.
bool MeetsItself(const Descriptor& socket) {
  sockaddr_storage mine = {};
  sockaddr_storage theirs = {};
  socklen_t mine_bytes = sizeof(mine);
  socklen_t their_bytes = sizeof(theirs);
  return getsockname(socket.get(), reinterpret_cast<sockaddr*>(&mine), &mine_bytes) == 0 &&
         getpeername(socket.get(), reinterpret_cast<sockaddr*>(&theirs), &their_bytes) == 0 &&
         mine_bytes == their_bytes && std::memcmp(&mine, &theirs, mine_bytes) == 0;
}

absl::StatusOr<Descriptor> ConnectTo(const addrinfo& address, base::Deadline deadline) {
  ASSIGN_OR_RETURN(Descriptor socket, OpenSocket(address));
  if (connect(socket.get(), address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS && errno != EINTR) {
      return absl::UnavailableError(std::strerror(errno));
    }
    RETURN_IF_ERROR(Await(socket, POLLOUT, deadline));
    int error = 0;
    socklen_t bytes = sizeof(error);
    getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &bytes);
    if (error != 0) return absl::UnavailableError(std::strerror(error));
  }
  if (MeetsItself(socket)) {
    // The connection is reset when it is closed: otherwise it would hold the port for another
    // minute.
    const linger reset = {.l_onoff = 1, .l_linger = 0};
    setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    return absl::UnavailableError("no process listens there");
  }
  Tune(socket);
  return socket;
}

absl::StatusOr<Descriptor> ListenAt(const addrinfo& address) {
  ASSIGN_OR_RETURN(Descriptor socket, OpenSocket(address));
  const int on = 1;
  const int off = 0;
  // Connections of an earlier launch that are still dying do not hold the port.
  setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (address.ai_family == AF_INET6) {
    setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  }
  if (bind(socket.get(), address.ai_addr, address.ai_addrlen) != 0 ||
      listen(socket.get(), kBacklog) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot listen there: ", std::strerror(errno)));
  }
  return socket;
}

}  // namespace

Descriptor::~Descriptor() {
  if (fd_ >= 0) close(fd_);
}

void Tune(const Descriptor& socket) {
  const int on = 1;
  setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(socket.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
}

absl::StatusOr<Address> ParseAddress(absl::string_view text) {
  const size_t colon = text.rfind(':');
  Address address;
  const bool has_port = colon != absl::string_view::npos &&
                        absl::SimpleAtoi(text.substr(colon + 1), &address.port) &&
                        address.port >= 1 && address.port <= 65535;
  absl::string_view host = has_port ? text.substr(0, colon) : "";
  if (absl::ConsumePrefix(&host, "[") && !absl::ConsumeSuffix(&host, "]")) host = "";
  if (host.empty()) {
    return absl::InvalidArgumentError("must be tcp://HOST:PORT, with a port from 1 to 65535");
  }
  address.host = std::string(host);
  return address;
}

bool IsLoopback(const std::string& host) {
  in_addr number;
  return host == "localhost" || host == "::1" ||
         (absl::StartsWith(host, "127.") && inet_pton(AF_INET, host.c_str(), &number) == 1);
}

absl::StatusOr<Descriptor> Listen(const Address& address) {
  const bool loopback = IsLoopback(address.host);
  ASSIGN_OR_RETURN(const Addresses addresses,
                   Resolve(loopback ? address.host.c_str() : nullptr, address.port));
  // IPv6 comes first if every interface is meant: it then takes IPv4's connections as well.
  absl::StatusOr<Descriptor> socket = absl::UnavailableError("the host has no address");
  for (const int family : {loopback ? AF_INET : AF_INET6, loopback ? AF_INET6 : AF_INET}) {
    for (const addrinfo* next = addresses.get(); next != nullptr; next = next->ai_next) {
      if (next->ai_family != family) continue;
      socket = ListenAt(*next);
      if (socket.ok()) return socket;
    }
  }
  return socket;
}

absl::StatusOr<Descriptor> Connect(const Address& address, base::Deadline deadline) {
  ASSIGN_OR_RETURN(const Addresses addresses, Resolve(address.host.c_str(), address.port));
  absl::StatusOr<Descriptor> socket = absl::UnavailableError("the host has no address");
  for (const addrinfo* next = addresses.get(); next != nullptr; next = next->ai_next) {
    const base::Deadline attempt = base::Deadline::After(std::min(kAttempt, deadline.Remaining()));
    socket = ConnectTo(*next, attempt);
    if (socket.ok()) return socket;
  }
  return socket;
}

absl::Status SendAll(const Descriptor& socket, absl::string_view bytes, base::Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      bytes.remove_prefix(static_cast<size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      RETURN_IF_ERROR(Await(socket, POLLOUT, deadline));
    } else if (errno != EINTR) {
      return GoneAway("cannot send");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReceiveSome(const Descriptor& socket, base::Deadline deadline) {
  std::string bytes(size_t{64} << 10, '\0');
  while (true) {
    errno = 0;
    const ssize_t received = recv(socket.get(), bytes.data(), bytes.size(), 0);
    if (received > 0) {
      bytes.resize(static_cast<size_t>(received));
      return bytes;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      RETURN_IF_ERROR(Await(socket, POLLIN, deadline));
    } else if (errno != EINTR) {
      return GoneAway("nothing more arrives");
    }
  }
}

absl::StatusOr<std::string> OwnHost(const std::string& host) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found); error != 0) {
    return absl::UnavailableError(absl::StrCat(host, ": ", gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  int error = EADDRNOTAVAIL;
  std::string loopback;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    const Descriptor socket(::socket(each->ai_family, each->ai_socktype | SOCK_CLOEXEC, 0));
    if (socket.valid() && bind(socket.get(), each->ai_addr, each->ai_addrlen) == 0) {
      std::string number = LocalHost(socket);
      if (!IsLoopback(number)) return number;
      if (loopback.empty()) loopback = std::move(number);
    } else {
      error = errno;
    }
  }
  if (!loopback.empty()) return loopback;
  return absl::UnavailableError(absl::StrCat(host, ": ", std::strerror(error)));
}

std::string LocalHost(const Descriptor& socket) {
  sockaddr_storage address = {};
  socklen_t length = sizeof(address);
  std::array<char, NI_MAXHOST> host = {};
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (getsockname(socket.get(), any, &length) != 0) return "";
  if (getnameinfo(any, length, host.data(), host.size(), nullptr, 0, NI_NUMERICHOST) != 0)
    return "";
  return host.data();
}

int PollTimeout(base::Deadline deadline) {
  if (deadline.IsNever()) return -1;
  const int64_t ms = absl::ToInt64Milliseconds(deadline.Remaining() + absl::Nanoseconds(999999));
  return static_cast<int>(std::min<int64_t>(ms, std::numeric_limits<int>::max()));
}

}  // namespace stagecoach::engine
