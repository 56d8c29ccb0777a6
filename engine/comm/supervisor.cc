#include "engine/comm/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdlib>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace stagecoach::engine {

std::string Supervisor::ToText(const Launch& launch) {
  return absl::StrCat(launch.id, " ", launch.rendezvous, " ", launch.restarts);
}

std::unique_ptr<Supervisor> Supervisor::Find(Environment get) {
  const std::optional<std::string> text = get("STAGECOACH_SUPERVISOR");
  int number = -1;
  int type = 0;
  socklen_t bytes = sizeof(type);
  // A process that this one's parent has started may have the variable without the socket.
  if (!text.has_value() || !absl::SimpleAtoi(*text, &number) || number < 0 ||
      getsockopt(number, SOL_SOCKET, SO_TYPE, &type, &bytes) != 0 || type != SOCK_SEQPACKET) {
    return nullptr;
  }
  fcntl(number, F_SETFD, FD_CLOEXEC);
  return std::make_unique<Supervisor>(Descriptor(number));
}

std::unique_ptr<Supervisor> Supervisor::Find() {
  return Find([](const char* name) -> std::optional<std::string> {
    const char* const value = std::getenv(name);
    if (value == nullptr) return std::nullopt;
    return value;
  });
}

absl::Status Supervisor::CanGoOn() {
  if (can_go_on_) return absl::OkStatus();
  can_go_on_ = send(socket_.get(), kCanGoOn.data(), kCanGoOn.size(), MSG_NOSIGNAL) >= 0;
  return can_go_on_ ? absl::OkStatus() : absl::UnavailableError("the launcher is gone");
}

absl::StatusOr<Launch> Supervisor::AwaitReplacement(Launch launch, base::Deadline deadline) {
  pollfd polled = {.fd = socket_.get(), .events = POLLIN, .revents = 0};
  int ready = 0;
  do {
    ready = poll(&polled, 1, PollTimeout(deadline));
  } while (ready < 0 && errno == EINTR);
  if (ready == 0) {
    return absl::DeadlineExceededError("the launcher has not replaced any process");
  }
  // If there are several messages, those before the last are obsolete.
  std::string last;
  char buffer[1024];
  ssize_t bytes = 0;
  while ((bytes = recv(socket_.get(), buffer, sizeof(buffer), MSG_DONTWAIT)) > 0) {
    last.assign(buffer, static_cast<size_t>(bytes));
  }
  if (bytes == 0 || last.empty()) return absl::UnavailableError("the launcher ends the run");
  const std::vector<std::string> words = absl::StrSplit(last, ' ');
  if (words.size() != 3 || !absl::SimpleAtoi(words[2], &launch.restarts)) {
    return absl::UnavailableError("the launcher is of another version");
  }
  launch.id = words[0];
  launch.rendezvous = words[1];
  return launch;
}

}  // namespace stagecoach::engine
