#include "tests/testing/cuda/emulator/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

#include "base/check.h"
#include "tests/testing/cuda/sanitizers.h"

// Saves the stack pointer and the registers that a called function must preserve, and loads those
// of the other context. It is written in assembly, because swapcontext() makes two system calls
// each time.
extern "C" void StagecoachSwitchStack(void** from, void* to);
asm(R"(
.text
.type StagecoachSwitchStack,@function
StagecoachSwitchStack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size StagecoachSwitchStack, .-StagecoachSwitchStack
)");

namespace stagecoach::testing::cuda {
namespace {

constexpr size_t kStackBytes = size_t{128} << 10;
constexpr int kSavedRegisters = 6;

size_t PageBytes() {
  static const size_t bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

// Stacks that began at the same place of a page would compete for the same lines of the cache: each
// begins elsewhere.
size_t Color() {
  static size_t next = 0;
  return next++ * 5 % 64 * 64;
}

// The fibers that the last switch left and entered.
Fiber* left = nullptr;
Fiber* entered = nullptr;

}  // namespace

Fiber::Fiber() = default;

Fiber::Fiber(void (*body)(void*), void* argument) : body_(body), argument_(argument) {
  void* const mapping = mmap(nullptr, PageBytes() + kStackBytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  STAGECOACH_CHECK(mapping != MAP_FAILED, "no memory for the stack of a fiber");
  mapping_ = static_cast<std::byte*>(mapping);
  STAGECOACH_CHECK(mprotect(mapping_, PageBytes(), PROT_NONE) == 0, "cannot guard a stack");
  stack_bottom_ = mapping_ + PageBytes();
  stack_bytes_ = kStackBytes;
  // Makes Start look as if it had no caller: its return address is null, which leaves the stack
  // pointer where the ABI wants it at the entry of a function.
  auto** const top = reinterpret_cast<void**>(mapping_ + PageBytes() + kStackBytes - Color());
  top[-1] = nullptr;
  top[-2] = reinterpret_cast<void*>(&Fiber::Start);
  stack_pointer_ = top - 2 - kSavedRegisters;
  if (__tsan_create_fiber != nullptr) tsan_fiber_ = __tsan_create_fiber(0);
}

Fiber::~Fiber() {
  if (mapping_ == nullptr) return;
  if (tsan_fiber_ != nullptr) __tsan_destroy_fiber(tsan_fiber_);
  munmap(mapping_, PageBytes() + kStackBytes);
}

void Fiber::SwitchTo(Fiber& to) {
  if (mapping_ == nullptr && __tsan_get_current_fiber != nullptr) {
    tsan_fiber_ = __tsan_get_current_fiber();
  }
  left = this;
  entered = &to;
  if (__sanitizer_start_switch_fiber != nullptr) {
    __sanitizer_start_switch_fiber(&fake_stack_, to.stack_bottom_, to.stack_bytes_);
  }
  if (__tsan_switch_to_fiber != nullptr) __tsan_switch_to_fiber(to.tsan_fiber_, 0);
  StagecoachSwitchStack(&stack_pointer_, to.stack_pointer_);
  Arrive();
}

void Fiber::Arrive() {
  if (__sanitizer_finish_switch_fiber == nullptr) return;
  // If the fiber left uses a thread's own stack, only the sanitizer knows where that is.
  __sanitizer_finish_switch_fiber(fake_stack_, &left->stack_bottom_, &left->stack_bytes_);
}

void Fiber::Start() {
  Fiber& self = *entered;
  self.Arrive();
  self.body_(self.argument_);
  STAGECOACH_CHECK(false, "the body of a fiber must not return");
}

}  // namespace stagecoach::testing::cuda
