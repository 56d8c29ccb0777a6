#ifndef STAGECOACH_BASE_SYSTEM_GUARD_PAGES_H_
#define STAGECOACH_BASE_SYSTEM_GUARD_PAGES_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"

namespace stagecoach::base {

// Addresses that tell whether anything has read or written there: handed to code in place of memory
// that it should not use. They take memory only where they are touched, and hold 0 until something
// is written. Move-only; not thread-safe.
class GuardPages {
 public:
  // Unavailable: no addresses are left, or the system does not report which pages have been
  // touched, as in some sandboxes and where all memory is locked.
  static absl::StatusOr<GuardPages> Create(int64_t bytes);
  GuardPages(GuardPages&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  GuardPages& operator=(GuardPages&&) = delete;
  ~GuardPages();

  std::byte* data() const { return data_; }  // a multiple of the page size
  // Returns whether any of the first `bytes`, rounded up to pages, was touched since creation or
  // since the last call that returned true.
  bool TakeTouched(int64_t bytes);

 private:
  GuardPages(std::byte* data, size_t bytes) : data_(data), bytes_(bytes) {}

  std::byte* data_;
  size_t bytes_;
};

}  // namespace stagecoach::base

#endif  // STAGECOACH_BASE_SYSTEM_GUARD_PAGES_H_
