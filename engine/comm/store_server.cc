#include "engine/comm/store_server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/comm/places.h"

namespace stagecoach::engine {
namespace {

constexpr int kMaxCalls = 256;  // accepted at a time

}  // namespace

absl::StatusOr<std::unique_ptr<StoreServer>> StoreServer::Start(Descriptor socket, std::string id,
                                                                int ranks) {
  Descriptor stop(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop.valid()) return absl::ErrnoToStatus(errno, "cannot make an event descriptor");
  std::unique_ptr<StoreServer> server(
      new StoreServer(std::move(socket), std::move(stop), std::move(id), ranks));
  try {
    server->thread_ = std::thread(&StoreServer::Run, server.get());
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot start a thread: ", error.what()));
  }
  return server;
}

StoreServer::StoreServer(Descriptor socket, Descriptor stop, std::string id, int ranks)
    : socket_(std::move(socket)),
      stop_(std::move(stop)),
      id_(std::move(id)),
      membership_(static_cast<size_t>(ranks), Membership::kAlive),
      joined_(static_cast<size_t>(ranks), false) {}

void StoreServer::Stop(absl::Duration farewell, bool has_failed) {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(farewell_mutex_);
    farewell_ = {.at_most = farewell, .awaits_absent = has_failed};
  }
  eventfd_write(stop_.get(), 1);
  thread_.join();
}

void StoreServer::Run() {
  while (true) {
    WaitForSomething();
    for (Connection& connection : connections_) {
      const bool late = connection.rank < 0 && connection.join_by.Expired();
      if (connection.closed || late) Close(connection);
    }
    // Comes after everything that may have set a key or lost a rank.
    for (Connection& connection : connections_) AnswerWaiting(connection);
    for (Connection& connection : connections_) Write(connection);
    connections_.remove_if([](const Connection& connection) { return connection.closed; });
    if (!stopping_) continue;
    const bool all_left = absl::c_all_of(
        connections_, [](const Connection& connection) { return connection.rank < 0; });
    const bool all_came = absl::c_all_of(joined_, [](bool joined) { return joined; });
    if ((all_left && (all_came || !ending_.awaits_absent)) || end_.Expired()) return;
  }
}

void StoreServer::WaitForSomething() {
  base::Deadline first = end_;
  const auto until = [&first](base::Deadline deadline) {
    if (deadline.time() < first.time()) first = deadline;
  };
  const bool accepting = accept_after_.Expired();
  if (!accepting) until(accept_after_);
  std::vector<pollfd> polled = {
      {.fd = stop_.get(), .events = static_cast<short>(stopping_ ? 0 : POLLIN)},
      {.fd = socket_.get(), .events = static_cast<short>(accepting ? POLLIN : 0)}};
  for (const Connection& connection : connections_) {
    polled.push_back({.fd = connection.socket.get(),
                      .events = static_cast<short>(connection.out.empty() ? POLLIN : POLLOUT)});
    if (connection.rank < 0) until(connection.join_by);
    if (connection.waiting.has_value()) until(connection.waiting->deadline);
  }
  if (poll(polled.data(), polled.size(), PollTimeout(first)) <= 0) return;
  if (polled[0].revents != 0) {
    stopping_ = true;
    const std::lock_guard lock(farewell_mutex_);
    ending_ = farewell_;
    end_ = base::Deadline::After(ending_.at_most);
  }
  size_t index = 2;
  for (Connection& connection : connections_) {
    const short events = polled[index++].revents;
    if (events != 0 && connection.out.empty()) Read(connection);
  }
  if ((polled[1].revents & POLLIN) != 0) Accept();
}

void StoreServer::Accept() {
  // The limit keeps clients that connect repeatedly from starving the others.
  for (int calls = 0; calls < kMaxCalls; ++calls) {
    Descriptor socket(accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.valid()) {
      const bool transient =
          errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR || errno == ECONNABORTED;
      // An error such as too many open files is retried, but not immediately and forever.
      if (!transient) accept_after_ = base::Deadline::After(absl::Milliseconds(100));
      return;
    }
    DropStranger();
    Tune(socket);
    connections_.push_back(
        {.socket = std::move(socket), .join_by = base::Deadline::After(kJoinTime)});
  }
}

void StoreServer::DropStranger() {
  const auto is_stranger = [](const Connection& connection) { return connection.rank < 0; };
  const auto strangers = std::count_if(connections_.begin(), connections_.end(), is_stranger);
  if (static_cast<size_t>(strangers) < membership_.size() + kMaxStrangers) return;
  // Drops the oldest: a rank joins at once.
  connections_.erase(std::find_if(connections_.begin(), connections_.end(), is_stranger));
}

void StoreServer::Read(Connection& connection) {
  char buffer[64 << 10];
  const ssize_t received = recv(connection.socket.get(), buffer, sizeof(buffer), 0);
  if (received > 0) {
    connection.in.Append(absl::string_view(buffer, static_cast<size_t>(received)));
    Handle(connection);
  } else if (received == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
    connection.closed = true;
  }
}

void StoreServer::Handle(Connection& connection) {
  bool more = true;
  // One request at a time: while a reply is on its way, or waited for, nothing else is due.
  while (more && !connection.closed) {
    if (!HandleNext(connection, more)) connection.closed = true;
  }
}

