#include "kernels/cpu/cpu_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <new>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/parallel.h"
#include "base/status_macros.h"
#include "kernels/cpu/compiled_operations.h"
#include "kernels/cpu/runtime/cpu_stream.h"
#include "kernels/cpu/runtime/library_primitive.h"
#include "kernels/host_copies.h"
#include "kernels/peer_copy.h"

namespace stagecoach::kernels {
namespace {

class CpuRecording final : public Recording {
 public:
  Form form() const override { return Form::kDirect; }
};

class CpuTimeline final : public Timeline {
 public:
  explicit CpuTimeline(int slots) : moments_(static_cast<size_t>(slots)) {}

  absl::Status Mark(int slot) override {
    moments_[static_cast<size_t>(slot)] = std::chrono::steady_clock::now();
    return absl::OkStatus();
  }
  absl::StatusOr<std::chrono::steady_clock::time_point> At(int slot) const override {
    return moments_[static_cast<size_t>(slot)];
  }
  absl::Status Wait(int /*slot*/) const override { return absl::OkStatus(); }

 private:
  std::vector<std::chrono::steady_clock::time_point> moments_;
};

// Both devices have done their work when they report that they are ready, so the peer copy is
// complete when the copy itself is.
class CpuPeerCopy final : public PeerCopy {
 public:
  absl::Status SenderReady() override { return absl::OkStatus(); }
  absl::Status ReceiverReady() override { return absl::OkStatus(); }
  absl::Status Copy(void* to, const void* from, int64_t bytes) override {
    std::memcpy(to, from, static_cast<size_t>(bytes));
    done_at_ = std::chrono::steady_clock::now();
    return absl::OkStatus();
  }
  absl::Status SenderContinues() override { return absl::OkStatus(); }
  absl::Status ReceiverContinues() override { return absl::OkStatus(); }
  absl::StatusOr<std::chrono::steady_clock::time_point> DoneAt() const override { return done_at_; }

 private:
  std::chrono::steady_clock::time_point done_at_;
};

class CpuHostCopies final : public HostCopies {
 public:
  CpuHostCopies(CpuStream& stream, int slots)
      : stream_(stream), done_at_(static_cast<size_t>(slots)) {}

  absl::Status Start(int slot, Direction /*direction*/,
                     absl::Span<const HostCopy> copies) override {
    for (const HostCopy& copy : copies) {
      RETURN_IF_ERROR(stream_.Copy(copy.to, copy.from, copy.bytes));
    }
    done_at_[static_cast<size_t>(slot)] = std::chrono::steady_clock::now();
    return absl::OkStatus();
  }
  absl::Status Await(int /*slot*/) override { return absl::OkStatus(); }
  absl::StatusOr<std::chrono::steady_clock::time_point> DoneAt(int slot) const override {
    return done_at_[static_cast<size_t>(slot)];
  }

 private:
  CpuStream& stream_;
  std::vector<std::chrono::steady_clock::time_point> done_at_;
};

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(const CpuDeviceOptions& options)
      : Device(DeviceKind::kCpu, options.precision, absl::StrCat("cpu:", options.index),
               options.memory_limit_bytes),
        stream_(options.threads),
        ops_(OperationsForThisProcessor().create(*this)) {}

  Stream& stream() override { return stream_; }
  Ops& ops() override { return *ops_; }
  absl::StatusOr<std::unique_ptr<Recording>> CreateRecording() override {
    return std::make_unique<CpuRecording>();
  }
  absl::StatusOr<std::unique_ptr<Timeline>> CreateTimeline(int slots) override {
    return std::make_unique<CpuTimeline>(slots);
  }
  absl::StatusOr<std::unique_ptr<HostCopies>> CreateHostCopies(int slots) override {
    return std::make_unique<CpuHostCopies>(stream_, slots);
  }
  absl::StatusOr<std::unique_ptr<PeerCopy>> CreatePeerCopy(Device& /*sender*/) override {
    return std::make_unique<CpuPeerCopy>();
  }

 private:
  // Fresh memory costs a page fault at its first touch, which must not happen during a step: all of
  // it is touched here, by several threads, since the system clears page by page. Huge pages save
  // the products, which walk down columns, most of their address translation misses.
  absl::StatusOr<std::byte*> AllocateBytes(int64_t bytes) override {
    const auto size = static_cast<size_t>(bytes);
    void* const data =
        mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) {
      return absl::ResourceExhaustedError(absl::StrCat(name(), ": the system refused ", bytes,
                                                       " bytes of memory: ", std::strerror(errno)));
    }
    madvise(data, size, MADV_HUGEPAGE);  // a hint: failure only costs speed
    auto* const bytes_of = static_cast<volatile std::byte*>(data);
    base::ForEachInParallel((bytes + kTouchedAtOnce - 1) / kTouchedAtOnce,
                            std::min(kTouching, base::AvailableCpus()), [&](int64_t part) {
                              const int64_t end = std::min(bytes, (part + 1) * kTouchedAtOnce);
                              for (int64_t i = part * kTouchedAtOnce; i < end; i += kPage)
                                bytes_of[i] = std::byte{0};
                            });
    return static_cast<std::byte*>(data);
  }

  void FreeBytes(std::byte* data, int64_t bytes) override {
    munmap(data, static_cast<size_t>(bytes));
  }

  static constexpr int64_t kPage = 4096, kTouchedAtOnce = int64_t{32} << 20;
  static constexpr int kTouching = 4;  // threads

  CpuStream stream_;
  std::unique_ptr<Ops> ops_;
};

}  // namespace

const char* CpuOperationsArch() { return OperationsForThisProcessor().arch; }

absl::Status CheckBfloat16OnCpu() {
  if (LibraryHasBfloat16()) return absl::OkStatus();
  return absl::UnavailableError(
      "this processor has no AVX-512 BF16 or AMX, or ONEDNN_MAX_CPU_ISA forbids them, without "
      "which "
      "CPU devices do not compute with bf16");
}

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
  if (options.precision == Precision::kTf32) {
    return absl::InvalidArgumentError("CPU devices compute with fp32 or bf16, not with tf32");
  }
  if (options.precision == Precision::kBfloat16) RETURN_IF_ERROR(CheckBfloat16OnCpu());
  const auto refused = [&](const std::exception& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cpu:", options.index, ": the system refused ", options.threads,
                     options.threads == 1 ? " thread: " : " threads: ", error.what(),
                     "; give it fewer (--threads-per-device), or raise the limit of processes or "
                     "memory (ulimit -u, ulimit -v, pids.max)"));
  };
  try {
    return std::unique_ptr<Device>(std::make_unique<CpuDevice>(options));
  } catch (const std::system_error& error) {
    return refused(error);
  } catch (const std::bad_alloc& error) {
    return refused(error);
  }
}

}  // namespace stagecoach::kernels
