#include "tests/testing/cuda/cublas_lt_faults.h"

#include <mutex>
#include <utility>

namespace stagecoach::testing::cuda {
namespace {

struct State {
  std::mutex mutex;
  BlasFaults faults;
};

State& TheState() {
  static State* const state = new State;  // never destroyed: others may end later
  return *state;
}

}  // namespace

void SetBlasFaults(BlasFaults faults) {
  State& state = TheState();
  const std::lock_guard<std::mutex> lock(state.mutex);
  state.faults = std::move(faults);
}

BlasFaults blas_faults() {
  State& state = TheState();
  const std::lock_guard<std::mutex> lock(state.mutex);
  return state.faults;
}

}  // namespace stagecoach::testing::cuda
