// Replaces the stand-ins when tests of the backend run on a real GPU.
#include <cuda_runtime_api.h>

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "base/check.h"
#include "tests/testing/cuda/stand_in.h"

namespace stagecoach::testing::cuda {
namespace {

std::mutex& TheLock() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}

void Refuse(const char* what) { STAGECOACH_CHECK(false, what); }

}  // namespace

bool IsSimulated() { return false; }

// A GPU has its own order of threads, different in each run.
void Reset(const StandInOptions&) {}

// Remaining objects are not counted.
Live live() { return {}; }
bool NothingIsLeft(absl::Duration /*patience*/) { return true; }

// The stream waits in a host function.
cudaError_t Enqueue(cudaStream_t stream, Operation operation) {
  const auto perform = [](void* given) {
    const std::unique_ptr<Operation> own(static_cast<Operation*>(given));
    const auto is_ready = [&] {
      const std::lock_guard<std::mutex> lock(TheLock());
      return own->ready == nullptr || own->ready();
    };
    while (!is_ready()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    own->run();
  };
  auto own = std::make_unique<Operation>(std::move(operation));
  const cudaError_t error = cudaLaunchHostFunc(stream, perform, own.get());
  if (error == cudaSuccess) static_cast<void>(own.release());
  return error;
}

void Locked(const std::function<void()>& change) {
  const std::lock_guard<std::mutex> lock(TheLock());
  change();
}

// Tests that call these are skipped (IsSimulated).
int64_t calls() { return 0; }
std::map<std::string, int64_t> CallsByName() { return {}; }
void FailCall(int64_t) { Refuse("no call of a library fails on purpose"); }
std::string failed_call() { return ""; }
void FailOperation(int64_t) { Refuse("no operation of a GPU fails on purpose"); }
void FailCommunicator(int, int64_t) { Refuse("no communicator fails on purpose"); }

}  // namespace stagecoach::testing::cuda
