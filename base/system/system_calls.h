#ifndef STAGECOACH_BASE_SYSTEM_SYSTEM_CALLS_H_
#define STAGECOACH_BASE_SYSTEM_SYSTEM_CALLS_H_

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

// The system calls that change a file system, for code in which every call may fail and the program
// may be killed after any of them. Each is the kernel's call, with its result and errno; tests
// derive from this class to record the calls, or to make them fail. Thread-safe.
class SystemCalls {
 public:
  static SystemCalls& Kernel();
  virtual ~SystemCalls() = default;

  virtual int MakeFolder(const char* path);       // mkdir, mode 0777
  virtual int Open(const char* path, int flags);  // open, mode 0666
  virtual ssize_t WriteAt(int file, const void* data, size_t bytes, off_t offset);  // pwrite
  virtual int Sync(int file);                                                       // fsync
  // Starts to write back what has been written, so that a later Sync has less to wait for
  // (sync_file_range). Only a hint.
  virtual void StartSync(int file);
  virtual int Close(int file);
  virtual int Rename(const char* from, const char* to);
  virtual int Exchange(const char* one, const char* other);  // renameat2 with RENAME_EXCHANGE
  virtual int Link(const char* from, const char* to);        // link
  virtual int RemoveFile(const char* path);                  // unlink
  virtual int RemoveFolder(const char* path);                // rmdir
};

// Makes an error from errno, which the preceding call of the caller has set: "cannot read a/b:
// Permission denied" of class kData, and "cannot write a/b: No space left on device" of class
// kOutput.
absl::Status ReadError(absl::string_view action, absl::string_view path);
absl::Status WriteError(absl::string_view action, absl::string_view path);

// A file that is written piece by piece, and is completely on disk once Sync has returned OK.
// Errors name its path. Move-only; closed when it is destroyed.
class FileWriter {
 public:
  // Opens the file, or creates it; with `must_be_new`, AlreadyExists if it exists. Fails for a
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
  // Writes what the system still buffers to disk, and closes the file: no calls may follow.
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
  // InvalidArgument if it is not a regular file. Fails for a symbolic link unless `follows_links`.
  static absl::StatusOr<FileReader> Open(const std::string& path, bool follows_links = false);
  FileReader(FileReader&& other) noexcept;
  FileReader& operator=(FileReader&&) = delete;
  ~FileReader();

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }  // when it was opened
  int descriptor() const { return file_; }
  // Fills `bytes` with those from `offset` on. OutOfRange if the file ends before.
  absl::Status ReadAt(int64_t offset, absl::Span<std::byte> bytes) const;
  // Does the same with as many bytes as the system returns at once: 0 at the end of the file.
  absl::StatusOr<size_t> ReadSome(int64_t offset, absl::Span<std::byte> bytes) const;

 private:
  FileReader(std::string path, int file, int64_t size)
      : path_(std::move(path)), file_(file), size_(size) {}

  std::string path_;
  int file_;
  int64_t size_;
};

// Makes the entries of a folder durable: files that were created, renamed or removed in it.
absl::Status SyncFolder(SystemCalls& calls, const std::string& path);

// Replaces or creates the file at `path` by renaming a temporary file next to it, once `write` has
// filled that and it is on disk. After an earlier error the old file is untouched and the temporary
// one is removed. Concurrent calls for one path do not disturb each other; one wins.
absl::Status ReplaceFile(SystemCalls& calls, const std::string& path,
                         absl::FunctionRef<absl::Status(FileWriter&)> write);
// Removes from a folder what killed writers of ReplaceFile left: the temporary files of processes
// that this host no longer has. For folders that no other host writes into.
void RemoveLeftTemporaries(const std::string& folder);

}  // namespace stagecoach::base

#endif  // STAGECOACH_BASE_SYSTEM_SYSTEM_CALLS_H_
