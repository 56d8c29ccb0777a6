#include "kernels/cpu/runtime/threads.h"

#include <omp.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace stagecoach::kernels {

SingleThreadedLibraries::SingleThreadedLibraries() : previous_(omp_get_max_threads()) {
  omp_set_num_threads(1);
}

SingleThreadedLibraries::~SingleThreadedLibraries() { omp_set_num_threads(previous_); }

void PrepareComputeThread() {
  omp_set_num_threads(1);
#if defined(__x86_64__)
  constexpr unsigned kFlushToZero = 0x8000;
  constexpr unsigned kDenormalsAreZero = 0x0040;
  _mm_setcsr(_mm_getcsr() | kFlushToZero | kDenormalsAreZero);
#endif
}

}  // namespace stagecoach::kernels
