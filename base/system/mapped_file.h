#ifndef STAGECOACH_BASE_SYSTEM_MAPPED_FILE_H_
#define STAGECOACH_BASE_SYSTEM_MAPPED_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace stagecoach::base {

// The contents of a file, which the system brings into memory page by page as they are read, and
// may drop again: for files that are used in place and may be larger than memory. Nothing may write
// to the file meanwhile; if it is truncated, a read beyond its end kills the program. Move-only;
// thread-safe.
class MappedFile {
 public:
  // NotFound if there is no file; InvalidArgument if it is not a regular file. Every error names
  // the path.
  static absl::StatusOr<MappedFile> Open(const std::string& path);
  // Does the same, but uncompresses contents in gzip format into memory (ReadGzipFile).
  // ResourceExhausted: they have more than `max_uncompressed_bytes`.
  static absl::StatusOr<MappedFile> OpenUncompressed(const std::string& path,
                                                     int64_t max_uncompressed_bytes);
  MappedFile(MappedFile&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)),
        uncompressed_(std::move(other.uncompressed_)) {}
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();

  // Returns the contents as of opening; valid as long as this object lives.
  absl::string_view contents() const {
    if (uncompressed_ != nullptr) return *uncompressed_;
    return {static_cast<const char*>(data_), bytes_};
  }

 private:
  MappedFile(void* data, size_t bytes) : data_(data), bytes_(bytes) {}

  void* data_;  // null: an empty file, which cannot be mapped
  size_t bytes_;
  std::unique_ptr<const std::string> uncompressed_;  // null: they are those of the file
};

}  // namespace stagecoach::base

#endif  // STAGECOACH_BASE_SYSTEM_MAPPED_FILE_H_
