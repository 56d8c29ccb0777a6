#ifndef STAGECOACH_KERNELS_DEVICE_H_
#define STAGECOACH_KERNELS_DEVICE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/deadline.h"

namespace stagecoach::kernels {

class Device;
class Ops;

// Owns bytes of a device's memory. Move-only; an empty buffer owns nothing. The bytes are back in
// the device's budget when the buffer dies, which must be before the device does. Addresses are
// multiples of 4096.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer();

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  friend class Device;
  Buffer(Device* device, std::byte* data, int64_t bytes)
      : device_(device), data_(data), bytes_(bytes) {}

  Device* device_ = nullptr;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

// A mark in a stream's order, and the host's way to wait for it. Reusable: each Record starts a new
// mark. Thread-safe for one recorder and any number of waiters.
class Event {
 public:
  Event() = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  // Blocks the calling thread until all work before the last Record has been done. DeadlineExceeded
  // if that takes longer. An event that was never recorded is ready.
  absl::Status Wait(base::Deadline deadline);

 private:
  friend class Stream;
  std::atomic<uint32_t> recorded_{0};
  std::atomic<uint32_t> reached_{0};
};

// A piece of host code that issues work to a device: runs once, on the stream's own thread, in the
// order of submission. It must not throw. It outlives its run; the submitter keeps it.
class Job {
 public:
  virtual ~Job() = default;
  virtual void Run() = 0;
};

// Ordered work on one device: a queue of jobs, each of which calls operations (kernels/ops) on this
// stream. On a CPU device an operation is done when its call returns; on an accelerator it has then
// been put in the device's own order.
class Stream {
 public:
  virtual ~Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Appends a job; does not wait. Thread-safe. ResourceExhausted if kMaxPending jobs are waiting.
  static constexpr int kMaxPending = 64;
  virtual absl::Status Submit(Job& job) = 0;
  // Marks the present end of the queue in `event`. Thread-safe for different events.
  virtual absl::Status Record(Event& event) = 0;

  // Runs `job` on the stream and waits for it, however long it takes. Must not be called from one
  // of the stream's own jobs.
  void RunAndWait(Job& job);
  template <typename F>
  void Run(F&& function) {
    struct FunctionJob final : Job {
      explicit FunctionJob(F& function_in) : run(function_in) {}
      void Run() override { run(); }
      F& run;
    } job(function);
    RunAndWait(job);
  }

 protected:
  Stream() = default;
  static uint32_t StartMark(Event& event);
  static void Reach(Event& event, uint32_t mark);
};

// A place with memory and an order of work. Created by a backend (kernels/cpu/cpu_device.h).
// Thread-safe.
class Device {
 public:
  virtual ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const std::string& name() const { return name_; }            // "cpu:0"
  int64_t memory_limit_bytes() const { return limit_bytes_; }  // the budget; 0: none
  int64_t used_bytes() const { return used_bytes_.load(std::memory_order_relaxed); }

  // Memory on this device, ready for use and charged to its budget. Bytes are zero.
  // ResourceExhausted names the device, what was asked, used and allowed.
  absl::StatusOr<Buffer> Allocate(int64_t bytes);

  // The device's stream. Work of one device is ordered by it.
  virtual Stream& stream() = 0;
  // The operations this device offers.
  virtual Ops& ops() = 0;

 protected:
  Device(std::string name, int64_t memory_limit_bytes);
  virtual absl::StatusOr<std::byte*> AllocateBytes(int64_t bytes) = 0;
  virtual void FreeBytes(std::byte* data, int64_t bytes) = 0;

 private:
  friend class Buffer;
  void Free(std::byte* data, int64_t bytes);

  const std::string name_;
  const int64_t limit_bytes_;
  std::atomic<int64_t> used_bytes_{0};
};

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_DEVICE_H_
