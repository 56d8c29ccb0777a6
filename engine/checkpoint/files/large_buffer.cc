#include "engine/checkpoint/files/large_buffer.h"

#include <sys/mman.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/text/units.h"

namespace stagecoach::engine {

absl::StatusOr<LargeBuffer> AllocateLargeBuffer(int64_t bytes) {
  constexpr size_t kCacheLine = 64;
  constexpr size_t kHugePage = size_t{2} << 20;
  const auto size = static_cast<size_t>(bytes);
  const size_t alignment = size < kHugePage ? kCacheLine : kHugePage;
  const size_t rounded = (size + alignment) / alignment * alignment;
  LargeBuffer buffer(static_cast<std::byte*>(std::aligned_alloc(alignment, rounded)));
  if (buffer == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the system refused ", base::FormatBytes(bytes), " of host memory"));
  }
  if (alignment == kHugePage) {
    madvise(buffer.get(), rounded, MADV_HUGEPAGE);  // advice: failure only costs speed
  }
  return buffer;
}

}  // namespace stagecoach::engine
