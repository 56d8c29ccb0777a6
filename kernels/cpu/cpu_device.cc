#include "kernels/cpu/cpu_device.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/cpu_stream.h"

namespace stagecoach::kernels {
namespace {

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(const CpuDeviceOptions& options)
      : Device(absl::StrCat("cpu:", options.index), options.memory_limit_bytes),
        stream_(options.threads),
        ops_(stream_) {}

  Stream& stream() override { return stream_; }
  Ops& ops() override { return ops_; }

 private:
  // Fresh memory costs a page fault at its first touch, which must not happen during a step: all of
  // it is touched here. Huge pages spare the products, which walk down columns, most of their
  // address translation misses.
  absl::StatusOr<std::byte*> AllocateBytes(int64_t bytes) override {
    const auto size = static_cast<size_t>(bytes);
    void* const data =
        mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) {
      return absl::ResourceExhaustedError(absl::StrCat(name(), ": the system refused ", bytes,
                                                       " bytes of memory: ", std::strerror(errno)));
    }
    madvise(data, size, MADV_HUGEPAGE);  // advice: failure only costs speed
    std::memset(data, 0, size);
    return static_cast<std::byte*>(data);
  }

  void FreeBytes(std::byte* data, int64_t bytes) override {
    munmap(data, static_cast<size_t>(bytes));
  }

  CpuStream stream_;
  CpuOps ops_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> CreateCpuDevice(const CpuDeviceOptions& options) {
  if (options.threads < 1 || options.threads > CpuDeviceOptions::kMaxThreads) {
    return absl::InvalidArgumentError(absl::StrCat("a CPU device has 1 to ",
                                                   CpuDeviceOptions::kMaxThreads, " threads, not ",
                                                   options.threads));
  }
  if (options.memory_limit_bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("negative device memory: ", options.memory_limit_bytes, " bytes"));
  }
  return std::unique_ptr<Device>(std::make_unique<CpuDevice>(options));
}

}  // namespace stagecoach::kernels
