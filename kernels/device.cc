#include "kernels/device.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/futex.h"
#include "base/status_macros.h"
#include "base/units.h"

namespace stagecoach::kernels {

Buffer::Buffer(Buffer&& other) noexcept
    : device_(std::exchange(other.device_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  Buffer moved(std::move(other));
  std::swap(device_, moved.device_);
  std::swap(data_, moved.data_);
  std::swap(bytes_, moved.bytes_);
  return *this;
}

Buffer::~Buffer() {
  if (data_ != nullptr) device_->Free(data_, bytes_);
}

absl::Status Event::Wait(base::Deadline deadline) {
  const uint32_t wanted = recorded_.load(std::memory_order_acquire);
  for (;;) {
    const uint32_t reached = reached_.load(std::memory_order_acquire);
    // Marks are counted modulo 2^32; the later of two is less than half a turn ahead.
    if (static_cast<int32_t>(reached - wanted) >= 0) return absl::OkStatus();
    if (!base::WaitWhileEqual(reached_, reached, deadline)) {
      return absl::DeadlineExceededError("the stream did not reach the event in time");
    }
  }
}

uint32_t Stream::StartMark(Event& event) {
  return event.recorded_.fetch_add(1, std::memory_order_acq_rel) + 1;
}

void Stream::Reach(Event& event, uint32_t mark) {
  event.reached_.store(mark, std::memory_order_release);
  base::WakeAll(event.reached_);
}

void Stream::RunAndWait(Job& job) {
  Event done;
  STAGECOACH_CHECK_OK(Submit(job));
  STAGECOACH_CHECK_OK(Record(done));
  STAGECOACH_CHECK_OK(done.Wait(base::Deadline::Never()));
}

Device::Device(std::string name, int64_t memory_limit_bytes)
    : name_(std::move(name)), limit_bytes_(memory_limit_bytes) {}

Device::~Device() {
  STAGECOACH_CHECK(used_bytes() == 0,
                   absl::StrCat(name_, " dies while ", used_bytes(), " bytes of it are in use"));
}

absl::StatusOr<Buffer> Device::Allocate(int64_t bytes) {
  STAGECOACH_CHECK(bytes >= 0, absl::StrCat("negative allocation of ", bytes, " bytes"));
  if (bytes == 0) return Buffer();
  const int64_t used = used_bytes_.fetch_add(bytes) + bytes;
  absl::StatusOr<std::byte*> data = absl::ResourceExhaustedError("");
  if (limit_bytes_ > 0 && used > limit_bytes_) {
    data = absl::ResourceExhaustedError(
        absl::StrCat(name_, ": ", base::FormatBytes(bytes), " asked, ",
                     base::FormatBytes(used - bytes), " in use, ", base::FormatBytes(limit_bytes_),
                     " allowed; raise the device's memory or spread the model over more devices"));
  } else {
    data = AllocateBytes(bytes);
  }
  if (!data.ok()) {
    used_bytes_.fetch_sub(bytes);
    return data.status();
  }
  return Buffer(this, *data, bytes);
}

void Device::Free(std::byte* data, int64_t bytes) {
  FreeBytes(data, bytes);
  used_bytes_.fetch_sub(bytes);
}

}  // namespace stagecoach::kernels
