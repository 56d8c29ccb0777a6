#ifndef STAGECOACH_TESTS_TESTING_FREE_PORT_H_
#define STAGECOACH_TESTS_TESTING_FREE_PORT_H_

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>

#include "base/check.h"

namespace stagecoach::testing {

// A TCP port of the loopback interface that was free a moment ago, and so was the next one.
inline int FreePort() {
  for (;;) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    const int first = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int second = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    STAGECOACH_CHECK(bind(first, any, size) == 0 && getsockname(first, any, &size) == 0,
                     "no port is free");
    const int port = ntohs(address.sin_port);
    address.sin_port = htons(static_cast<uint16_t>(port + 1));
    const bool both = port < 65535 && bind(second, any, size) == 0;
    close(first);
    close(second);
    if (both) return port;
  }
}

}  // namespace stagecoach::testing

#endif  // STAGECOACH_TESTS_TESTING_FREE_PORT_H_
