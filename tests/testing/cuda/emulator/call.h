#ifndef STAGECOACH_TESTS_TESTING_CUDA_EMULATOR_CALL_H_
#define STAGECOACH_TESTS_TESTING_CUDA_EMULATOR_CALL_H_

#include <cuda_runtime_api.h>

#include "tests/testing/cuda/machine.h"
#include "tests/testing/cuda/stand_in.h"

// The common part of every call of the runtime. A body is called with the machine and its lock, and
// returns the call's result.
namespace stagecoach::testing::cuda {

// Keeps an error for cudaGetLastError, and returns it.
inline cudaError_t Remember(cudaError_t error) {
  if (error != cudaSuccess) CurrentThread().last_error = error;
  return error;
}

// Returns the asynchronous error of the calling thread's GPU.
inline cudaError_t CurrentFailure(const Machine& machine) {
  if (machine.gpus.empty()) return cudaErrorNoDevice;
  return machine.gpus[static_cast<size_t>(CurrentThread().gpu)]->failure;
}

// Makes a call that needs no working GPU.
template <typename Body>
cudaError_t SystemCall(const char* name, Body&& body, cudaError_t injected = cudaErrorUnknown) {
  Machine& machine = Machine::Get();
  if (!machine.options().driver) return Remember(cudaErrorInsufficientDriver);
  if (MustFail(name)) return Remember(injected);
  cudaError_t error;
  {
    Machine::Lock lock = machine.Locked();
    error = body(machine, lock);
  }
  machine.Progress();
  return Remember(error);
}

// Makes a call that works on the current GPU, and fails once that has failed. `injected` is
// returned if it must fail on purpose.
template <typename Body>
cudaError_t Call(const char* name, Body&& body, cudaError_t injected = cudaErrorUnknown) {
  return SystemCall(
      name,
      [&](Machine& machine, Machine::Lock& lock) -> cudaError_t {
        if (const cudaError_t failure = CurrentFailure(machine); failure != cudaSuccess) {
          return failure;
        }
        return body(machine, lock);
      },
      injected);
}

// Makes a call that releases something. It does so whatever has failed before, and never fails on
// purpose.
template <typename Body>
cudaError_t GiveBackCall(Body&& body) {
  Machine& machine = Machine::Get();
  if (!machine.options().driver) return Remember(cudaErrorInsufficientDriver);
  cudaError_t error;
  {
    Machine::Lock lock = machine.Locked();
    error = body(machine, lock);
    if (error == cudaSuccess) error = CurrentFailure(machine);
  }
  machine.Progress();
  return Remember(error);
}

// Reports mistakes on stderr that CUDA would not explain, or not notice.
cudaError_t Refuse(const char* call, const char* why);

}  // namespace stagecoach::testing::cuda

#endif  // STAGECOACH_TESTS_TESTING_CUDA_EMULATOR_CALL_H_
