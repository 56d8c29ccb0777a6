#ifndef STAGECOACH_BASE_MUTEX_H_
#define STAGECOACH_BASE_MUTEX_H_

#include <mutex>

#include "absl/base/thread_annotations.h"

namespace stagecoach::base {

// std::mutex with the annotations that let `clang -Wthread-safety` prove that every member marked
// ABSL_GUARDED_BY(mutex_) is accessed only under its mutex.
class ABSL_LOCKABLE Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }

 private:
  std::mutex mutex_;
};

// Holds a mutex for the duration of a scope.
class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) {
    mutex_.Lock();
  }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

}  // namespace stagecoach::base

#endif  // STAGECOACH_BASE_MUTEX_H_
