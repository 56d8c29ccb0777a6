#ifndef STAGECOACH_TESTS_TESTING_CUDA_MACHINE_H_
#define STAGECOACH_TESTS_TESTING_CUDA_MACHINE_H_

#include <cuda_runtime_api.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "tests/testing/cuda/gpu_memory.h"
#include "tests/testing/cuda/stand_in.h"

// The simulated machine on which the calls of the runtime work. Internal to the stand-in.
namespace stagecoach::testing::cuda {

struct Capture;

struct EventState {
  int gpu = 0;
  bool timing = true;
  // The number of the last mark that was put into a stream, and of the last one that was reached.
  int64_t recorded = 0, reached = 0;
  int64_t reached_ns = 0;
  // The place where it was last recorded while a stream was captured: the number of its mark in the
  // graph. The capture no longer exists once it has ended.
  bool is_captured = false;
  std::weak_ptr<Capture> capture;
  int64_t captured_mark = 0;
};

// An operation of a stream, or a mark of an event that it sets, or one that it waits for.
struct Item {
  enum class Kind : uint8_t { kOperation, kRecord, kWait };
  Kind kind = Kind::kOperation;
  Operation operation;
  std::shared_ptr<EventState> event;  // null in a graph, whose marks are numbered
  int64_t mark = 0;
  bool takes_room = true;  // in the driver's queue: false for a graph's operations except the first
};

// A branch is an ordered list of work; the first one runs in the stream that launches.
struct Graph {
  int gpu = 0;
  std::vector<std::vector<Item>> branches = {{}};
  int64_t marks = 0;
};

struct StreamState;

// The stream in which it began, and those that have come to wait for an event recorded in it, have
// a branch each.
struct Capture {
  Graph graph;
  std::vector<StreamState*> streams;  // of the branches
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;
  bool valid = true;
};

struct StreamState {
  uintptr_t number = 0;
  int gpu = 0;
  std::deque<Item> items;
  int queued = 0;  // items that take room
  std::shared_ptr<Capture> capture;
  size_t branch = 0;       // in the capture
  bool destroyed = false;  // removed when it is empty
};

struct Executable {
  std::shared_ptr<const Graph> graph;  // launches that are pending share it
};

struct Gpu {
  explicit Gpu(int64_t memory_bytes) : memory(memory_bytes) {}
  GpuMemory memory;
  // The asynchronous error that has ended all work on it.
  cudaError_t failure = cudaSuccess;
  std::set<int> peers;  // GPUs whose memory it may access
};

struct HostAllocation {
  int64_t bytes = 0;
  int gpu = 0;
};

// Members that are not marked thread-safe need the lock.
class Machine {
 public:
  static Machine& Get();

  // Only one exists at a time in the whole process. Device memory can be accessed while one is
  // open.
  using Lock = std::unique_lock<std::mutex>;
  Lock Locked() { return Lock(mutex_); }

  void Reset(const StandInOptions& options);
  int64_t resets() const { return resets_; }
  const StandInOptions& options() const { return options_; }
  std::mt19937_64& random() { return random_; }
  // Performs a random number of ready operations; thread-safe, called without the lock. Blocks
  // while a queue is full to which the calling thread has added something.
  void Progress();
  // Performs operations until `done`; releases the lock while there is nothing to perform.
  void RunUntil(Lock& lock, const std::function<bool()>& done);
  // Wakes the waiting threads, because something has changed.
  void Changed() { changed_.notify_all(); }
  // Does the same as CUDA's calls: refuses if the stream's GPU has failed, and captures.
  cudaError_t Enqueue(cudaStream_t stream, Operation operation, bool takes_room = true);
  void Append(StreamState& stream, Item item);
  size_t TakeMostPending() { return std::exchange(most_pending_, 0); }
  cudaStream_t AddStream(int gpu);
  // Deletes a stream that has nothing left to do, now or as soon as that is so.
  void Destroy(StreamState& stream);
  void FailOperation(int64_t operations) { operations_to_failure_ = operations; }

  // Returns the GPU whose live allocation contains all these bytes; -1 if there is none.
  int GpuOfMemory(const void* address, int64_t bytes) const;
  bool InHostMemory(const void* address, int64_t bytes) const;
  bool Idle(int gpu) const;
  // Returns null if it does not exist.
  StreamState* Find(cudaStream_t stream);
  EventState* Find(cudaEvent_t event);

  std::vector<std::unique_ptr<Gpu>> gpus;
  // Keyed by their numbers, which are their handles: the same choices among them mean the same work
  // wherever they lie in memory.
  std::map<uintptr_t, std::unique_ptr<StreamState>> streams;
  std::map<const EventState*, std::shared_ptr<EventState>> events;
  std::map<const Graph*, std::unique_ptr<Graph>> graphs;
  std::map<const Executable*, std::unique_ptr<Executable>> executables;
  std::map<uintptr_t, HostAllocation> host;
  std::map<const void*, size_t> shared_bytes;  // the dynamic shared memory that kernels have been
                                               // allowed

 private:
  Machine();
  void Build();
  // Makes device memory accessible, until Close.
  void Open();
  void Close();
  bool Ready(const Item& item);
  // Returns false if nothing was ready. Leaves device memory as it is.
  bool PerformOne();
  void Perform(StreamState& stream);
  void WaitForRoom();
  // Ends all work of a GPU.
  void Fail(int gpu, cudaError_t error);

  std::mutex mutex_;
  std::condition_variable changed_;
  StandInOptions options_;
  std::mt19937_64 random_;
  std::atomic<int64_t> resets_{0};
  uintptr_t last_stream_ = 0;
  size_t most_pending_ = 0;
  int64_t operations_to_failure_ = -1;
  int64_t extra_ns_ = 0;             // by which the GPUs' clocks are ahead of this machine's
  std::vector<StreamState*> ready_;  // scratch
};

// The state of the calling thread, since the last Reset.
struct ThreadState {
  int64_t resets = -1;  // how many there had been
  int gpu = 0;
  cudaError_t last_error = cudaSuccess;
  uintptr_t full_stream = 0;  // the stream that it has filled beyond kQueueCapacity; 0: none
  int captures = 0;           // begun by this thread in a mode that forbids unsafe calls
};
ThreadState& CurrentThread();

}  // namespace stagecoach::testing::cuda

#endif  // STAGECOACH_TESTS_TESTING_CUDA_MACHINE_H_
