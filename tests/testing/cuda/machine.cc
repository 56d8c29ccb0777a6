#include "tests/testing/cuda/machine.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"

namespace stagecoach::testing::cuda {
namespace {

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

// This is defined in stand_in.cc.
StandInOptions OptionsOfEnvironment();

Machine& Machine::Get() {
  static Machine* const machine = new Machine;  // never destroyed: other objects may end later
  return *machine;
}

Machine::Machine() : options_(OptionsOfEnvironment()) { Build(); }

void Machine::Build() {
  random_.seed(options_.seed);
  gpus.clear();
  for (int gpu = 0; options_.driver && gpu < options_.gpus; ++gpu) {
    gpus.push_back(std::make_unique<Gpu>(options_.memory_bytes - options_.context_bytes));
  }
  shared_bytes.clear();
  operations_to_failure_ = options_.failing_operation;
  extra_ns_ = 0;
  ++resets_;
}

void Machine::Reset(const StandInOptions& options) {
  Lock lock(mutex_);
  // Streams may have been destroyed with work left.
  while (PerformOne()) {
  }
  Close();
  STAGECOACH_CHECK(streams.empty(), "a stream was destroyed with work that can never be done");
  options_ = options;
  Build();
}

ThreadState& CurrentThread() {
  thread_local ThreadState state;
  if (const int64_t resets = Machine::Get().resets(); state.resets != resets) {
    state = {.resets = resets};
  }
  return state;
}

// ---- The contents of the machine.

int Machine::GpuOfMemory(const void* address, int64_t bytes) const {
  for (size_t gpu = 0; gpu < gpus.size(); ++gpu) {
    if (gpus[gpu]->memory.Contains(address, bytes)) return static_cast<int>(gpu);
  }
  return -1;
}

bool Machine::InHostMemory(const void* address, int64_t bytes) const {
  const uintptr_t begin = reinterpret_cast<uintptr_t>(address);
  const auto after = host.upper_bound(begin);
  if (after == host.begin()) return false;
  const auto& [host_begin, allocation] = *std::prev(after);
  return static_cast<int64_t>(begin - host_begin) + bytes <= allocation.bytes;
}

bool Machine::Idle(int gpu) const {
  return std::all_of(streams.begin(), streams.end(), [gpu](const auto& stream) {
    return stream.second->gpu != gpu || stream.second->items.empty();
  });
}

StreamState* Machine::Find(cudaStream_t stream) {
  const auto found = streams.find(reinterpret_cast<uintptr_t>(stream));
  return found == streams.end() || found->second->destroyed ? nullptr : found->second.get();
}

EventState* Machine::Find(cudaEvent_t event) {
  const auto found = events.find(reinterpret_cast<EventState*>(event));
  return found == events.end() ? nullptr : found->second.get();
}

// ---- Performing work.

cudaError_t Machine::Enqueue(cudaStream_t handle, Operation operation, bool takes_room) {
  StreamState* const stream = Find(handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  const cudaError_t failure = gpus[static_cast<size_t>(stream->gpu)]->failure;
  if (failure != cudaSuccess) return failure;
  if (stream->capture != nullptr) {
    if (!stream->capture->valid) return cudaErrorStreamCaptureInvalidated;
    STAGECOACH_CHECK(operation.ready == nullptr, "an operation that waits cannot be captured");
    stream->capture->graph.branches[stream->branch].push_back({.operation = std::move(operation)});
    return cudaSuccess;
  }
  Append(*stream, {.operation = std::move(operation), .takes_room = takes_room});
  return cudaSuccess;
}

void Machine::Append(StreamState& stream, Item item) {
  stream.queued += item.takes_room ? 1 : 0;
  if (stream.queued > kQueueCapacity) CurrentThread().full_stream = stream.number;
  stream.items.push_back(std::move(item));
  most_pending_ = std::max(most_pending_, stream.items.size());
  Changed();
}

void Machine::Open() {
  for (const std::unique_ptr<Gpu>& gpu : gpus) gpu->memory.Open();
}

void Machine::Close() {
  for (const std::unique_ptr<Gpu>& gpu : gpus) gpu->memory.Close();
}

bool Machine::Ready(const Item& item) {
  if (item.kind == Item::Kind::kWait) return item.event->reached >= item.mark;
  if (item.operation.ready == nullptr) return true;
  Open();
  return item.operation.ready();
}

bool Machine::PerformOne() {
  ready_.clear();
  for (const auto& [key, stream] : streams) {
    if (!stream->items.empty() && Ready(stream->items.front())) ready_.push_back(stream.get());
  }
  if (ready_.empty()) return false;
  Perform(*ready_[random_() % ready_.size()]);
  return true;
}

void Machine::Perform(StreamState& stream) {
  const Item item = std::move(stream.items.front());
  stream.items.pop_front();
  stream.queued -= item.takes_room ? 1 : 0;
  if (item.kind == Item::Kind::kRecord) {
    item.event->reached = item.mark;
    item.event->reached_ns = NowNs() + extra_ns_;
  } else if (item.kind == Item::Kind::kOperation) {
    if (operations_to_failure_ == 0) {
      operations_to_failure_ = options_.failing_operation;
      Fail(stream.gpu, cudaErrorIllegalAddress);  // may delete the stream too
      return;
    }
    if (operations_to_failure_ > 0) --operations_to_failure_;
    Open();
    item.operation.run();
    extra_ns_ += item.operation.extra_ns;
  }
  if (stream.destroyed) Destroy(stream);
}

cudaStream_t Machine::AddStream(int gpu) {
  auto stream = std::make_unique<StreamState>();
  stream->number = ++last_stream_;
  stream->gpu = gpu;
  const cudaStream_t handle = reinterpret_cast<cudaStream_t>(stream->number);
  streams[stream->number] = std::move(stream);
  return handle;
}

void Machine::Destroy(StreamState& stream) {
  stream.destroyed = true;
  if (stream.items.empty()) streams.erase(stream.number);
}

void Machine::Fail(int gpu, cudaError_t error) {
  gpus[static_cast<size_t>(gpu)]->failure = error;
  for (auto next = streams.begin(); next != streams.end();) {
    StreamState& stream = *next++->second;
    if (stream.gpu != gpu) continue;
    for (const Item& item : stream.items) {
      if (item.kind == Item::Kind::kRecord) item.event->reached = item.mark;
    }
    stream.items.clear();
    stream.queued = 0;
    if (stream.destroyed) Destroy(stream);
  }
}

void Machine::WaitForRoom() {
  const uintptr_t full = std::exchange(CurrentThread().full_stream, 0);
  if (full == 0) return;
  Lock lock(mutex_);
  RunUntil(lock, [&] {
    const auto stream = streams.find(full);
    return stream == streams.end() || stream->second->queued <= kQueueCapacity;
  });
}

void Machine::Progress() {
  WaitForRoom();
  bool waits = false;
  {
    Lock lock(mutex_);
    std::bernoulli_distribution later(options_.delay);
    bool performed = false;
    while (!waits && !later(random_)) {
      if (PerformOne()) {
        performed = true;
      } else {
        waits = true;
      }
    }
    Close();
    if (performed) Changed();
  }
  // A polling thread must not keep the others from the work that it waits for.
  if (waits) std::this_thread::yield();
}

void Machine::RunUntil(Lock& lock, const std::function<bool()>& done) {
  while (!done()) {
    if (PerformOne()) {
      Changed();
    } else {
      Close();
      changed_.wait_for(lock, std::chrono::microseconds(200));
    }
  }
  Close();
}

}  // namespace stagecoach::testing::cuda
