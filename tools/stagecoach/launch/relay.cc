#include "tools/stagecoach/launch/relay.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/deadline.h"

namespace stagecoach::tools {

bool SaidErrors::IsAnother(int rank, const std::string& line) {
  const std::string own = absl::StrCat(": rank ", rank, ": ");
  const size_t at = line.find(own);
  if (!absl::StartsWith(line, "stagecoach ") || at == std::string::npos) return false;
  std::set<int>& by = said_[line.substr(0, at) + line.substr(at + own.size() - 2)];
  if (by.contains(rank)) by.clear();
  by.insert(rank);
  return by.size() > 1;
}

void Relay::PassOn() {
  char buffer[64 << 10];
  const ssize_t bytes = read(from_.get(), buffer, sizeof(buffer));
  if (bytes < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (bytes <= 0) {
    End();
    return;
  }
  rest_.append(buffer, static_cast<size_t>(bytes));
  for (size_t end; (end = rest_.find('\n')) != std::string::npos;) {
    Write(rest_.substr(0, end));
    rest_.erase(0, end + 1);
  }
  std::fflush(to_);
}

void Relay::Drain() {
  const base::Deadline end = base::Deadline::After(absl::Seconds(1));
  while (from_.valid() && !end.Expired()) {
    pollfd polled = {.fd = from_.get(), .events = POLLIN, .revents = 0};
    if (poll(&polled, 1, engine::PollTimeout(end)) > 0) PassOn();
  }
  if (from_.valid()) End();
}

void Relay::End() {
  if (!rest_.empty()) Write(std::exchange(rest_, ""));
  std::fflush(to_);
  from_ = engine::Descriptor();
}

void Relay::Write(const std::string& line) {
  if (!line.empty()) last_line_ = line;
  if (keeps_back_ && keeps_back_(line)) return;
  std::fprintf(to_, "%s%s\n", prefix_.c_str(), line.c_str());
}

}  // namespace stagecoach::tools
