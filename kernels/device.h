#ifndef STAGECOACH_KERNELS_DEVICE_H_
#define STAGECOACH_KERNELS_DEVICE_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "kernels/tensor.h"

// The substrate: a place with memory and an order of work, whatever it is made of.
//
// Two orders are in play on an accelerator. The *host* side of a stream is a queue of jobs that one
// thread runs; the *device* side is the work that these jobs issue. Whatever happens "in the
// stream's order" happens on the device side, after all work issued to the stream before and before
// all work issued later, while the call itself returns at once. On a CPU device the two are the
// same: work is done when the call that issues it returns.
namespace stagecoach::kernels {

class Communicator;
class Device;
class HostCopies;
class PeerCopy;
class Ops;
struct CommunicatorOptions;

enum class DeviceKind : uint8_t { kCpu, kCuda };

// The precision of a device's computations. Sums within a product are float32 in all cases, and so
// are gradients of parameters, the optimizer's state and the parameters that it updates.
enum class Precision : uint8_t {
  kFloat32,   // float32 throughout
  kTf32,      // float32 tensors; products round their operands to 10 bits of mantissa
  kBfloat16,  // activations, their gradients and the parameters that layers see are bfloat16
};
const char* PrecisionName(Precision precision);  // "fp32", "tf32", "bf16"
// Returns the type of activations, their gradients, and the parameters that layers see.
constexpr DType ActivationType(Precision precision) {
  return precision == Precision::kBfloat16 ? DType::kBfloat16 : DType::kFloat32;
}

// Owns bytes of a device's memory. Move-only; an empty buffer owns nothing. The bytes return to the
// device's budget when the buffer is destroyed, which must be before the device is. Addresses are
// multiples of at least 256 (4096 on a CPU device).
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
  Buffer(Device* device, std::byte* data, int64_t bytes, bool charged)
      : device_(device), data_(data), bytes_(bytes), charged_(charged) {}

  Device* device_ = nullptr;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  bool charged_ = false;  // to the device's budget
};

// A mark in a stream's order, and the host's way to wait for it. Reusable: each Record sets a new
// mark. Thread-safe for one recorder and any number of waiters.
class Event {
 public:
  Event() = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  // Blocks the calling thread until all work before the last Record is done. DeadlineExceeded if
  // that takes longer. An event that was never recorded is ready.
  absl::Status Wait(base::Deadline deadline);

 private:
  friend class JobQueue;
  uint32_t StartMark();
  void Reach(uint32_t mark);

  std::atomic<uint32_t> recorded_{0};
  std::atomic<uint32_t> reached_{0};
};

// A piece of host code that issues work to a device. It runs once, on the stream's own thread, in
// the order of submission. It must not throw. The submitter owns it and keeps it until it has run.
class Job {
 public:
  virtual ~Job() = default;
  virtual void Run() = 0;
};

// Issued work that can be issued again with one call (Stream::Replay). Made by a device.
class Recording {
 public:
  // How the work was issued by the last Replay.
  enum class Form : uint8_t {
    kDirect,  // a CPU device does the work as it is issued
    kPlain,   // call by call: it has not been recorded yet, or cannot be
    kGraph,   // as the recorded graph
  };

  virtual ~Recording() = default;
  virtual Form form() const = 0;
  // Returns why it cannot be recorded; "" if it can as far as is known.
  virtual std::string why_plain() const { return ""; }
};

// Moments in a stream's order. Made by a device for a fixed number of slots; reusable.
class Timeline {
 public:
  virtual ~Timeline() = default;

  // Marks in `slot` the moment when all work issued to the stream so far is done. For jobs only.
  virtual absl::Status Mark(int slot) = 0;
  // Returns the last moment of the slot, on the clock of this process. Pre-condition: the stream
  // has finished (Stream::Finish) after the slot was marked.
  virtual absl::StatusOr<std::chrono::steady_clock::time_point> At(int slot) const = 0;
  // Waits until the last moment of the slot has come, whatever was issued later, and returns the
  // first error of the work. For jobs only, once the slot has been marked.
  virtual absl::Status Wait(int slot) const = 0;
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
  // Marks the current end of the queue in `event`. Thread-safe for different events.
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

  // The functions below are for jobs of this stream only.