bool StoreServer::HandleNext(Connection& connection, bool& more) {
  if (!connection.greeted) {
    const absl::StatusOr<bool> greeted = connection.in.TakeGreeting();
    if (!greeted.ok()) return false;
    connection.greeted = *greeted;
    more = *greeted;
    return true;
  }
  absl::StatusOr<std::optional<std::string>> frame =
      connection.in.TakeFrame(connection.rank < 0 ? kMaxJoinBytes : kMaxFrameBytes);
  if (!frame.ok()) return false;
  more = frame->has_value();
  if (!more) return true;
  absl::StatusOr<Request> request = DecodeRequest(**frame);
  if (!request.ok()) return false;
  const bool joins = request->kind == Request::Kind::kJoin;
  const bool leaves = request->kind == Request::Kind::kLeave;
  if (joins != (connection.rank < 0)) return false;
  if (!leaves && (connection.waiting.has_value() || !connection.out.empty())) return false;
  if (joins) {
    HandleJoin(connection, *request);
  } else if (leaves) {
    connection.left = true;
    connection.closed = true;
  } else {
    HandleRequest(connection, *std::move(request));
  }
  return true;
}

void StoreServer::HandleJoin(Connection& connection, const Request& request) {
  const int ranks = static_cast<int>(membership_.size());
  absl::Status status;
  if (request.key != id_) {
    status = absl::FailedPreconditionError(absl::StrCat("the place is in use by another launch, \"",
                                                        id_, "\", not \"", request.key, "\""));
  } else if (request.ranks != ranks || request.rank < 0 || request.rank >= ranks) {
    status = absl::FailedPreconditionError(
        absl::StrCat("rank ", request.rank, " of ", request.ranks, " joined a launch of ", ranks));
  } else if (joined_[static_cast<size_t>(request.rank)]) {
    status = absl::AlreadyExistsError(
        absl::StrCat("rank ", request.rank, " has already joined: two processes claim it"));
  } else {
    joined_[static_cast<size_t>(request.rank)] = true;
    connection.rank = request.rank;
  }
  connection.out = EncodeReply(status.code(), status.message());
}

void StoreServer::HandleRequest(Connection& connection, Request request) {
  if (request.kind == Request::Kind::kGetOfAll) {
    connection.out = EncodeReply(absl::StatusCode::kOk, ValuesOfAll(request.key));
    return;
  }
  if (request.kind == Request::Kind::kGet) {
    const base::Deadline deadline =
        request.timeout_ms < 0 ? base::Deadline::Never()
                               : base::Deadline::After(absl::Milliseconds(request.timeout_ms));
    connection.waiting = Waiting{std::move(request.key), request.rank, deadline};
    return;
  }
  absl::Status status;
  const auto found = values_.find(request.key);
  if (found != values_.end() && request.kind == Request::Kind::kSet) {
    status = absl::AlreadyExistsError(absl::StrCat("\"", request.key, "\" is set already"));
  } else {
    if (found != values_.end()) Erase(found);
    if (request.kind != Request::Kind::kRemove) status = Insert(std::move(request));
  }
  connection.out = EncodeReply(status.code(), status.message());
}

std::string StoreServer::ValuesOfAll(const std::string& prefix) const {
  std::string lines;
  for (size_t rank = 0; rank < membership_.size(); ++rank) {
    const auto found = values_.find(absl::StrCat(prefix, rank));
    absl::StrAppend(&lines, found == values_.end() ? "" : found->second, "\n");
  }
  return lines;
}

void StoreServer::Erase(std::map<std::string, std::string>::iterator found) {
  stored_bytes_ -= found->first.size() + found->second.size();
  values_.erase(found);
}

absl::Status StoreServer::Insert(Request request) {
  const size_t bytes = request.key.size() + request.value.size();
  if (bytes > kMaxStoredBytes - stored_bytes_) {
    return absl::ResourceExhaustedError("the store is full");
  }
  stored_bytes_ += bytes;
  values_.emplace(std::move(request.key), std::move(request.value));
  return absl::OkStatus();
}

absl::Status StoreServer::WillNotCome(int from) const {
  const auto failed = values_.find(kFailedKey);
  if (failed != values_.end()) return FailureOf(failed->second);
  for (size_t rank = 0; rank < membership_.size(); ++rank) {
    if (membership_[rank] == Membership::kDied) {
      return absl::UnavailableError(
          absl::StrCat("rank ", rank, " was killed, or its connection was lost"));
    }
  }
  if (from >= 0 && static_cast<size_t>(from) < membership_.size() &&
      membership_[static_cast<size_t>(from)] == Membership::kLeft) {
    return absl::UnavailableError(absl::StrCat("rank ", from, " has left"));
  }
  return absl::OkStatus();
}

void StoreServer::AnswerWaiting(Connection& connection) {
  if (connection.closed || !connection.waiting.has_value()) return;
  const Waiting& waiting = *connection.waiting;
  const auto found = values_.find(waiting.key);
  if (found != values_.end()) {
    connection.out = EncodeReply(absl::StatusCode::kOk, found->second);
  } else if (const absl::Status never = WillNotCome(waiting.from); !never.ok()) {
    connection.out = EncodeReply(never.code(), never.message());
  } else if (waiting.deadline.Expired()) {
    connection.out = EncodeReply(absl::StatusCode::kDeadlineExceeded,
                                 absl::StrCat("no rank has set \"", waiting.key, "\" in time"));
  } else {
    return;
  }
  connection.waiting.reset();
}

void StoreServer::Write(Connection& connection) {
  if (connection.closed || connection.out.empty()) return;
  const ssize_t sent =
      send(connection.socket.get(), connection.out.data(), connection.out.size(), MSG_NOSIGNAL);
  if (sent > 0) {
    connection.out.erase(0, static_cast<size_t>(sent));
  } else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
    connection.out.clear();  // The next read finds the end of the connection.
    shutdown(connection.socket.get(), SHUT_RDWR);
  }
}

void StoreServer::Close(Connection& connection) {
  connection.closed = true;
  if (connection.rank < 0) return;
  membership_[static_cast<size_t>(connection.rank)] =
      connection.left ? Membership::kLeft : Membership::kDied;
}

}  // namespace stagecoach::engine
