#ifndef STAGECOACH_KERNELS_ARENA_H_
#define STAGECOACH_KERNELS_ARENA_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"

namespace stagecoach::kernels {

// The memory of one rank: a single allocation whose parts are claimed at planned offsets and
// released. It enforces the plan (a claim beyond the end or over a live one is an error) and
// measures what was really used. It never allocates after Create. Under AddressSanitizer, bytes
// outside live claims are poisoned. Not thread-safe.
class Arena {
 public:
  // Takes `bytes` from the device's budget. `max_claims` is how many claims may be live at once.
  static absl::StatusOr<Arena> Create(Device& device, int64_t bytes, int max_claims);

  Arena(Arena&&) noexcept = default;
  Arena& operator=(Arena&& other) noexcept;
  ~Arena();

  // Makes [offset, offset + bytes) live and returns its address; its contents are undefined.
  // Internal if it overlaps a live claim (both are named); ResourceExhausted if it ends beyond the
  // arena, or if too many claims are live.
  absl::StatusOr<std::byte*> Claim(int64_t offset, int64_t bytes);
  // Ends the claim that starts at `offset`. Internal if there is none.
  absl::Status Release(int64_t offset);

  int64_t bytes() const { return buffer_.bytes(); }
  int64_t live_bytes() const { return live_bytes_; }
  // The largest sum of live claims since creation, and the highest address (as an offset) that a
  // live claim reached.
  int64_t peak_live_bytes() const { return peak_live_bytes_; }
  int64_t peak_bytes() const { return peak_bytes_; }

 private:
  struct Range {
    int64_t offset;
    int64_t bytes;
  };
  Arena(Buffer buffer, int max_claims, bool is_host_memory);
  void Poison(int64_t offset, int64_t bytes) const;
  void Unpoison(int64_t offset, int64_t bytes) const;

  Buffer buffer_;
  bool is_host_memory_;
  std::vector<Range> live_;  // ascending by offset; capacity is fixed
  int64_t live_bytes_ = 0;
  int64_t peak_live_bytes_ = 0;
  int64_t peak_bytes_ = 0;
};

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_ARENA_H_