  // Copies in the stream's order. `to` and `from` are in this device's memory or in memory of
  // AllocateHost, as they are where the name says host, which must not change until the copy is
  // done.
  virtual absl::Status Copy(void* to, const void* from, int64_t bytes) = 0;
  virtual absl::Status CopyFromHost(void* to, const void* from_host, int64_t bytes) = 0;
  virtual absl::Status CopyToHost(void* to_host, const void* from, int64_t bytes) = 0;

  // Copies from the host concurrently with the work of the stream, by a separate copy engine if
  // there is one: after the work that the stream had at the last AllowCopyAhead, and before Finish
  // returns, so that work issued later finds it done.
  virtual absl::Status AllowCopyAhead() = 0;
  virtual absl::Status CopyAhead(void* to, const void* from_host, int64_t bytes) = 0;

  // Issues the work of `issue`, which must issue the same work to this stream, on the same memory,
  // each time that it is called for the same recording, and nothing that waits for the host. An
  // accelerator may record the work of an earlier call and issue that, without calling `issue`.
  virtual absl::Status Replay(Recording& recording, absl::FunctionRef<absl::Status()> issue) = 0;

  // Brings work that runs aside back into the stream's order. Operations that are given scratch for
  // it may run a part of their work outside the stream's order: after everything issued before, and
  // concurrently with what is issued later, until this call, after which all of it is in the
  // stream's order again. What such work reads and writes must stay untouched until then.
  virtual absl::Status JoinAside() { return absl::OkStatus(); }

  // Sets, in the stream's order, the number that `reported` reads: how far the device has come. Any
  // thread can read it at any time, also after a failure.
  virtual absl::Status Report(int32_t position) = 0;
  virtual int32_t reported() const = 0;
  // Returns how many operations (kernels, copies, graphs, marks) the stream's jobs have put into
  // the device's order since creation; always 0 if work is done when it is issued. The queues of a
  // driver hold about a thousand: whoever issues into a full one waits within the driver, where no
  // deadline is kept.
  virtual int64_t issued() const { return 0; }
  // Waits until the host sees what work issued by this job writes to the host's memory, that is,
  // until `is_there` returns true. `poll` and errors are as in Finish.
  virtual absl::Status WaitUntil(absl::FunctionRef<bool()> is_there,
                                 absl::FunctionRef<absl::Status()> poll) = 0;
  // Waits until `position`, which this job has reported, or a later report is done.
  absl::Status WaitForReport(int32_t position, absl::FunctionRef<absl::Status()> poll) {
    return WaitUntil([&] { return reported() >= position; }, poll);
  }

  // Waits until all work issued to the stream is done, and with it everything that this work waits
  // for. `poll` is called now and then meanwhile; its error ends the wait. Otherwise returns the
  // first error of the work, or DeadlineExceeded. After an error the device's memory has undefined
  // contents, and the stream must not be given work.
  virtual absl::Status Finish(base::Deadline deadline, absl::FunctionRef<absl::Status()> poll) = 0;
  // Does the same, however long it takes.
  absl::Status Finish() {
    return Finish(base::Deadline::Never(), [] { return absl::OkStatus(); });
  }

  // Returns the native stream, for kernels from outside this library: a cudaStream_t on a CUDA
  // device, whose GPU is then the current one; null on a CPU device.
  virtual void* native_handle() const { return nullptr; }

  // Begins a named range in a profiler's view of the calling thread; the same thread must end it.
  // `name` outlives the range.
  virtual void BeginRange(const char* name) = 0;
  virtual void EndRange() = 0;

 protected:
  Stream() = default;
};

// Host memory that a device copies from and to directly (page-locked for an accelerator).
// Move-only.
class HostBuffer {
 public:
  HostBuffer() = default;
  HostBuffer(HostBuffer&& other) noexcept;
  HostBuffer& operator=(HostBuffer&& other) noexcept;
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;
  ~HostBuffer();

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  friend class Device;
  HostBuffer(Device* device, std::byte* data, int64_t bytes)
      : device_(device), data_(data), bytes_(bytes) {}

  Device* device_ = nullptr;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

// The use of an accelerator's memory by all devices of this process on it. It includes what other
// processes allocate or free: the driver does not tell whose memory it is.
struct AcceleratorMemory {
  int64_t allocated_bytes = 0;  // by the devices: what they charge to their budgets, and tables
  int64_t context_bytes = 0;    // in use before the first device: the driver's context of this
                                // process, and the memory of other processes then
  int64_t library_bytes = 0;    // in use besides, since then: by streams, libraries, loaded code

