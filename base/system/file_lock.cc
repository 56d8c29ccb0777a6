#include "base/system/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/system/system_calls.h"

namespace stagecoach::base {
namespace {

// Returns whether the path still names the file: its previous owner may have removed it meanwhile.
bool IsAt(int file, const std::string& path) {
  struct stat held = {}, named = {};
  return fstat(file, &held) == 0 && lstat(path.c_str(), &named) == 0 &&
         held.st_ino == named.st_ino && held.st_dev == named.st_dev;
}

// A process that has only just locked the file may not have overwritten the previous owner's text
// yet.
std::string OwnerIn(int file) {
  char text[512];
  for (int look = 0; look < 10; ++look) {
    absl::SleepFor(absl::Milliseconds(50));
    const ssize_t bytes = pread(file, text, sizeof(text), 0);
    if (bytes > 0) return std::string(text, static_cast<size_t>(bytes));
  }
  return "which could not write its name";
}

}  // namespace

absl::StatusOr<FileLock> FileLock::Take(const std::string& path, absl::string_view owner) {
  while (true) {
    const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (file < 0) return WriteError("create", path);
    FileLock lock(path, file);
    if (flock(file, LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) {
        return absl::UnimplementedError(WriteError("lock", path).message());
      }
      absl::Status held = absl::FailedPreconditionError(owner.empty() ? "" : OwnerIn(file));
      lock.Abandon();
      return held;
    }
    if (!IsAt(file, path)) {
      lock.Abandon();
      continue;
    }
    // Only messages use it: a full disk does not stop a run.
    static_cast<void>(ftruncate(file, 0) == 0 && pwrite(file, owner.data(), owner.size(), 0) > 0);
    return lock;
  }
}

FileLock::~FileLock() {
  if (file_ < 0) return;
  unlink(path_.c_str());  // before another process can lock it
  close(file_);
}

void FileLock::Abandon() {
  if (file_ >= 0) close(std::exchange(file_, -1));
}

std::string DescribeProcess() {
  char host[256] = {};
  if (gethostname(host, sizeof(host) - 1) != 0) host[0] = '\0';
  return absl::StrCat("host ", host, ", process ", getpid(), ", since ",
                      absl::FormatTime("%F %T", absl::Now(), absl::LocalTimeZone()));
}

}  // namespace stagecoach::base
