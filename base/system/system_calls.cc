#include "base/system/system_calls.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/error_class.h"
#include "base/status_macros.h"

namespace stagecoach::base {
namespace {

absl::Status SystemError(absl::string_view action, absl::string_view path) {
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot ", action, " ", path));
}

// Returns an error of the temporary file, worded for the file that it is to become.
absl::Status Of(const std::string& path, const std::string& temporary, const absl::Status& status) {
  return WithMessage(status, absl::StrReplaceAll(status.message(), {{temporary, path}}));
}

constexpr char kTemporary[] = ".tmp.";  // before the writer's process and a number

// The temporary file is next to `path`, because a rename is atomic only within one file system.
// mkstemp is not used: only the owner may read its files.
absl::StatusOr<FileWriter> CreateTemporary(SystemCalls& calls, const std::string& path) {
  static std::atomic<uint64_t> counter = 0;
  while (true) {
    const std::string name = absl::StrCat(path, kTemporary, getpid(), ".", counter.fetch_add(1));
    absl::StatusOr<FileWriter> writer = FileWriter::Open(calls, name, /*must_be_new=*/true);
    if (writer.ok()) return writer;
    if (!absl::IsAlreadyExists(writer.status())) return Of(path, name, writer.status());
  }
}

}  // namespace

void RemoveLeftTemporaries(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> left;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    const size_t place = name.rfind(kTemporary);
    if (place == std::string::npos) continue;
    const std::pair<std::string, std::string> numbers =
        absl::StrSplit(name.substr(place + std::strlen(kTemporary)), absl::MaxSplits('.', 1));
    int process = 0;
    uint64_t count = 0;
    if (!absl::SimpleAtoi(numbers.first, &process) || process < 1 ||
        !absl::SimpleAtoi(numbers.second, &count)) {
      continue;
    }
    if (kill(process, 0) != 0 && errno == ESRCH) left.push_back(entry->path().string());
  }
  for (const std::string& path : left) unlink(path.c_str());
}

SystemCalls& SystemCalls::Kernel() {
  static SystemCalls* const kernel = new SystemCalls;
  return *kernel;
}

int SystemCalls::MakeFolder(const char* path) { return mkdir(path, 0777); }
int SystemCalls::Open(const char* path, int flags) { return open(path, flags, 0666); }
ssize_t SystemCalls::WriteAt(int file, const void* data, size_t bytes, off_t offset) {
  return pwrite(file, data, bytes, offset);
}
int SystemCalls::Sync(int file) { return fsync(file); }
void SystemCalls::StartSync(int file) { sync_file_range(file, 0, 0, SYNC_FILE_RANGE_WRITE); }
int SystemCalls::Close(int file) { return close(file); }
int SystemCalls::Rename(const char* from, const char* to) { return rename(from, to); }
int SystemCalls::Exchange(const char* one, const char* other) {
  return renameat2(AT_FDCWD, one, AT_FDCWD, other, RENAME_EXCHANGE);
}
int SystemCalls::Link(const char* from, const char* to) { return link(from, to); }
int SystemCalls::RemoveFile(const char* path) { return unlink(path); }
int SystemCalls::RemoveFolder(const char* path) { return rmdir(path); }

absl::Status ReadError(absl::string_view action, absl::string_view path) {
  return WithClass(ErrorClass::kData, SystemError(action, path));
}

absl::Status WriteError(absl::string_view action, absl::string_view path) {
  return WithClass(ErrorClass::kOutput, SystemError(action, path));
}

absl::StatusOr<FileWriter> FileWriter::Open(SystemCalls& calls, const std::string& path,
                                            bool must_be_new) {
  const int file = calls.Open(
      path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | (must_be_new ? O_EXCL : 0));
  if (file < 0) return WriteError("create", path);
  return FileWriter(calls, path, file);
}

