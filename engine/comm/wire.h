#ifndef STAGECOACH_ENGINE_COMM_WIRE_H_
#define STAGECOACH_ENGINE_COMM_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace stagecoach::engine {

// The protocol of a tcp rendezvous. A connection begins with kGreeting and a request kJoin; then
// each request except kLeave has one reply, and the next follows that. Requests and replies travel
// as frames: a length of four bytes, the lowest first, and as many bytes.

inline constexpr absl::string_view kGreeting = "stagecoach rendezvous 1\n";

// Above what any request or reply needs.
inline constexpr size_t kMaxFrameBytes = (size_t{1} << 20) + 4096;
// The limit for a connection that has not joined: it may come from any program.
inline constexpr size_t kMaxJoinBytes = 4096;

struct Request {
  enum class Kind : uint8_t { kJoin, kSet, kReplace, kGet, kGetOfAll, kRemove, kLeave };
  Kind kind = Kind::kGet;
  int32_t rank = -1;  // kJoin: the rank that connects; kGet: the rank that will set the key, or -1
  int32_t ranks = 0;  // kJoin
  int64_t timeout_ms = -1;  // kGet: negative: no limit; 0: a test
  std::string key;          // kJoin: the launch's id; kGetOfAll: the prefix of each rank
  std::string value;        // kSet, kReplace
};

// Returns the frame, including its length.
std::string Encode(const Request& request);
// Returns the frame of a reply: a status whose message is the value asked for if it is OK. The
// reply to kGetOfAll is a line for each rank, empty if there is no value.
std::string EncodeReply(absl::StatusCode code, absl::string_view text);

// Decode a frame's bytes without its length. InvalidArgument: they are not one.
absl::StatusOr<Request> DecodeRequest(absl::string_view frame);
absl::StatusOr<std::string> DecodeReply(absl::string_view frame);

// Received bytes, taken off frame by frame.
class Incoming {
 public:
  void Append(absl::string_view bytes) { bytes_.append(bytes.data(), bytes.size()); }

  // Takes the greeting off. False: it is not complete yet. InvalidArgument: it is something else.
  absl::StatusOr<bool> TakeGreeting();
  // Takes the next whole frame, if it has arrived. InvalidArgument: it would be longer than
  // `max_bytes`.
  absl::StatusOr<std::optional<std::string>> TakeFrame(size_t max_bytes);

 private:
  std::string bytes_;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_COMM_WIRE_H_
