#ifndef STAGECOACH_BASE_SYSTEM_FILE_H_
#define STAGECOACH_BASE_SYSTEM_FILE_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace stagecoach::base {

// Whole files: read with a size limit, written all or nothing. Every error names the path.

// Returns the contents of a regular file. ResourceExhausted, before anything is read, if it holds
// more than `max_bytes`; NotFound if it does not exist; InvalidArgument for a directory, pipe or
// device.
absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t max_bytes);

// The file name "-", which stands for standard input or output.
inline constexpr char kStandardStream[] = "-";

// Returns whether `path` is "-", a pipe or a device, whose name has no extension that tells its
// contents.
bool IsStream(const std::string& path);

// Returns the contents of a file that a user names, uncompressed as by ReadGzipFile, which has the
// same errors. A stream is read to its end; standard input is read once and kept for all readers.
absl::StatusOr<std::string> ReadInput(const std::string& path, int64_t max_bytes);

// Returns the name for messages: the path, or "standard input".
std::string InputName(absl::string_view path);

// Reserves standard output for the file "-": everything the process prints from now on goes to
// standard error. InvalidArgument the second time.
absl::Status ReserveStandardOutput();

// Like ReadFile, but uncompresses contents in gzip format (RFC 1952, one or more members;
// recognized by content, not by name). The limit applies to the result, whose buffer never grows
// beyond it. DataLoss if compressed data are damaged, truncated or followed by anything else.
absl::StatusOr<std::string> ReadGzipFile(const std::string& path, int64_t max_uncompressed_bytes);

// Returns an error if WriteFileAtomically(path) would fail: the directory does not exist or is not
// writable, or `path` is itself a directory. For programs that write after long work.
absl::Status CheckWritable(const std::string& path);

// Returns whether `path` exists, or is a folder. A symbolic link is never a folder, whatever it
// points to.
bool Exists(const std::string& path);
bool IsFolder(const std::string& path);

// Creates the folder and its missing parents: "cannot make a/b: No space left on device".
absl::Status MakeFolders(const std::string& path);

// Replaces or creates the file at `path` atomically: whatever happens, even a crash of the machine,
// a reader finds either the old contents or the new. Writes a temporary file in the same directory,
// syncs it, renames it and syncs the directory. On an error before the rename the old file is
// untouched and the temporary file is removed. If `path` is a symbolic link, its target is
// replaced. A stream is written to directly. Concurrent writers of one path do not disturb each
// other; one wins. InvalidArgument for a directory.
absl::Status WriteFileAtomically(const std::string& path, absl::string_view contents);
// The same, with contents that `write` appends piece by piece; its first error ends the write.
using AppendFunction = std::function<absl::Status(absl::string_view)>;
absl::Status WriteFileAtomically(
    const std::string& path, absl::FunctionRef<absl::Status(const AppendFunction& append)> write);

}  // namespace stagecoach::base

#endif  // STAGECOACH_BASE_SYSTEM_FILE_H_
