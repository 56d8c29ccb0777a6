#include "tests/testing/cuda/cublas_lt/faults.h"

#include <mutex>
#include <utility>

namespace stagecoach::testing::cuda {
namespace {

struct Faults {
  std::mutex mutex;
  BlasFaults faults;
};

Faults& TheFaults() {
  static Faults* const state = new Faults;  // never destroyed: other objects may end later
  return *state;
}

}  // namespace

void SetBlasFaults(BlasFaults faults) {
  Faults& state = TheFaults();
  const std::lock_guard<std::mutex> lock(state.mutex);
  state.faults = std::move(faults);
}

BlasFaults blas_faults() {
  Faults& state = TheFaults();
  const std::lock_guard<std::mutex> lock(state.mutex);
  return state.faults;
}

}  // namespace stagecoach::testing::cuda
