#ifndef STAGECOACH_TESTS_TESTING_CUDA_SANITIZERS_H_
#define STAGECOACH_TESTS_TESTING_CUDA_SANITIZERS_H_

#include <cstddef>

// The sanitizers' interfaces for stacks and memory that they cannot know of. They are weak: a null
// pointer in a program without the sanitizer, so that the same objects work in all builds.
extern "C" {
[[gnu::weak]] void __sanitizer_start_switch_fiber(void** fake_stack, const void* bottom,
                                                  size_t bytes);
[[gnu::weak]] void __sanitizer_finish_switch_fiber(void* fake_stack, const void** old_bottom,
                                                   size_t* old_bytes);
[[gnu::weak]] void __asan_poison_memory_region(const volatile void* address, size_t bytes);
[[gnu::weak]] void __asan_unpoison_memory_region(const volatile void* address, size_t bytes);
[[gnu::weak]] void* __tsan_get_current_fiber();
[[gnu::weak]] void* __tsan_create_fiber(unsigned flags);
[[gnu::weak]] void __tsan_destroy_fiber(void* fiber);
[[gnu::weak]] void __tsan_switch_to_fiber(void* fiber, unsigned flags);
}

namespace stagecoach::testing::cuda {

inline bool HasAddressSanitizer() { return __asan_poison_memory_region != nullptr; }
// Poisons memory: if the program has AddressSanitizer, touching it aborts.
inline void Poison(const void* address, size_t bytes) {
  if (HasAddressSanitizer()) __asan_poison_memory_region(address, bytes);
}
inline void Unpoison(const void* address, size_t bytes) {
  if (HasAddressSanitizer()) __asan_unpoison_memory_region(address, bytes);
}

}  // namespace stagecoach::testing::cuda

#endif  // STAGECOACH_TESTS_TESTING_CUDA_SANITIZERS_H_
