#include "base/system/mapped_file.h"

#include <sys/mman.h>

#include "absl/strings/match.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "base/system/system_calls.h"

namespace stagecoach::base {

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  ASSIGN_OR_RETURN(const FileReader file, FileReader::Open(path, /*follows_links=*/true));
  const auto bytes = static_cast<size_t>(file.size());
  if (bytes == 0) return MappedFile(nullptr, 0);
  void* const data = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
  if (data == MAP_FAILED) return ReadError("map", path);
  return MappedFile(data, bytes);
}

absl::StatusOr<MappedFile> MappedFile::OpenUncompressed(const std::string& path,
                                                        int64_t max_uncompressed_bytes) {
  ASSIGN_OR_RETURN(MappedFile file, Open(path));
  if (!absl::StartsWith(file.contents(), "\x1F\x8B")) return file;
  ASSIGN_OR_RETURN(std::string contents, ReadGzipFile(path, max_uncompressed_bytes));
  file.uncompressed_ = std::make_unique<const std::string>(std::move(contents));
  return file;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

}  // namespace stagecoach::base
