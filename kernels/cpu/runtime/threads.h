#ifndef STAGECOACH_KERNELS_CPU_RUNTIME_THREADS_H_
#define STAGECOACH_KERNELS_CPU_RUNTIME_THREADS_H_

namespace stagecoach::kernels {

// While it lives, oneDNN calls of this thread start no threads of their own. (oneDNN runs on
// OpenMP, whose number of threads is a property of the calling thread, and is built into a
// primitive at its creation.)
class SingleThreadedLibraries {
 public:
  SingleThreadedLibraries();
  ~SingleThreadedLibraries();
  SingleThreadedLibraries(const SingleThreadedLibraries&) = delete;
  SingleThreadedLibraries& operator=(const SingleThreadedLibraries&) = delete;

 private:
  const int previous_;
};

// Prepares a thread; called once by every thread that computes: libraries start no threads of their
// own in it, and denormal numbers count as zero (they would make products many times slower on some
// processors).
void PrepareComputeThread();

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CPU_RUNTIME_THREADS_H_
