#ifndef STAGECOACH_BASE_FILE_LOCK_H_
#define STAGECOACH_BASE_FILE_LOCK_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace stagecoach::base {

// A file that says which process uses what it lies beside. The kernel frees it when the process is
// gone, however that ended (flock, on NFS among hosts as well), so nothing that is left behind
// keeps others out. Move-only.
class FileLock {
 public:
  // Makes the file, or takes over what is left of one, and writes `owner` in it.
  // FailedPrecondition: another process holds it, and the message is that one's `owner`, for
  // which one that has an `owner` itself waits a moment.
  // Unimplemented: the file system has no locks. Other errors name the path.
  static absl::StatusOr<FileLock> Take(const std::string& path, absl::string_view owner);

  FileLock(FileLock&& other) noexcept
      : path_(std::move(other.path_)), file_(std::exchange(other.file_, -1)) {}
  FileLock& operator=(FileLock&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(file_, other.file_);
    return *this;
  }
  ~FileLock();  // removes the file

  // Frees it and leaves the file where it is.
  void Abandon();

 private:
  FileLock(std::string path, int file) : path_(std::move(path)), file_(file) {}

  std::string path_;
  int file_;  // -1: none
};

// "host wega, process 1234, since 2026-11-27 14:05:06": this process, as an owner.
std::string DescribeProcess();

}  // namespace stagecoach::base

#endif  // STAGECOACH_BASE_FILE_LOCK_H_
