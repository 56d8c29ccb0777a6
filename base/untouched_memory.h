#ifndef STAGECOACH_BASE_UNTOUCHED_MEMORY_H_
#define STAGECOACH_BASE_UNTOUCHED_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"

namespace stagecoach::base {

// Addresses that tell whether something has read or written there: what is handed to code in place
// of memory that it should not use. They take memory only where they are touched, and hold 0 until
// something is written. Move-only; not thread-safe.
class UntouchedMemory {
 public:
  // Unavailable: there are no addresses left, or the system does not say what has been touched, as
  // in some sandboxes and where all memory is locked.
  static absl::StatusOr<UntouchedMemory> Create(int64_t bytes);
  UntouchedMemory(UntouchedMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  UntouchedMemory& operator=(UntouchedMemory&&) = delete;
  ~UntouchedMemory();

  std::byte* data() const { return data_; }  // at a multiple of the page size
  // Whether any of the first `bytes`, rounded up to pages, were touched since the creation or the
  // last call that said so.
  bool TakeTouched(int64_t bytes);

 private:
  UntouchedMemory(std::byte* data, size_t bytes) : data_(data), bytes_(bytes) {}

  std::byte* data_;
  size_t bytes_;
};

}  // namespace stagecoach::base

#endif  // STAGECOACH_BASE_UNTOUCHED_MEMORY_H_
