#include "kernels/device.h"

#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "base/system/futex.h"
#include "base/text/units.h"
#include "kernels/communicator.h"

namespace stagecoach::kernels {

const char* PrecisionName(Precision precision) {
  switch (precision) {
    case Precision::kFloat32:
      return "fp32";
    case Precision::kTf32:
      return "tf32";
    case Precision::kBfloat16:
      return "bf16";
  }
  return "unknown";
}

Buffer::Buffer(Buffer&& other) noexcept
    : device_(std::exchange(other.device_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      charged_(other.charged_) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  Buffer moved(std::move(other));
  std::swap(device_, moved.device_);
  std::swap(data_, moved.data_);
  std::swap(bytes_, moved.bytes_);
  std::swap(charged_, moved.charged_);
  return *this;
}

Buffer::~Buffer() {
  if (data_ == nullptr) return;
  device_->FreeBytes(data_, bytes_);
  if (charged_) device_->used_bytes_.fetch_sub(bytes_);
}

HostBuffer::HostBuffer(HostBuffer&& other) noexcept
    : device_(std::exchange(other.device_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

HostBuffer& HostBuffer::operator=(HostBuffer&& other) noexcept {
  HostBuffer moved(std::move(other));
  std::swap(device_, moved.device_);
  std::swap(data_, moved.data_);
  std::swap(bytes_, moved.bytes_);
  return *this;
}

HostBuffer::~HostBuffer() {
  if (data_ != nullptr) device_->FreeHostBytes(data_, bytes_);
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

uint32_t Event::StartMark() { return recorded_.fetch_add(1, std::memory_order_acq_rel) + 1; }

void Event::Reach(uint32_t mark) {
  reached_.store(mark, std::memory_order_release);
  base::WakeAll(reached_);
}

void Stream::RunAndWait(Job& job) {
  Event done;
  STAGECOACH_CHECK_OK(Submit(job));
  STAGECOACH_CHECK_OK(Record(done));
  STAGECOACH_CHECK_OK(done.Wait(base::Deadline::Never()));
}

Device::Device(DeviceKind kind, Precision precision, std::string name, int64_t memory_limit_bytes)
    : kind_(kind),
      precision_(precision),
      name_(std::move(name)),
      limit_bytes_(memory_limit_bytes) {}

Device::~Device() {
  STAGECOACH_CHECK(used_bytes() == 0, absl::StrCat(name_, " is destroyed while ", used_bytes(),
                                                   " bytes of it are in use"));
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
  return Buffer(this, *data, bytes, /*charged=*/true);
}

absl::StatusOr<Buffer> Device::AllocateTable(int64_t bytes) {
  STAGECOACH_CHECK(bytes >= 0, absl::StrCat("negative table of ", bytes, " bytes"));
  if (bytes == 0) return Buffer();
  ASSIGN_OR_RETURN(std::byte* const data, AllocateBytes(bytes));
  return Buffer(this, data, bytes, /*charged=*/false);
}

absl::StatusOr<HostBuffer> Device::AllocateHost(int64_t bytes) {
  STAGECOACH_CHECK(bytes >= 0, absl::StrCat("negative host buffer of ", bytes, " bytes"));
  if (bytes == 0) return HostBuffer();
  ASSIGN_OR_RETURN(std::byte* const data, AllocateHostBytes(bytes));
  std::memset(data, 0, static_cast<size_t>(bytes));
  return HostBuffer(this, data, bytes);
}

absl::StatusOr<std::byte*> Device::AllocateHostBytes(int64_t bytes) {
  void* const data = std::malloc(static_cast<size_t>(bytes));
  if (data == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat(name_, ": the system refused ", base::FormatBytes(bytes), " of host memory"));
  }
  return static_cast<std::byte*>(data);
}

void Device::FreeHostBytes(std::byte* data, int64_t /*bytes*/) { std::free(data); }

absl::StatusOr<std::unique_ptr<Communicator>> Device::CreateCommunicator(
    const CommunicatorOptions& /*options*/) {
  return absl::UnimplementedError(
      absl::StrCat(name_, ": devices of this kind exchange tensors within one process only"));
}

}  // namespace stagecoach::kernels
