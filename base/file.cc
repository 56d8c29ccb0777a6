#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "base/system_calls.h"

namespace stagecoach::base {
namespace {

constexpr size_t kChunkBytes = size_t{64} << 10;

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&&) = delete;
  ~FileDescriptor() {
    if (fd_ >= 0) close(fd_);
  }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

 private:
  int fd_;
};

absl::Status TooLarge(const std::string& path, int64_t max_bytes) {
  return absl::ResourceExhaustedError(
      absl::StrCat(path, " holds more than the limit of ", max_bytes, " bytes"));
}

struct OpenFile {
  FileDescriptor descriptor;
  std::string path;
  int64_t size_bytes;
};

absl::StatusOr<OpenFile> OpenForReading(const std::string& path) {
  // Without O_NONBLOCK, opening a pipe would wait for its writer before it could be refused.
  FileDescriptor descriptor(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!descriptor.valid()) return SystemError("open", path);
  struct stat info;
  if (fstat(descriptor.get(), &info) != 0) return SystemError("inspect", path);
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file"));
  }
  return OpenFile{std::move(descriptor), path, int64_t{info.st_size}};
}

// Fewer bytes than `buffer` holds do not mean the end of the file; none do.
absl::StatusOr<size_t> ReadSome(const OpenFile& file, absl::Span<char> buffer) {
  while (true) {
    const ssize_t count = read(file.descriptor.get(), buffer.data(), buffer.size());
    if (count >= 0) return static_cast<size_t>(count);
    if (errno != EINTR) return SystemError("read", file.path);
  }
}

// Doubles the capacity as it grows, but never past the limit.
absl::Status AppendWithin(int64_t max_bytes, const std::string& path, absl::Span<const char> bytes,
                          std::string& contents) {
  const size_t limit = static_cast<size_t>(std::max<int64_t>(max_bytes, 0));
  if (bytes.size() > limit - contents.size()) return TooLarge(path, max_bytes);
  const size_t size = contents.size() + bytes.size();
  if (size > contents.capacity()) {
    // A string that holds something may reserve more than it is asked to; an empty one does not.
    std::string grown;
    grown.reserve(std::min(limit, std::max(size, 2 * contents.capacity())));
    grown.append(contents);
    contents = std::move(grown);
  }
  contents.append(bytes.data(), bytes.size());
  return absl::OkStatus();
}

// To the end and not to the size known at the start: a file may grow, and some have no size.
absl::StatusOr<std::string> ReadPlain(const OpenFile& file, int64_t max_bytes) {
  if (file.size_bytes > max_bytes) return TooLarge(file.path, max_bytes);
  std::string contents;
  contents.reserve(static_cast<size_t>(file.size_bytes));
  std::vector<char> chunk(kChunkBytes);
  while (true) {
    ASSIGN_OR_RETURN(const size_t count, ReadSome(file, absl::MakeSpan(chunk)));
    if (count == 0) return contents;
    RETURN_IF_ERROR(
        AppendWithin(max_bytes, file.path, absl::MakeSpan(chunk).first(count), contents));
  }
}

// Uncompresses the members of one gzip file into one string.
class Gunzip {
 public:
  static absl::StatusOr<std::string> Read(const OpenFile& file, int64_t max_bytes) {
    Gunzip gunzip(file, max_bytes);
    // 15 is the largest window; 16 asks for a gzip header and trailer.
    if (inflateInit2(&gunzip.stream_, 15 + 16) != Z_OK) {
      return absl::ResourceExhaustedError(absl::StrCat("no memory to uncompress ", file.path));
    }
    const std::unique_ptr<z_stream, decltype(&inflateEnd)> end(&gunzip.stream_, &inflateEnd);
    return gunzip.ReadMembers();
  }

 private:
  Gunzip(const OpenFile& file, int64_t max_bytes) : file_(file), max_bytes_(max_bytes) {}

  absl::StatusOr<std::string> ReadMembers() {
    std::vector<char> compressed(kChunkBytes);
    while (true) {
      ASSIGN_OR_RETURN(const size_t count, ReadSome(file_, absl::MakeSpan(compressed)));
      if (count == 0) break;
      RETURN_IF_ERROR(Inflate(absl::MakeSpan(compressed).first(count)));
    }
    if (!at_member_end_) {
      return absl::DataLossError(
          absl::StrCat(file_.path, " is truncated: its gzip data end early"));
    }
    return std::move(contents_);
  }

  absl::Status Inflate(absl::Span<char> compressed) {
    stream_.next_in = reinterpret_cast<Bytef*>(compressed.data());
    stream_.avail_in = static_cast<uInt>(compressed.size());
    do {
      if (at_member_end_) inflateReset(&stream_);  // What follows must be another member.
      stream_.next_out = reinterpret_cast<Bytef*>(chunk_.data());
      stream_.avail_out = static_cast<uInt>(chunk_.size());
      const int result = inflate(&stream_, Z_NO_FLUSH);
      // Z_BUF_ERROR says only that there was nothing to do.
      if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR) return Damaged();
      RETURN_IF_ERROR(AppendWithin(max_bytes_, file_.path,
                                   absl::MakeSpan(chunk_).first(chunk_.size() - stream_.avail_out),
                                   contents_));
      at_member_end_ = result == Z_STREAM_END;
      if (at_member_end_) ++members_;
    } while (stream_.avail_in > 0 || (stream_.avail_out == 0 && !at_member_end_));
    return absl::OkStatus();
  }

  absl::Status Damaged() const {
    const char* detail = stream_.msg == nullptr ? "unknown error" : stream_.msg;
    return absl::DataLossError(
        members_ == 0 ? absl::StrCat(file_.path, " is damaged gzip data: ", detail)
                      : absl::StrCat(file_.path, " has damaged or foreign data after gzip member ",
                                     members_, ": ", detail));
  }

  const OpenFile& file_;
  const int64_t max_bytes_;
  z_stream stream_ = {};
  std::vector<char> chunk_ = std::vector<char>(kChunkBytes);
  std::string contents_;
  int64_t members_ = 0;
  bool at_member_end_ = false;
};

