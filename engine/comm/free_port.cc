#include "engine/comm/free_port.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace stagecoach::engine {
namespace {

constexpr int kLastPort = 65535;

// Returns an invalid descriptor if the port is not free.
Descriptor Bind(int port) {
  Descriptor bound(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (!bound.valid() ||
      bind(bound.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    return {};
  }
  // The option is set only now: with it, binding would also succeed on a port that another process
  // holds.
  const int on = 1;
  setsockopt(bound.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  return bound;
}

int NumberOf(const Descriptor& bound) {
  sockaddr_in address = {};
  socklen_t bytes = sizeof(address);
  getsockname(bound.get(), reinterpret_cast<sockaddr*>(&address), &bytes);
  return ntohs(address.sin_port);
}

}  // namespace

absl::StatusOr<FreePort> FreePort::Take() {
  while (true) {
    Descriptor first = Bind(0);
    if (!first.valid()) {
      return absl::UnavailableError(absl::StrCat("no TCP port is free: ", std::strerror(errno)));
    }
    const int number = NumberOf(first);
    Descriptor second = number < kLastPort ? Bind(number + 1) : Descriptor();
    if (second.valid()) return FreePort(number, std::move(first), std::move(second));
  }
}

}  // namespace stagecoach::engine
