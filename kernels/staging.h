#ifndef STAGECOACH_KERNELS_STAGING_H_
#define STAGECOACH_KERNELS_STAGING_H_

#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/device.h"

// Copies between a device and host memory of any kind, through a few buffers of
// Device::AllocateHost: threads of the host fill or empty some of them while the device copies
// others. The host waits for events of single copies, and never for the whole stream.
// StagingOptions bounds the host memory, which is used only during the call.
namespace stagecoach::kernels {

struct StagingOptions {
  int64_t buffer_bytes = int64_t{8} << 20;
  int buffers = 8;  // at most; fewer if all the bytes need fewer
  int threads = 4;  // at most; no more than there are buffers or processors
};

// A part of a buffer, and where on the device it goes.
struct UploadPart {
  void* to = nullptr;
  const std::byte* from = nullptr;
  int64_t bytes = 0;
};

// Fills the buffers of one thread of an Upload. Not thread-safe.
class Uploader {
 public:
  virtual ~Uploader() = default;

  // Returns the rest of a buffer, of at least one byte, which stays the same until Add is called.
  // Waits for a buffer if the last one is full. Cancelled: the device has failed.
  virtual absl::StatusOr<absl::Span<std::byte>> Space() = 0;
  // Uses up the first `bytes` of Space(); `parts` are those of them that are copied.
  virtual void Add(int64_t bytes, absl::Span<const UploadPart> parts) = 0;

  // Has `bytes` bytes copied from memory that may be changed as soon as this returns.
  absl::Status Copy(void* to, const void* from, int64_t bytes);
};

// Calls fill(source, uploader) once for each source in [0, sources), several at once on threads of
// their own, which start in ascending order. Returns OK once everything that they have added is on
// the device. Otherwise returns the error of the device, or that of the first source that has one:
// the memory that was to be written is then undefined. `bytes` is what all sources together are
// expected to add. For jobs of the device's stream; `fill` must not use the stream.
absl::Status Upload(Device& device, int64_t bytes, int sources,
                    absl::FunctionRef<absl::Status(int source, Uploader& uploader)> fill,
                    const StagingOptions& options = {});

// Consecutive bytes of a device, and where in host memory they go.
struct DownloadPiece {
  void* to = nullptr;
  const void* from = nullptr;
  int64_t bytes = 0;
};

// Copies all pieces, and returns OK once they have arrived. For jobs of the device's stream. Needs
// no buffers if the device has host memory.
absl::Status Download(Device& device, absl::Span<const DownloadPiece> pieces,
                      const StagingOptions& options = {});

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_STAGING_H_