absl::StatusOr<bool> IsGzip(const OpenFile& file) {
  unsigned char magic[2];
  const ssize_t count = pread(file.descriptor.get(), magic, sizeof(magic), 0);
  if (count < 0) return SystemError("read", file.path);
  return count == 2 && magic[0] == 0x1F && magic[1] == 0x8B;
}

struct FileToWrite {
  FileDescriptor descriptor;
  std::string path;
};

// Beside `path`, because a rename is atomic only within one file system. Not by mkstemp, whose
// files only their owner may read.
absl::StatusOr<FileToWrite> CreateTemporary(const std::string& path) {
  static std::atomic<uint64_t> counter = 0;
  while (true) {
    std::string temporary = absl::StrCat(path, ".tmp.", getpid(), ".", counter.fetch_add(1));
    FileDescriptor descriptor(
        open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (descriptor.valid()) return FileToWrite{std::move(descriptor), std::move(temporary)};
    if (errno != EEXIST) return SystemError("create", temporary);
  }
}

absl::Status WriteAll(const FileToWrite& file, absl::string_view contents) {
  while (!contents.empty()) {
    const ssize_t count = write(file.descriptor.get(), contents.data(), contents.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return SystemError("write", file.path);
    contents.remove_prefix(static_cast<size_t>(count));
  }
  return absl::OkStatus();
}

absl::Status WriteAndSync(const FileToWrite& file, absl::string_view contents) {
  RETURN_IF_ERROR(WriteAll(file, contents));
  if (fsync(file.descriptor.get()) != 0) return SystemError("sync", file.path);
  return absl::OkStatus();
}

absl::Status SyncFolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return SyncFolder(SystemCalls::Kernel(),
                    slash == std::string::npos ? "." : path.substr(0, slash + 1));
}

// A device or pipe, which to replace by a file would be to destroy.
bool IsSpecial(const std::string& path) {
  struct stat status = {};
  return stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode);
}

// A file cannot replace a directory. The error of rename() would name a temporary file, which means
// nothing to the user.
absl::Status CheckNoDirectory(const std::string& path) {
  struct stat status = {};
  if (stat(path.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(path, " is a directory"));
}

// Where a chain of symbolic links ends, whether or not there is a file.
std::string TargetOf(const std::string& path) {
  constexpr int kMostLinks = 40;  // as Linux allows
  std::filesystem::path target = path;
  std::error_code error;
  for (int i = 0; i < kMostLinks && std::filesystem::is_symlink(target, error); ++i) {
    const std::filesystem::path next = std::filesystem::read_symlink(target, error);
    if (error) break;
    target = target.parent_path() / next;  // `next` alone if that is absolute
  }
  return target.string();
}

absl::Status WriteDirectly(const std::string& path, absl::string_view contents) {
  const FileToWrite file{FileDescriptor(open(path.c_str(), O_WRONLY | O_CLOEXEC)), path};
  if (!file.descriptor.valid()) return SystemError("open", path);
  return WriteAll(file, contents);
}

absl::Status Replace(const std::string& path, absl::string_view contents) {
  ASSIGN_OR_RETURN(const FileToWrite temporary, CreateTemporary(path));
  absl::Status status = WriteAndSync(temporary, contents);
  if (status.ok() && rename(temporary.path.c_str(), path.c_str()) != 0) {
    status = SystemError(absl::StrCat("rename ", temporary.path, " to"), path);
  }
  if (!status.ok()) {
    unlink(temporary.path.c_str());
    return status;
  }
  return SyncFolderOf(path);
}

}  // namespace

absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t max_bytes) {
  ASSIGN_OR_RETURN(const OpenFile file, OpenForReading(path));
  return ReadPlain(file, max_bytes);
}

absl::StatusOr<std::string> ReadGzipFile(const std::string& path, int64_t max_uncompressed_bytes) {
  ASSIGN_OR_RETURN(const OpenFile file, OpenForReading(path));
  ASSIGN_OR_RETURN(const bool is_gzip, IsGzip(file));
  return is_gzip ? Gunzip::Read(file, max_uncompressed_bytes)
                 : ReadPlain(file, max_uncompressed_bytes);
}

absl::Status CheckWritable(const std::string& path) {
  if (IsSpecial(path)) {
    return access(path.c_str(), W_OK) == 0 ? absl::OkStatus() : SystemError("write", path);
  }
  RETURN_IF_ERROR(CheckNoDirectory(path));
  const std::filesystem::path directory = std::filesystem::path(path).parent_path();
  if (access(directory.empty() ? "." : directory.c_str(), W_OK | X_OK) == 0) {
    return absl::OkStatus();
  }
  return SystemError("write", path);
}

absl::Status WriteFileAtomically(const std::string& path, absl::string_view contents) {
  if (IsSpecial(path)) return WriteDirectly(path, contents);
  RETURN_IF_ERROR(CheckNoDirectory(path));
  return Replace(TargetOf(path), contents);
}

}  // namespace stagecoach::base
