// Linked into tests: makes the emulated CUDA backend the default.
#include <cstdlib>

// Read by LeakSanitizer. That of g++ 12 sometimes crashes at the end of a program that has loaded a
// library with thread-local variables, as these tests do; the code that they share with others is
// checked there.
extern "C" int __lsan_is_turned_off();
extern "C" int __lsan_is_turned_off() { return 1; }
[[maybe_unused]] static const int kOfChildren = setenv("ASAN_OPTIONS", "detect_leaks=0", 1);

namespace {

[[maybe_unused]] const int kChosen =
    setenv("STAGECOACH_CUDA_LIBRARY", STAGECOACH_EMULATED_CUDA, /*replace=*/0);

}  // namespace
