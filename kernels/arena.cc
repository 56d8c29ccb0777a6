#include "kernels/arena.h"

#include <algorithm>
#include <utility>

#include "absl/base/config.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

#ifdef ABSL_HAVE_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size) \
  (static_cast<void>(address), static_cast<void>(size))
#define ASAN_UNPOISON_MEMORY_REGION(address, size) \
  (static_cast<void>(address), static_cast<void>(size))
#endif

namespace stagecoach::kernels {

absl::StatusOr<Arena> Arena::Create(Device& device, int64_t bytes, int max_claims) {
  ASSIGN_OR_RETURN(Buffer buffer, device.Allocate(bytes));
  return Arena(std::move(buffer), max_claims, device.memory_is_host());
}

Arena::Arena(Buffer buffer, int max_claims, bool is_host_memory)
    : buffer_(std::move(buffer)), is_host_memory_(is_host_memory) {
  live_.reserve(static_cast<size_t>(max_claims));
  Poison(0, buffer_.bytes());
}

Arena& Arena::operator=(Arena&& other) noexcept {
  Unpoison(0, buffer_.bytes());
  buffer_ = std::move(other.buffer_);
  is_host_memory_ = other.is_host_memory_;
  live_ = std::move(other.live_);
  live_bytes_ = other.live_bytes_;
  peak_live_bytes_ = other.peak_live_bytes_;
  peak_bytes_ = other.peak_bytes_;
  return *this;
}

Arena::~Arena() { Unpoison(0, buffer_.bytes()); }

void Arena::Poison(int64_t offset, int64_t bytes) const {
  if (!is_host_memory_) return;
  ASAN_POISON_MEMORY_REGION(buffer_.data() + offset, static_cast<size_t>(bytes));
}

void Arena::Unpoison(int64_t offset, int64_t bytes) const {
  if (!is_host_memory_) return;
  ASAN_UNPOISON_MEMORY_REGION(buffer_.data() + offset, static_cast<size_t>(bytes));
}

absl::StatusOr<std::byte*> Arena::Claim(int64_t offset, int64_t bytes) {
  if (offset < 0 || bytes < 0 || offset > buffer_.bytes() - bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("claim of ", bytes, " bytes at offset ",
                                                     offset, " in an arena of ", buffer_.bytes(),
                                                     " bytes"));
  }
  if (live_.size() == live_.capacity()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("more than ", live_.capacity(), " claims are live at once"));
  }
  const auto next =
      std::lower_bound(live_.begin(), live_.end(), offset,
                       [](const Range& range, int64_t value) { return range.offset < value; });
  const auto overlaps = [&](const Range& range) {
    return range.offset < offset + bytes && offset < range.offset + range.bytes;
  };
  for (auto it = next == live_.begin() ? next : next - 1; it != live_.end() && it <= next; ++it) {
    if (overlaps(*it) || it->offset == offset) {
      return absl::InternalError(absl::StrCat("claim of [", offset, ", ", offset + bytes,
                                              ") overlaps the live claim of [", it->offset, ", ",
                                              it->offset + it->bytes, ")"));
    }
  }
  live_.insert(next, Range{offset, bytes});
  live_bytes_ += bytes;
  peak_live_bytes_ = std::max(peak_live_bytes_, live_bytes_);
  peak_bytes_ = std::max(peak_bytes_, offset + bytes);
  std::byte* const data = buffer_.data() + offset;
  Unpoison(offset, bytes);
  return data;
}

absl::Status Arena::Release(int64_t offset) {
  const auto it =
      std::find_if(live_.begin(), live_.end(), [&](const Range& r) { return r.offset == offset; });
  if (it == live_.end()) {
    return absl::InternalError(absl::StrCat("no live claim starts at ", offset));
  }
  Poison(offset, it->bytes);
  live_bytes_ -= it->bytes;
  live_.erase(it);
  return absl::OkStatus();
}

}  // namespace stagecoach::kernels
