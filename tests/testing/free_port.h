#ifndef STAGECOACH_TESTS_TESTING_FREE_PORT_H_
#define STAGECOACH_TESTS_TESTING_FREE_PORT_H_

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>

#include "base/check.h"

namespace stagecoach::testing {

// A TCP port of the loopback interface, and the next one, that the system gives to no other
// process while this lives: both are bound. Nothing listens there until a socket with SO_REUSEADDR
// does.
class FreePort {
 public:
  FreePort() {
    while (true) {
      first_ = Bind(0);
      STAGECOACH_CHECK(first_ >= 0, "no port is free");
      sockaddr_in address = {};
      socklen_t size = sizeof(address);
      getsockname(first_, reinterpret_cast<sockaddr*>(&address), &size);
      number_ = ntohs(address.sin_port);
      if (number_ < 65535) second_ = Bind(static_cast<uint16_t>(number_ + 1));
      if (second_ >= 0) return;
      close(first_);
    }
  }
  ~FreePort() {
    close(first_);
    close(second_);
  }
  FreePort(const FreePort&) = delete;
  FreePort& operator=(const FreePort&) = delete;

  int number() const { return number_; }

 private:
  // -1: the port is not free.
  static int Bind(uint16_t port) {
    const int bound = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(bound, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
      close(bound);
      return -1;
    }
    // Only now: it would also be bound beside a port that another test keeps.
    const int on = 1;
    setsockopt(bound, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    return bound;
  }

  int number_ = 0;
  int first_ = -1;
  int second_ = -1;
};

}  // namespace stagecoach::testing

#endif  // STAGECOACH_TESTS_TESTING_FREE_PORT_H_