FileWriter::FileWriter(FileWriter&& other) noexcept
    : calls_(other.calls_), path_(std::move(other.path_)), file_(std::exchange(other.file_, -1)) {}

FileWriter::~FileWriter() {
  if (file_ >= 0) calls_.Close(file_);
}

absl::Status FileWriter::WriteAt(int64_t offset, absl::Span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = calls_.WriteAt(file_, bytes.data(), bytes.size(), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return WriteError("write", path_);
    bytes.remove_prefix(static_cast<size_t>(count));
    offset += count;
  }
  return absl::OkStatus();
}

absl::Status FileWriter::WriteAt(int64_t offset, absl::string_view text) {
  return WriteAt(offset,
                 absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size()));
}

absl::Status FileWriter::Sync() {
  if (calls_.Sync(file_) != 0) return WriteError("sync", path_);
  const int file = std::exchange(file_, -1);
  // Network file systems may report a failed write only here.
  return calls_.Close(file) == 0 ? absl::OkStatus() : WriteError("close", path_);
}

absl::StatusOr<FileReader> FileReader::Open(const std::string& path, bool follows_links) {
  // Without O_NONBLOCK, opening a pipe would wait for its writer instead of being refused.
  const int file =
      open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | (follows_links ? 0 : O_NOFOLLOW));
  if (file < 0) return ReadError("open", path);
  FileReader reader(path, file, 0);
  struct stat info = {};
  if (fstat(file, &info) != 0) return ReadError("inspect", path);
  if (!S_ISREG(info.st_mode)) {
    return DataError(absl::StrCat(path, " is not a regular file"));
  }
  reader.size_ = info.st_size;
  return reader;
}

FileReader::FileReader(FileReader&& other) noexcept
    : path_(std::move(other.path_)), file_(std::exchange(other.file_, -1)), size_(other.size_) {}

FileReader::~FileReader() {
  if (file_ >= 0) close(file_);
}

absl::Status FileReader::ReadAt(int64_t offset, absl::Span<std::byte> bytes) const {
  while (!bytes.empty()) {
    ASSIGN_OR_RETURN(const size_t count, ReadSome(offset, bytes));
    if (count == 0)
      return DataError(absl::StrCat(path_, " ends at byte ", offset),
                       absl::StatusCode::kOutOfRange);
    bytes.remove_prefix(count);
    offset += static_cast<int64_t>(count);
  }
  return absl::OkStatus();
}

absl::StatusOr<size_t> FileReader::ReadSome(int64_t offset, absl::Span<std::byte> bytes) const {
  while (true) {
    const ssize_t count = pread(file_, bytes.data(), bytes.size(), offset);
    if (count >= 0) return static_cast<size_t>(count);
    if (errno != EINTR) return ReadError("read", path_);
  }
}

absl::Status SyncFolder(SystemCalls& calls, const std::string& path) {
  const int folder = calls.Open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return WriteError("open", path);
  absl::Status status;
  // Some network file systems cannot sync a folder and say so with EINVAL.
  if (calls.Sync(folder) != 0 && errno != EINVAL) status = WriteError("sync", path);
  calls.Close(folder);
  return status;
}

absl::Status ReplaceFile(SystemCalls& calls, const std::string& path,
                         absl::FunctionRef<absl::Status(FileWriter&)> write) {
  ASSIGN_OR_RETURN(FileWriter temporary, CreateTemporary(calls, path));
  absl::Status status = write(temporary);
  if (status.ok()) status = temporary.Sync();
  if (status.ok() && calls.Rename(temporary.path().c_str(), path.c_str()) != 0) {
    status = WriteError("replace", path);
  }
  if (!status.ok()) {
    calls.RemoveFile(temporary.path().c_str());
    return Of(path, temporary.path(), status);
  }
  const size_t slash = path.rfind('/');
  return SyncFolder(calls, slash == std::string::npos ? "." : path.substr(0, slash + 1));
}

}  // namespace stagecoach::base
