#ifndef STAGECOACH_BASE_FILE_H_
#define STAGECOACH_BASE_FILE_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace stagecoach::base {

// Whole files, read with a limit and written all or nothing. Every error names the path.

// The contents of a regular file. ResourceExhausted, before anything is read, if it holds more than
// `max_bytes`; NotFound if there is none; InvalidArgument for a directory, pipe or device.
absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t max_bytes);

// "-": standard input or output, as the path of a file that a user names.
inline constexpr char kStandardStream[] = "-";

// Whether `path` is that, or a pipe or device: it has no name whose ending says what it holds.
bool IsStream(const std::string& path);

// The contents of a file that a user names, which may be a stream: that is read to its end.
// Standard input is read once and kept, so that several readers find the same. Errors as ReadFile.
absl::StatusOr<std::string> ReadInput(const std::string& path, int64_t max_bytes);

// How messages call it: the path, or "standard input".
std::string InputName(absl::string_view path);

// Leaves standard output to the file "-" alone: what the process prints from now on goes to
// standard error. InvalidArgument the second time.
absl::Status ReserveStandardOutput();

// As ReadFile, and uncompresses what is in gzip format (RFC 1952, one or more members; recognized
// by content, not by name). The limit holds for the result, whose buffer never grows beyond it.
// DataLoss if compressed data are damaged, truncated or followed by anything else.
absl::StatusOr<std::string> ReadGzipFile(const std::string& path, int64_t max_uncompressed_bytes);

// OK unless WriteFileAtomically(path) would fail: there is no such directory, it is not writable,
// or `path` is a directory itself. For programs that write after long work.
absl::Status CheckWritable(const std::string& path);

// Whether there is anything at `path`, or a folder. A symbolic link is no folder, wherever it
// leads.
bool Exists(const std::string& path);
bool IsFolder(const std::string& path);

// Makes the folder and those that it is in, as far as they are not there: "cannot make a/b: No
// space left on device".
absl::Status MakeFolders(const std::string& path);

// Replaces the file at `path`, or creates it, so that whatever happens, a crash of the machine
// included, a reader finds the old contents or the new and nothing between: writes a temporary file
// in the same directory, syncs it, renames it and syncs the directory. On an error before the
// rename the old file is untouched and the temporary is removed. Of a symbolic link, the file that
// it names is replaced. A stream is written to as it is. Concurrent writers of one path do
// not disturb each other; one wins. InvalidArgument for a directory.
absl::Status WriteFileAtomically(const std::string& path, absl::string_view contents);
// The same with contents that `write` appends one after the other; an error of it ends all.
using AppendFunction = std::function<absl::Status(absl::string_view)>;
absl::Status WriteFileAtomically(
    const std::string& path, absl::FunctionRef<absl::Status(const AppendFunction& append)> write);

}  // namespace stagecoach::base

#endif  // STAGECOACH_BASE_FILE_H_
