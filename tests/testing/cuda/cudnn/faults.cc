#include "tests/testing/cuda/cudnn/faults.h"

#include <mutex>
#include <utility>

namespace stagecoach::testing::cuda {
namespace {

struct GuardedCudnnFaults {
  std::mutex mutex;
  CudnnFaults faults;
};

GuardedCudnnFaults& TheCudnnFaults() {
  static auto* const state = new GuardedCudnnFaults;  // never destroyed: other objects may end
                                                      // later
  return *state;
}

}  // namespace

void SetCudnnFaults(CudnnFaults faults) {
  GuardedCudnnFaults& state = TheCudnnFaults();
  const std::lock_guard<std::mutex> lock(state.mutex);
  state.faults = std::move(faults);
}

CudnnFaults cudnn_faults() {
  GuardedCudnnFaults& state = TheCudnnFaults();
  const std::lock_guard<std::mutex> lock(state.mutex);
  return state.faults;
}

}  // namespace stagecoach::testing::cuda
