#include "tests/testing/cuda/stand_in.h"

#include <signal.h>

#include <atomic>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/check.h"
#include "base/deadline.h"
#include "tests/testing/cuda/cublas_lt/faults.h"
#include "tests/testing/cuda/cudnn/faults.h"
#include "tests/testing/cuda/machine.h"

namespace stagecoach::testing::cuda {
namespace {

struct Counters {
  std::mutex mutex;  // protects the next five
  int64_t calls = 0;
  std::map<std::string, int64_t> by_name;
  int64_t failing = 0;  // number of the call that must fail; 0: none
  std::string failed;
  std::string max_connections;
  std::atomic<int64_t> blas_objects{0}, cudnn_objects{0}, communicators{0};
};

Counters& TheCounters() {
  static Counters* const counters = new Counters;
  return *counters;
}

int64_t NumberOf(const std::string& key, absl::string_view text) {
  int64_t unit = 1;
  if (absl::ConsumeSuffix(&text, "KB")) unit = 1000;
  if (absl::ConsumeSuffix(&text, "MB")) unit = 1000 * 1000;
  if (absl::ConsumeSuffix(&text, "GB")) unit = 1000 * 1000 * 1000;
  int64_t number = 0;
  STAGECOACH_CHECK(absl::SimpleAtoi(text, &number),
                   absl::StrCat("$STAGECOACH_CUDA_STAND_IN: ", key, " is no number: ", text));
  return number * unit;
}

ThreadOrder OrderOf(absl::string_view text) {
  if (text == "ascending") return ThreadOrder::kAscending;
  if (text == "descending") return ThreadOrder::kDescending;
  STAGECOACH_CHECK(text == "random",
                   absl::StrCat("$STAGECOACH_CUDA_STAND_IN: no such order: ", text));
  return ThreadOrder::kRandom;
}

void SetOption(const std::string& key, const std::string& value, StandInOptions& options) {
  if (key == "gpus") {
    options.gpus = static_cast<int>(NumberOf(key, value));
  } else if (key == "memory") {
    options.memory_bytes = NumberOf(key, value);
  } else if (key == "context") {
    options.context_bytes = NumberOf(key, value);
  } else if (key == "seed") {
    options.seed = static_cast<uint64_t>(NumberOf(key, value));
  } else if (key == "order") {
    options.thread_order = OrderOf(value);
  } else if (key == "delay") {
    STAGECOACH_CHECK(absl::SimpleAtod(value, &options.delay),
                     absl::StrCat("$STAGECOACH_CUDA_STAND_IN: delay is no number: ", value));
  } else if (key == "driver") {
    options.driver = NumberOf(key, value) != 0;
  } else if (key == "cudnn_version") {
    options.cudnn_version = NumberOf(key, value);
  } else if (key == "nccl_channels") {
    options.nccl_channels = static_cast<int>(NumberOf(key, value));
  } else if (key == "graphs") {
    options.graphs = NumberOf(key, value) != 0;
  } else if (key == "nccl_end_waits") {
    options.nccl_end_waits = NumberOf(key, value) != 0;
  } else if (key == "stop_at") {
    options.stop_at = value;
  } else if (key == "launch_error") {
    options.launch_error = static_cast<cudaError_t>(NumberOf(key, value));
  } else if (key == "fail") {
    FailCall(NumberOf(key, value));
  } else if (key == "fail_operation") {
    options.failing_operation = NumberOf(key, value);
  } else {
    STAGECOACH_CHECK(false, absl::StrCat("$STAGECOACH_CUDA_STAND_IN: no such option: ", key));
  }
}

}  // namespace

StandInOptions OptionsOfEnvironment() {
  StandInOptions options;
  const char* const text = std::getenv("STAGECOACH_CUDA_STAND_IN");
  if (text == nullptr) return options;
  for (const absl::string_view part : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    const std::pair<std::string, std::string> option =
        absl::StrSplit(absl::StripAsciiWhitespace(part), absl::MaxSplits('=', 1));
    SetOption(option.first, option.second, options);
  }
  return options;
}

bool IsSimulated() { return true; }

bool NothingIsLeft(absl::Duration patience) {
  const base::Deadline deadline = base::Deadline::After(patience);
  while (live().total() > 0 && !deadline.Expired()) absl::SleepFor(absl::Milliseconds(1));
  return live().total() == 0;
}

void Reset(const StandInOptions& options) {
  STAGECOACH_CHECK(
      options.gpus >= 1 && options.memory_bytes >= 1 && options.delay >= 0 && options.delay < 1,
      "options of the CUDA stand-in are out of range");
  Machine& machine = Machine::Get();
  STAGECOACH_CHECK(
      NothingIsLeft(options.patience),
      absl::StrCat("Reset of the CUDA stand-in, with ", live().total(), " objects left"));
  machine.Reset(options);
  Counters& counters = TheCounters();
  const std::lock_guard<std::mutex> lock(counters.mutex);
  counters.calls = counters.failing = 0;
  counters.by_name.clear();
  counters.failed.clear();
  SetBlasFaults({});
  SetCudnnFaults({});
}

int64_t calls() {
  Counters& counters = TheCounters();
  const std::lock_guard<std::mutex> lock(counters.mutex);
  return counters.calls;
}

std::map<std::string, int64_t> CallsByName() {
  Counters& counters = TheCounters();
  const std::lock_guard<std::mutex> lock(counters.mutex);
  return counters.by_name;
}

std::string MaxConnections() {
  Counters& counters = TheCounters();
  const std::lock_guard<std::mutex> lock(counters.mutex);
  return counters.max_connections;
}

void FailCall(int64_t call) {
  Counters& counters = TheCounters();
  const std::lock_guard<std::mutex> lock(counters.mutex);
  counters.failing = call == 0 ? 0 : counters.calls + call;
}

std::string failed_call() {
  Counters& counters = TheCounters();
  const std::lock_guard<std::mutex> lock(counters.mutex);
  return counters.failed;
}

void StopIfAsked(const char* call) {
  static std::atomic<bool> has_stopped{false};
  // Ranks that are threads may have waited in a folder for the one that called Reset, which a
  // sanitizer cannot see: here they synchronize with its lock.
  const std::lock_guard<std::mutex> lock(TheCounters().mutex);
  if (Machine::Get().options().stop_at == call && !has_stopped.exchange(true)) raise(SIGSTOP);
}

bool MustFail(const char* call) {
  StopIfAsked(call);
  Counters& counters = TheCounters();
  const std::lock_guard<std::mutex> lock(counters.mutex);
  ++counters.by_name[call];
  if (counters.calls == 0) {
    const char* const connections = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    counters.max_connections = connections == nullptr ? "" : connections;
  }
  if (++counters.calls != counters.failing) return false;
  counters.failed = call;
  return true;
}

void FailOperation(int64_t operations) {
  Machine& machine = Machine::Get();
  const Machine::Lock lock = machine.Locked();
  machine.FailOperation(operations);
}

size_t TakeMostPending() {
  Machine& machine = Machine::Get();
  const Machine::Lock lock = machine.Locked();
  return machine.TakeMostPending();
}

Live live() {
  Machine& machine = Machine::Get();
  const Machine::Lock lock = machine.Locked();
  Live result = {.host_allocations = static_cast<int64_t>(machine.host.size()),
                 .events = static_cast<int64_t>(machine.events.size()),
                 .graphs = static_cast<int64_t>(machine.graphs.size() + machine.executables.size()),
                 .blas_objects = TheCounters().blas_objects,
                 .cudnn_objects = TheCounters().cudnn_objects,
                 .communicators = TheCounters().communicators};
  for (const std::unique_ptr<Gpu>& gpu : machine.gpus) {
    result.allocations += gpu->memory.allocations();
  }
  for (const auto& [key, stream] : machine.streams) result.streams += stream->destroyed ? 0 : 1;
  return result;
}

void CountBlasObject(int64_t change) { TheCounters().blas_objects += change; }
void CountCudnnObject(int64_t change) { TheCounters().cudnn_objects += change; }
void CountCommunicator(int64_t change) { TheCounters().communicators += change; }

int CurrentGpu() { return Machine::Get().options().driver ? CurrentThread().gpu : -1; }

int GpuOfStream(cudaStream_t stream) {
  Machine& machine = Machine::Get();
  const Machine::Lock lock = machine.Locked();
  const StreamState* const state = machine.Find(stream);
  return state == nullptr ? -1 : state->gpu;
}

int GpuOfMemory(const void* address, int64_t bytes) {
  Machine& machine = Machine::Get();
  const Machine::Lock lock = machine.Locked();
  return machine.GpuOfMemory(address, bytes);
}

cudaError_t Enqueue(cudaStream_t stream, Operation operation) {
  Machine& machine = Machine::Get();
  const Machine::Lock lock = machine.Locked();
  return machine.Enqueue(stream, std::move(operation));
}

void Progress() { Machine::Get().Progress(); }

void Locked(const std::function<void()>& change) {
  Machine& machine = Machine::Get();
  const Machine::Lock lock = machine.Locked();
  change();
  machine.Changed();
}

}  // namespace stagecoach::testing::cuda
