#ifndef STAGECOACH_ENGINE_COMM_STORE_SERVER_H_
#define STAGECOACH_ENGINE_COMM_STORE_SERVER_H_

#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "engine/comm/socket.h"
#include "engine/comm/wire.h"

namespace stagecoach::engine {

// Rank 0's side of a tcp rendezvous: keeps the values and answers all ranks, rank 0 included, from
// one thread, which nothing that a peer sends, or fails to send, can stop or make grow without
// bound. A connection that does not speak the language, or does not join within kJoinTime, is
// closed. A connection that ends without leaving belonged to a rank that was killed: all waiting
// ranks are notified, as they are when a rank reports that it has failed.
class StoreServer {
 public:
  static constexpr absl::Duration kJoinTime = absl::Seconds(5);
  // Maximum number of connections that have not joined, beyond one for each rank.
  static constexpr size_t kMaxStrangers = 64;
  static constexpr size_t kMaxStoredBytes = size_t{256} << 20;

  // `socket` listens. Only ranks of the launch `id` may join.
  static absl::StatusOr<std::unique_ptr<StoreServer>> Start(Descriptor socket, std::string id,
                                                            int ranks);
  ~StoreServer() { Stop(absl::ZeroDuration(), /*has_failed=*/false); }
  // Waits until all ranks that have joined have left and, after a failure, until all have joined to
  // hear of it, for at most `farewell`; then ends the thread. Only the first call counts.
  void Stop(absl::Duration farewell, bool has_failed);
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

 private:
  // A Get that waits for its key.
  struct Waiting {
    std::string key;
    int from;
    base::Deadline deadline;
  };

  struct Connection {
    Descriptor socket;
    base::Deadline join_by;
    Incoming in;
    std::string out = {};
    bool greeted = false;
    int rank = -1;  // once it has joined
    bool left = false;
    bool closed = false;
    std::optional<Waiting> waiting = std::nullopt;
  };

  struct Shutdown {
    absl::Duration at_most = absl::ZeroDuration();
    bool awaits_absent = false;
  };

  enum class Membership { kAlive, kLeft, kDied };  // a rank that has not come yet is kAlive

  StoreServer(Descriptor socket, Descriptor stop, std::string id, int ranks);

  // Everything below belongs to the thread, except for farewell_.
  void Run();
  void WaitForSomething();
  void Accept();
  void Read(Connection& connection);
  void Write(Connection& connection);
  void Handle(Connection& connection);
  // Returns whether the connection is to be kept.
  bool HandleNext(Connection& connection, bool& more);
  void HandleJoin(Connection& connection, const Request& request);
  void HandleRequest(Connection& connection, Request request);
  // Returns a line for each rank.
  std::string ValuesOfAll(const std::string& prefix) const;
  void Erase(std::map<std::string, std::string>::iterator found);
  absl::Status Insert(Request request);
  void AnswerWaiting(Connection& connection);
  void Close(Connection& connection);
  // Returns why a missing key will not come, from a rank or, if -1, from any.
  absl::Status WillNotCome(int from) const;
  // Drops one if there are as many as allowed.
  void DropStranger();

  Descriptor socket_;
  Descriptor stop_;
  const std::string id_;
  std::map<std::string, std::string> values_;
  size_t stored_bytes_ = 0;
  std::vector<Membership> membership_;
  std::vector<bool> joined_;
  std::list<Connection> connections_;
  std::mutex farewell_mutex_;
  Shutdown farewell_;  // set by Stop, which guards it: an event descriptor alone orders no memory
  Shutdown ending_;    // a copy of it, once stopping
  bool stopping_ = false;
  base::Deadline end_ = base::Deadline::Never();
  base::Deadline accept_after_ = base::Deadline::After(absl::ZeroDuration());
  std::thread thread_;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_COMM_STORE_SERVER_H_
