#ifndef STAGECOACH_ENGINE_CHECKPOINT_FILES_LARGE_BUFFER_H_
#define STAGECOACH_ENGINE_CHECKPOINT_FILES_LARGE_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "absl/status/statusor.h"

namespace stagecoach::engine {

// Host memory for a file or more, from std::aligned_alloc, not zeroed.
struct FreeLargeBuffer {
  void operator()(std::byte* bytes) const { std::free(bytes); }
};
using LargeBuffer = std::unique_ptr<std::byte[], FreeLargeBuffer>;

// Allocates memory aligned to cache lines. Large buffers use huge pages if available, since the
// first touch of a page is a large part of the cost of reading what the system has in memory.
// ResourceExhausted: the system refuses.
absl::StatusOr<LargeBuffer> AllocateLargeBuffer(int64_t bytes);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_CHECKPOINT_FILES_LARGE_BUFFER_H_
