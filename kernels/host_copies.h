#ifndef STAGECOACH_KERNELS_HOST_COPIES_H_
#define STAGECOACH_KERNELS_HOST_COPIES_H_

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace stagecoach::kernels {

// A copy between a device's memory and host memory of its AllocateHost.
struct HostCopy {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  int64_t bytes = 0;
};

// Copies between a device's memory and the host's beside the work of the device's stream, by copy
// engines if it has some; a CPU device copies within Start. Those of each direction are made one
// after the other. Made by a device for a fixed number of slots, each of which stands for the
// copies that were last started in it. For jobs of the device's stream only.
class HostCopies {
 public:
  enum class Direction : uint8_t { kToHost, kFromHost };

  virtual ~HostCopies() = default;

  // Starts the copies: after all work that was issued to the stream before.
  virtual absl::Status Start(int slot, Direction direction, absl::Span<const HostCopy> copies) = 0;
  // Orders work that is issued to the stream later after the slot's copies.
  virtual absl::Status Await(int slot) = 0;
  // Returns when the slot's copies were done, on the clock of this process. Pre-condition: the
  // stream has finished after an Await of the slot.
  virtual absl::StatusOr<std::chrono::steady_clock::time_point> DoneAt(int slot) const = 0;
};

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_HOST_COPIES_H_