  friend bool operator==(const AcceleratorMemory&, const AcceleratorMemory&) = default;
};

// A place with memory and an order of work. Created by a backend (kernels/cpu/cpu_device.h,
// kernels/cuda_backend.h). Thread-safe. Everything that it makes must be destroyed before it.
class Device {
 public:
  virtual ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  DeviceKind kind() const { return kind_; }
  Precision precision() const { return precision_; }
  DType activation_type() const { return ActivationType(precision_); }
  // Returns whether the host may read and write the device's memory (between jobs, or within a
  // job).
  bool memory_is_host() const { return kind_ == DeviceKind::kCpu; }
  // Returns the order in which its operations take and return images.
  ImageOrder image_order() const {
    return kind_ == DeviceKind::kCpu ? ImageOrder::kChannelsFirst : ImageOrder::kChannelsLast;
  }
  const std::string& name() const { return name_; }            // "cpu:0", "cuda:1"
  int64_t memory_limit_bytes() const { return limit_bytes_; }  // the budget; 0: none
  int64_t used_bytes() const { return used_bytes_.load(std::memory_order_relaxed); }
  // Asks the driver for the use of memory. All 0 on a CPU device.
  virtual absl::StatusOr<AcceleratorMemory> MeasureMemory() const { return AcceleratorMemory(); }
  // Returns the choices so far among ways to compute that differ in the bits of their results:
  // texts "what: way", ascending by what. Devices that compute the same bits make the same choice
  // for every "what" that they have in common. Empty on a CPU device.
  virtual std::vector<std::string> choices() const { return {}; }

  // Allocates memory on this device, ready for use, zeroed, and charged to its budget.
  // ResourceExhausted names the device, and the bytes requested, used and allowed.
  absl::StatusOr<Buffer> Allocate(int64_t bytes);
  // Allocates memory for small tables that no plan counts: it is not charged to the budget.
  absl::StatusOr<Buffer> AllocateTable(int64_t bytes);
  // Allocates zeroed host memory. ResourceExhausted if the system refuses.
  absl::StatusOr<HostBuffer> AllocateHost(int64_t bytes);

  // Returns the device's stream, which orders all of its work.
  virtual Stream& stream() = 0;
  // Returns the operations this device offers.
  virtual Ops& ops() = 0;

  // Creates objects that belong to the stream.
  virtual absl::StatusOr<std::unique_ptr<Recording>> CreateRecording() = 0;
  virtual absl::StatusOr<std::unique_ptr<Timeline>> CreateTimeline(int slots) = 0;
  // Creates copies between this device's memory and the host's (kernels/host_copies.h).
  virtual absl::StatusOr<std::unique_ptr<HostCopies>> CreateHostCopies(int slots) = 0;
  // Creates a way for messages from `sender`, a device of the same backend and process (maybe this
  // one), to this device.
  virtual absl::StatusOr<std::unique_ptr<PeerCopy>> CreatePeerCopy(Device& sender) = 0;
  // Creates this device's end of a group of devices; all ranks must call this at the same time.
  // Unimplemented on a CPU device.
  virtual absl::StatusOr<std::unique_ptr<Communicator>> CreateCommunicator(
      const CommunicatorOptions& options);

 protected:
  Device(DeviceKind kind, Precision precision, std::string name, int64_t memory_limit_bytes);
  // Allocates zeroed bytes.
  virtual absl::StatusOr<std::byte*> AllocateBytes(int64_t bytes) = 0;
  virtual void FreeBytes(std::byte* data, int64_t bytes) = 0;
  // Allocates bytes that are not zeroed; plain memory by default.
  virtual absl::StatusOr<std::byte*> AllocateHostBytes(int64_t bytes);
  virtual void FreeHostBytes(std::byte* data, int64_t bytes);

 private:
  friend class Buffer;
  friend class HostBuffer;

  const DeviceKind kind_;
  const Precision precision_;
  const std::string name_;
  const int64_t limit_bytes_;
  std::atomic<int64_t> used_bytes_{0};
};

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_DEVICE_H_
