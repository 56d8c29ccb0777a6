#include <algorithm>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "engine/comm/places.h"
#include "engine/comm/socket.h"
#include "engine/comm/store_server.h"
#include "engine/comm/wire.h"

namespace stagecoach::engine {
namespace {

// The server itself ends a Get at its deadline; if even that answer is late, it has failed.
constexpr absl::Duration kGrace = absl::Seconds(1);

class TcpRendezvous final : public Rendezvous {
 public:
  // `host`: that of the place.
  TcpRendezvous(const Launch& launch, std::string host, std::unique_ptr<StoreServer> server,
                absl::Duration deadline)
      : Rendezvous(launch.rank, launch.ranks, deadline),
        host_(std::move(host)),
        server_(std::move(server)) {}

  ~TcpRendezvous() override {
    if (socket_.valid()) {
      SendAll(socket_, Encode({.kind = Request::Kind::kLeave}), base::Deadline::After(kGrace))
          .IgnoreError();
      socket_ = Descriptor();
    }
    if (server_ != nullptr) server_->Stop(farewell(), failed());
  }

  // The others reach rank 0 at the place, and this rank at the address from which it has reached
  // rank 0.
  std::string own_address() const override {
    return server_ != nullptr ? host_ : LocalHost(socket_);
  }

  // Joins, once, until that is OK. `connected`: the time by which rank 0 must have been reached.
  absl::Status Join(const Address& address, const std::string& id, base::Deadline connected,
                    base::Deadline deadline) {
    ASSIGN_OR_RETURN(socket_, Connect(address, connected));
    const Request join = {
        .kind = Request::Kind::kJoin, .rank = rank(), .ranks = ranks(), .key = id};
    const absl::Status status = Ask(absl::StrCat(kGreeting, Encode(join)), deadline).status();
    if (!status.ok()) {
      socket_ = Descriptor();
      in_ = Incoming();
      broken_ = absl::OkStatus();
    }
    if (absl::IsInvalidArgument(status)) {
      return absl::FailedPreconditionError("another program than rank 0's answers there");
    }
    return status;
  }

 private:
  absl::Status DoSet(const std::string& key, const std::string& value,
                     base::Deadline deadline) override {
    return Ask(Encode({.kind = Request::Kind::kSet, .key = key, .value = value}),
               WithGrace(deadline))
        .status();
  }

  absl::Status DoReplace(const std::string& key, const std::string& value,
                         base::Deadline deadline) override {
    return Ask(Encode({.kind = Request::Kind::kReplace, .key = key, .value = value}),
               WithGrace(deadline))
        .status();
  }

  absl::StatusOr<std::string> DoGet(const std::string& key, int from,
                                    base::Deadline deadline) override {
    const int64_t timeout_ms = deadline.IsNever() ? -1 : PollTimeout(deadline);
    return Ask(
        Encode({.kind = Request::Kind::kGet, .rank = from, .timeout_ms = timeout_ms, .key = key}),
        WithGrace(deadline));
  }

  absl::StatusOr<std::string> DoLook(const std::string& key, base::Deadline deadline) override {
    absl::StatusOr<std::string> value =
        Ask(Encode({.kind = Request::Kind::kGet, .timeout_ms = 0, .key = key}), deadline);
    if (broken_.ok() && absl::IsDeadlineExceeded(value.status())) return absl::NotFoundError(key);
    return value;
  }

  absl::StatusOr<std::vector<std::string>> DoLookAtAll(const std::string& prefix,
                                                       base::Deadline deadline) override {
    ASSIGN_OR_RETURN(const std::string lines,
                     Ask(Encode({.kind = Request::Kind::kGetOfAll, .key = prefix}), deadline));
    std::vector<std::string> values = absl::StrSplit(lines, '\n');
    values.resize(static_cast<size_t>(ranks()));
    return values;
  }

  absl::Status DoRemove(const std::string& key, base::Deadline deadline) override {
    return Ask(Encode({.kind = Request::Kind::kRemove, .key = key}), WithGrace(deadline)).status();
  }

  // An operation whose deadline has passed gets the time that an answer takes.
  static base::Deadline WithGrace(base::Deadline deadline) {
    return base::Deadline::After(deadline.Remaining() + kGrace);
  }

  absl::StatusOr<std::string> Ask(const std::string& request, base::Deadline deadline) {
    RETURN_IF_ERROR(broken_);
    absl::StatusOr<std::string> frame = Exchange(request, deadline);
    if (frame.ok()) return DecodeReply(*frame);
    // After a timeout, a late reply cannot be told from the answer to the next request.
    broken_ = absl::IsDeadlineExceeded(frame.status())
                  ? absl::UnavailableError("rank 0, which keeps the rendezvous, does not answer")
                  : base::Annotate(frame.status(),
                                   "rank 0 was killed, or its connection was lost, and with it the "
                                   "rendezvous");
    return broken_;
  }

  absl::StatusOr<std::string> Exchange(const std::string& request, base::Deadline deadline) {
    RETURN_IF_ERROR(SendAll(socket_, request, deadline));
    while (true) {
      ASSIGN_OR_RETURN(std::optional<std::string> frame, in_.TakeFrame(kMaxFrameBytes));
      if (frame.has_value()) return *std::move(frame);
      ASSIGN_OR_RETURN(const std::string bytes, ReceiveSome(socket_, deadline));
      in_.Append(bytes);
    }
  }

  const std::string host_;
  std::unique_ptr<StoreServer> server_;  // of rank 0; outlives the connection to it
  Descriptor socket_;
  Incoming in_;
  absl::Status broken_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Rendezvous>> ConnectTcp(const Launch& launch,
                                                       const std::string& text,
                                                       absl::Duration longest_wait,
                                                       LateNotice* late) {
  const base::Deadline deadline = base::Deadline::After(longest_wait);
  ASSIGN_OR_RETURN(Address address, ParseAddress(text));
  const std::string host = address.host;
  std::unique_ptr<StoreServer> server;
  if (launch.rank == 0) {
    ASSIGN_OR_RETURN(Descriptor socket, Listen(address));
    ASSIGN_OR_RETURN(server, StoreServer::Start(std::move(socket), launch.id, launch.ranks));
    // Rank 0 might not reach itself under its public name.
    if (!IsLoopback(address.host)) address.host = "127.0.0.1";
  }
  auto rendezvous = std::make_unique<TcpRendezvous>(launch, host, std::move(server), longest_wait);
  absl::Duration pause = absl::Milliseconds(5);
  while (true) {
    // An attempt to connect to a host that does not answer would last until the deadline.
    const bool will_be_late =
        late != nullptr && !late->at().Expired() && late->at().time() < deadline.time();
    const absl::Status status =
        rendezvous->Join(address, launch.id, will_be_late ? late->at() : deadline, deadline);
    if (status.ok()) return rendezvous;
    if (late != nullptr && late->IsDue()) late->Give({0});
    // Rank 0 may not be there yet, or may have too many pending connections.
    if (!absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status)) return status;
    if (deadline.Remaining() <= pause) {
      return absl::DeadlineExceededError(
          absl::StrCat("rank 0 does not answer there (", status.message(), ")"));
    }
    std::this_thread::sleep_for(absl::ToChronoMilliseconds(pause));
    pause = std::min(2 * pause, absl::Milliseconds(200));
  }
}

}  // namespace stagecoach::engine
