#include "engine/comm/wire.h"

#include <algorithm>
#include <type_traits>

#include "absl/strings/str_cat.h"

namespace stagecoach::engine {
namespace {

template <typename T>
void AppendNumber(T number, std::string& bytes) {
  const auto bits = static_cast<std::make_unsigned_t<T>>(number);
  for (size_t i = 0; i < sizeof(T); ++i) bytes.push_back(static_cast<char>(bits >> (8 * i)));
}

// Returns false if too few bytes are left.
template <typename T>
bool TakeNumber(absl::string_view& bytes, T& number) {
  if (bytes.size() < sizeof(T)) return false;
  std::make_unsigned_t<T> bits = 0;
  for (size_t i = sizeof(T); i-- > 0;) {
    bits = static_cast<std::make_unsigned_t<T>>((uint64_t{bits} << 8) |
                                                static_cast<unsigned char>(bytes[i]));
  }
  number = static_cast<T>(bits);
  bytes.remove_prefix(sizeof(T));
  return true;
}

std::string Frame(absl::string_view body) {
  std::string frame;
  AppendNumber(static_cast<uint32_t>(body.size()), frame);
  absl::StrAppend(&frame, body);
  return frame;
}

absl::Status NotAFrame() {
  return absl::InvalidArgumentError("the message received is not one of a rendezvous");
}

}  // namespace

std::string Encode(const Request& request) {
  std::string body;
  AppendNumber(static_cast<uint8_t>(request.kind), body);
  AppendNumber(request.rank, body);
  AppendNumber(request.ranks, body);
  AppendNumber(request.timeout_ms, body);
  AppendNumber(static_cast<uint32_t>(request.key.size()), body);
  absl::StrAppend(&body, request.key, request.value);
  return Frame(body);
}

std::string EncodeReply(absl::StatusCode code, absl::string_view text) {
  std::string body;
  AppendNumber(static_cast<uint8_t>(code), body);
  absl::StrAppend(&body, text);
  return Frame(body);
}

absl::StatusOr<Request> DecodeRequest(absl::string_view frame) {
  Request request;
  uint8_t kind = 0;
  uint32_t key_bytes = 0;
  const bool whole = TakeNumber(frame, kind) && TakeNumber(frame, request.rank) &&
                     TakeNumber(frame, request.ranks) && TakeNumber(frame, request.timeout_ms) &&
                     TakeNumber(frame, key_bytes) && key_bytes <= frame.size();
  if (!whole || kind > static_cast<uint8_t>(Request::Kind::kLeave)) return NotAFrame();
  request.kind = static_cast<Request::Kind>(kind);
  request.key = std::string(frame.substr(0, key_bytes));
  request.value = std::string(frame.substr(key_bytes));
  return request;
}

absl::StatusOr<std::string> DecodeReply(absl::string_view frame) {
  uint8_t code = 0;
  if (!TakeNumber(frame, code) || code > static_cast<uint8_t>(absl::StatusCode::kUnauthenticated)) {
    return NotAFrame();
  }
  if (code == 0) return std::string(frame);
  return absl::Status(static_cast<absl::StatusCode>(code), frame);
}

absl::StatusOr<bool> Incoming::TakeGreeting() {
  const size_t bytes = std::min(bytes_.size(), kGreeting.size());
  if (absl::string_view(bytes_).substr(0, bytes) != kGreeting.substr(0, bytes)) return NotAFrame();
  if (bytes < kGreeting.size()) return false;
  bytes_.erase(0, bytes);
  return true;
}

absl::StatusOr<std::optional<std::string>> Incoming::TakeFrame(size_t max_bytes) {
  absl::string_view rest = bytes_;
  uint32_t bytes = 0;
  if (!TakeNumber(rest, bytes)) return std::nullopt;
  if (bytes > max_bytes) return NotAFrame();
  if (rest.size() < bytes) return std::nullopt;
  std::string frame(rest.substr(0, bytes));
  bytes_.erase(0, sizeof(bytes) + bytes);
  return frame;
}

}  // namespace stagecoach::engine
