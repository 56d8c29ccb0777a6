#ifndef STAGECOACH_TESTS_FUZZ_SUPPORT_MEMORY_FILE_H_
#define STAGECOACH_TESTS_FUZZ_SUPPORT_MEMORY_FILE_H_

#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/check.h"

namespace stagecoach::fuzz {

// A file in memory, for readers that take a path.
class MemoryFile {
 public:
  MemoryFile() : descriptor_(memfd_create("fuzz", MFD_CLOEXEC)) {
    STAGECOACH_CHECK(descriptor_ >= 0, "no file in memory");
  }
  ~MemoryFile() { close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  void Write(absl::string_view contents) const {
    const bool written = ftruncate(descriptor_, 0) == 0 &&
                         pwrite(descriptor_, contents.data(), contents.size(), 0) ==
                             static_cast<ssize_t>(contents.size());
    STAGECOACH_CHECK(written, absl::StrCat(contents.size(), " bytes"));
  }

  std::string path() const { return absl::StrCat("/proc/self/fd/", descriptor_); }

 private:
  const int descriptor_;
};

}  // namespace stagecoach::fuzz

#endif  // STAGECOACH_TESTS_FUZZ_SUPPORT_MEMORY_FILE_H_
