#ifndef STAGECOACH_TESTS_TESTING_CUDA_EMULATOR_FIBER_H_
#define STAGECOACH_TESTS_TESTING_CUDA_EMULATOR_FIBER_H_

#include <cstddef>

namespace stagecoach::testing::cuda {

// A context of execution with a stack of its own, above an inaccessible page.
// Contexts change only when one switches to another: no two run at a time. AddressSanitizer and
// ThreadSanitizer are told, if the program has them. Not thread-safe; x86-64 only.
class Fiber {
 public:
  // Makes the context of the thread that calls SwitchTo on it. It owns no stack and is never
  // started.
  Fiber();
  // Makes a fiber that starts when it is first switched to. `body` must not return, and the fiber
  // may be destroyed in the middle of it: nothing is unwound.
  Fiber(void (*body)(void*), void* argument);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Leaves the running fiber, on which it must be called, for `to`, and returns when something
  // switches back. A fiber without a stack of its own becomes the current thread's context.
  void SwitchTo(Fiber& to);

 private:
  static void Start();
  void Arrive();

  void* stack_pointer_ = nullptr;
  std::byte* mapping_ = nullptr;
  void (*body_)(void*) = nullptr;
  void* argument_ = nullptr;
  // The sanitizers' data about it.
  const void* stack_bottom_ = nullptr;
  size_t stack_bytes_ = 0;
  void* fake_stack_ = nullptr;
  void* tsan_fiber_ = nullptr;
};

}  // namespace stagecoach::testing::cuda

#endif  // STAGECOACH_TESTS_TESTING_CUDA_EMULATOR_FIBER_H_
