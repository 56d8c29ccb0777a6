#ifndef STAGECOACH_KERNELS_CPU_RUNTIME_FIRST_ERROR_H_
#define STAGECOACH_KERNELS_CPU_RUNTIME_FIRST_ERROR_H_

#include <utility>

#include "absl/status/status.h"
#include "base/mutex.h"

namespace stagecoach::kernels {

// Keeps the first error that the tiles of an operation report. Thread-safe; costs nothing while
// there is none.
class FirstError {
 public:
  void Update(absl::Status status) {
    if (status.ok()) return;
    base::MutexLock lock(mutex_);
    if (status_.ok()) status_ = std::move(status);
  }
  absl::Status Take() {
    base::MutexLock lock(mutex_);
    return std::move(status_);
  }

 private:
  base::Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CPU_RUNTIME_FIRST_ERROR_H_
