#ifndef STAGECOACH_BASE_SYSTEM_CALLS_H_
#define STAGECOACH_BASE_SYSTEM_CALLS_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace stagecoach::base {

// The system calls that change a file system, for code whose every call may fail and whose program
// may be killed after every call. Each is the call of the kernel, with its result and errno; tests
// derive from this to record the calls, or to let them fail. Thread-safe.
class SystemCalls {
 public:
  static SystemCalls& Kernel();
  virtual ~SystemCalls() = default;

  virtual int MakeFolder(const char* path);       // mkdir, mode 0777
  virtual int Open(const char* path, int flags);  // open, mode 0666
  virtual ssize_t WriteAt(int file, const void* data, size_t bytes, off_t offset);  // pwrite
  virtual int Sync(int file);                                                       // fsync
  // Starts to write back what has been written, so that a Sync to come has less to wait for
  // (sync_file_range): advice.
  virtual void StartSync(int file);
  virtual int Close(int file);
  virtual int Rename(const char* from, const char* to);
  virtual int Exchange(const char* one, const char* other);  // renameat2 with RENAME_EXCHANGE
  virtual int RemoveFile(const char* path);                  // unlink
  virtual int RemoveFolder(const char* path);                // rmdir
};

// From errno, which the caller has just got: "cannot write a/b: No space left on device".
absl::Status SystemError(absl::string_view action, absl::string_view path);

// A file that is written piece by piece, and whole on disk once Sync has returned OK. Errors name
// its path. Move-only; closed when it is destroyed.
class FileWriter {
 public:
  // Opens the file, or creates it; with `must_be_new`, AlreadyExists if it is there. Fails for a
  // symbolic link.
  static absl::StatusOr<FileWriter> Open(SystemCalls& calls, const std::string& path,
                                         bool must_be_new = false);
  FileWriter(FileWriter&& other) noexcept;
  FileWriter& operator=(FileWriter&&) = delete;
  ~FileWriter();

  absl::Status WriteAt(int64_t offset, absl::Span<const std::byte> bytes);
  absl::Status WriteAt(int64_t offset, absl::string_view text);
  const std::string& path() const { return path_; }
  void StartSync() { calls_.StartSync(file_); }
  // Writes what the system still holds back to the disk, and closes the file: nothing may follow.
  absl::Status Sync();

 private:
  FileWriter(SystemCalls& calls, std::string path, int file)
      : calls_(calls), path_(std::move(path)), file_(file) {}

  SystemCalls& calls_;
  std::string path_;
  int file_;  // -1: closed
};

// A file that is read piece by piece. Errors name its path. Move-only; closed when it is destroyed.
class FileReader {
 public:
  // InvalidArgument: it is no regular file. Fails for a symbolic link, unless it is to follow
  // those.
  static absl::StatusOr<FileReader> Open(const std::string& path, bool follows_links = false);
  FileReader(FileReader&& other) noexcept;
  FileReader& operator=(FileReader&&) = delete;
  ~FileReader();

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }  // when it was opened
  int descriptor() const { return file_; }
  // Fills `bytes` with those from `offset` on. OutOfRange: the file ends before.
  absl::Status ReadAt(int64_t offset, absl::Span<std::byte> bytes) const;
  // The same with as many as the system gives at once: 0 at the end of the file.
  absl::StatusOr<size_t> ReadSome(int64_t offset, absl::Span<std::byte> bytes) const;

 private:
  FileReader(std::string path, int file, int64_t size)
      : path_(std::move(path)), file_(file), size_(size) {}

  std::string path_;
  int file_;
  int64_t size_;
};

// Makes the entries of a folder last: files that were created, renamed or removed in it.
absl::Status SyncFolder(SystemCalls& calls, const std::string& path);

// Replaces the file at `path`, or creates it, by one beside it that `write` has filled, once that
// is on disk. After an error before that, the old file is untouched and the other one is removed.
// Concurrent ones of one path do not disturb each other; one wins.
absl::Status ReplaceFile(SystemCalls& calls, const std::string& path,
                         absl::FunctionRef<absl::Status(FileWriter&)> write);

}  // namespace stagecoach::base

#endif  // STAGECOACH_BASE_SYSTEM_CALLS_H_
