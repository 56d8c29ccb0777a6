#ifndef STAGECOACH_BASE_SYSTEM_FILE_LOCK_H_
#define STAGECOACH_BASE_SYSTEM_FILE_LOCK_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace stagecoach::base {

// A lock file that says which process is using the files next to it. The kernel releases the lock
// when the process ends, however it ends (flock, which on NFS works between hosts as well), so
// nothing that is left behind keeps others out. Move-only.
class FileLock {
 public:
  // Creates the file, or takes over one that was left behind, and writes `owner` into it.
  // FailedPrecondition: another process holds it; the message is that process's `owner`. If `owner`
  // is not empty, waits a moment for it. Unimplemented: the file system has no locks. Other errors
  // name the path.
  static absl::StatusOr<FileLock> Take(const std::string& path, absl::string_view owner);

  FileLock(FileLock&& other) noexcept
      : path_(std::move(other.path_)), file_(std::exchange(other.file_, -1)) {}
  FileLock& operator=(FileLock&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(file_, other.file_);
    return *this;
  }
  ~FileLock();  // removes the file

  // Releases the lock and leaves the file where it is.
  void Abandon();

 private:
  FileLock(std::string path, int file) : path_(std::move(path)), file_(file) {}

  std::string path_;
  int file_;  // -1: none
};

// Describes this process as an owner: "host wega, process 1234, since 2026-11-27 14:05:06".
std::string DescribeProcess();

}  // namespace stagecoach::base

#endif  // STAGECOACH_BASE_SYSTEM_FILE_LOCK_H_
