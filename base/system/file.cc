#include "base/system/file.h"

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
#include <system_error>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "base/system/system_calls.h"

namespace stagecoach::base {
namespace {

constexpr size_t kChunkBytes = size_t{64} << 10;

absl::Status TooLarge(const std::string& path, int64_t max_bytes) {
  return DataError(absl::StrCat(path, " holds more than the limit of ", max_bytes, " bytes"),
                   absl::StatusCode::kResourceExhausted);
}

// Calls `take` with one part after another up to the end of the file, not up to the size known at
// the start: a file may grow, and some report no size.
absl::Status ReadParts(const FileReader& file,
                       absl::FunctionRef<absl::Status(absl::Span<char>)> take) {
  std::vector<char> chunk(kChunkBytes);
  const absl::Span<std::byte> bytes(reinterpret_cast<std::byte*>(chunk.data()), chunk.size());
  for (int64_t offset = 0;;) {
    ASSIGN_OR_RETURN(const size_t count, file.ReadSome(offset, bytes));
    if (count == 0) return absl::OkStatus();
    RETURN_IF_ERROR(take(absl::MakeSpan(chunk).first(count)));
    offset += static_cast<int64_t>(count);
  }
}

// Appends `bytes`, doubling the capacity as needed but never beyond the limit.
absl::Status AppendWithin(int64_t max_bytes, const std::string& path, absl::Span<const char> bytes,
                          std::string& contents) {
  const size_t limit = static_cast<size_t>(std::max<int64_t>(max_bytes, 0));
  if (bytes.size() > limit - contents.size()) return TooLarge(path, max_bytes);
  const size_t size = contents.size() + bytes.size();
  if (size > contents.capacity()) {
    // A non-empty string may reserve more than requested; an empty one does not.
    std::string grown;
    grown.reserve(std::min(limit, std::max(size, 2 * contents.capacity())));
    grown.append(contents);
    contents = std::move(grown);
  }
  contents.append(bytes.data(), bytes.size());
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadPlain(const FileReader& file, int64_t max_bytes) {
  if (file.size() > max_bytes) return TooLarge(file.path(), max_bytes);
  std::string contents;
  contents.reserve(static_cast<size_t>(file.size()));
  RETURN_IF_ERROR(ReadParts(file, [&](absl::Span<char> part) {
    return AppendWithin(max_bytes, file.path(), part, contents);
  }));
  return contents;
}

// Uncompresses the members of one gzip file into one string.
class Gunzip {
 public:
  // `read_parts` calls its argument with one part of the compressed contents after the other.
  using TakePart = absl::FunctionRef<absl::Status(absl::Span<char> part)>;
  static absl::StatusOr<std::string> Read(
      const std::string& name, int64_t max_bytes,
      absl::FunctionRef<absl::Status(TakePart take_part)> read_parts) {
    Gunzip gunzip(name, max_bytes);
    // 15 is the largest window; 16 asks for a gzip header and trailer.
    if (inflateInit2(&gunzip.stream_, 15 + 16) != Z_OK) {
      return absl::ResourceExhaustedError(absl::StrCat("no memory to uncompress ", name));
    }
    const std::unique_ptr<z_stream, decltype(&inflateEnd)> end(&gunzip.stream_, &inflateEnd);
    RETURN_IF_ERROR(read_parts([&](absl::Span<char> part) { return gunzip.Inflate(part); }));
    if (gunzip.at_member_end_) return std::move(gunzip.contents_);
    return absl::DataLossError(absl::StrCat(name, " is truncated: its gzip data end early"));
  }

 private:
  Gunzip(const std::string& name, int64_t max_bytes) : name_(name), max_bytes_(max_bytes) {}

  absl::Status Inflate(absl::Span<char> compressed) {
    stream_.next_in = reinterpret_cast<Bytef*>(compressed.data());
    stream_.avail_in = static_cast<uInt>(compressed.size());
    do {
      if (at_member_end_) inflateReset(&stream_);  // Anything that follows must be another member.
      stream_.next_out = reinterpret_cast<Bytef*>(chunk_.data());
      stream_.avail_out = static_cast<uInt>(chunk_.size());
      const int result = inflate(&stream_, Z_NO_FLUSH);
      // Z_BUF_ERROR says only that there was nothing to do.
      if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR) return Damaged();
      RETURN_IF_ERROR(AppendWithin(max_bytes_, name_,
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
        members_ == 0 ? absl::StrCat(name_, " is damaged gzip data: ", detail)
                      : absl::StrCat(name_, " has damaged or foreign data after gzip member ",
                                     members_, ": ", detail));
  }

  const std::string& name_;
  const int64_t max_bytes_;
  z_stream stream_ = {};
  std::vector<char> chunk_ = std::vector<char>(kChunkBytes);
  std::string contents_;
  int64_t members_ = 0;
  bool at_member_end_ = false;
};

absl::StatusOr<bool> IsGzip(const FileReader& file) {
  std::byte magic[2] = {};
  ASSIGN_OR_RETURN(const size_t count, file.ReadSome(0, absl::MakeSpan(magic)));
  return count == 2 && magic[0] == std::byte{0x1F} && magic[1] == std::byte{0x8B};
}

absl::StatusOr<std::string> ReadGzip(const FileReader& file, int64_t max_bytes) {
  return Gunzip::Read(file.path(), max_bytes,
                      [&](Gunzip::TakePart take_part) { return ReadParts(file, take_part); });
}

// Does the same for contents that were read, and returns others as they are.
absl::StatusOr<std::string> Uncompressed(const std::string& name, std::string contents,
                                         int64_t max_bytes) {
  if (contents.substr(0, 2) != "\x1F\x8B") return contents;
  return Gunzip::Read(name, max_bytes, [&](Gunzip::TakePart take_part) -> absl::Status {
    for (absl::Span<char> rest = absl::MakeSpan(contents); !rest.empty();) {
      const absl::Span<char> part = rest.subspan(0, kChunkBytes);
      RETURN_IF_ERROR(take_part(part));
      rest.remove_prefix(part.size());
    }
    return absl::OkStatus();
  });
}

// The descriptor that "-" is written to.
std::atomic<int> standard_output = STDOUT_FILENO;

// Reads to the end of the stream, whatever kind of file it is.
absl::StatusOr<std::string> ReadStream(int file, const std::string& name, int64_t max_bytes) {
  std::string contents;
  std::vector<char> chunk(kChunkBytes);
  while (true) {
    const ssize_t count = read(file, chunk.data(), chunk.size());
    if (count == 0) return contents;
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return ReadError("read", name);
    RETURN_IF_ERROR(AppendWithin(
        max_bytes, name, absl::MakeSpan(chunk).first(static_cast<size_t>(count)), contents));
  }
}

// A file cannot replace a directory. The error of rename() would name a temporary file, which means
// nothing to the user.
absl::Status CheckNoDirectory(const std::string& path) {
  struct stat status = {};
  if (stat(path.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) return absl::OkStatus();
  return OutputError(absl::StrCat(path, " is a directory"), absl::StatusCode::kInvalidArgument);
}

// Returns the end of a chain of symbolic links, whether or not a file exists there.
std::string TargetOf(const std::string& path) {
  constexpr int kMostLinks = 40;  // as in Linux
  std::filesystem::path target = path;
  std::error_code error;
  for (int i = 0; i < kMostLinks && std::filesystem::is_symlink(target, error); ++i) {
    const std::filesystem::path next = std::filesystem::read_symlink(target, error);
    if (error) break;
    target = target.parent_path() / next;  // `next` alone if that is absolute
  }
  return target.string();
}

using WriteFunction = absl::FunctionRef<absl::Status(const AppendFunction&)>;

absl::Status WriteDirectly(const std::string& path, WriteFunction write_all) {
  const bool is_standard = path == kStandardStream;
  const int file = is_standard ? standard_output.load() : open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (file < 0) return WriteError("open", path);
  if (is_standard) std::fflush(stdout);
  const absl::Status status = write_all([&](absl::string_view contents) -> absl::Status {
    while (!contents.empty()) {
      const ssize_t count = write(file, contents.data(), contents.size());  // not pwrite: a pipe
                                                                            // has no offsets
      if (count >= 0) {
        contents.remove_prefix(static_cast<size_t>(count));
      } else if (errno != EINTR) {
        return WriteError("write", is_standard ? "standard output" : path);
      }
    }
    return absl::OkStatus();
  });
  if (!is_standard) close(file);
  return status;
}

}  // namespace

absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t max_bytes) {
  ASSIGN_OR_RETURN(const FileReader file, FileReader::Open(path, /*follows_links=*/true));
  return ReadPlain(file, max_bytes);
}

// Replacing a device or pipe by a file would destroy it.
bool IsStream(const std::string& path) {
  if (path == kStandardStream) return true;
  struct stat status = {};
  return stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode);
}

std::string InputName(absl::string_view path) {
  return path == kStandardStream ? "standard input" : std::string(path);
}

absl::StatusOr<std::string> ReadInput(const std::string& path, int64_t max_bytes) {
  if (path == kStandardStream) {
    static const absl::StatusOr<std::string>* const contents =
        new absl::StatusOr<std::string>([&]() -> absl::StatusOr<std::string> {
          ASSIGN_OR_RETURN(std::string read, ReadStream(STDIN_FILENO, InputName(path), max_bytes));
          return Uncompressed(InputName(path), std::move(read), max_bytes);
        }());
    return *contents;
  }
  if (!IsStream(path)) return ReadGzipFile(path, max_bytes);
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return ReadError("open", path);
  absl::StatusOr<std::string> contents = ReadStream(file, path, max_bytes);
  close(file);
  RETURN_IF_ERROR(contents.status());
  return Uncompressed(path, *std::move(contents), max_bytes);
}

absl::Status ReserveStandardOutput() {
  if (standard_output != STDOUT_FILENO) {
    return UsageError("standard output is another file already");
  }
  const int copy = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  if (copy < 0 || dup2(STDERR_FILENO, STDOUT_FILENO) < 0) {
    return WriteError("write", "standard output");
  }
  standard_output = copy;
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadGzipFile(const std::string& path, int64_t max_uncompressed_bytes) {
  ASSIGN_OR_RETURN(const FileReader file, FileReader::Open(path, /*follows_links=*/true));
  ASSIGN_OR_RETURN(const bool is_gzip, IsGzip(file));
  return is_gzip ? ReadGzip(file, max_uncompressed_bytes) : ReadPlain(file, max_uncompressed_bytes);
}

absl::Status CheckWritable(const std::string& path) {
  if (path == kStandardStream) return absl::OkStatus();
  if (IsStream(path)) {
    return access(path.c_str(), W_OK) == 0 ? absl::OkStatus() : WriteError("write", path);
  }
  RETURN_IF_ERROR(CheckNoDirectory(path));
  // A file contains no ".", which distinguishes it from a directory without permission.
  const std::filesystem::path within = std::filesystem::path(path).parent_path() / ".";
  return access(within.c_str(), W_OK | X_OK) == 0 ? absl::OkStatus() : WriteError("write", path);
}

absl::Status WriteFileAtomically(const std::string& path, absl::string_view contents) {
  return WriteFileAtomically(path, [&](const AppendFunction& append) { return append(contents); });
}

absl::Status WriteFileAtomically(const std::string& path, WriteFunction write) {
  if (IsStream(path)) return WriteDirectly(path, write);
  RETURN_IF_ERROR(CheckNoDirectory(path));
  return ReplaceFile(SystemCalls::Kernel(), TargetOf(path), [&](FileWriter& writer) {
    int64_t offset = 0;
    return write([&](absl::string_view contents) -> absl::Status {
      RETURN_IF_ERROR(writer.WriteAt(offset, contents));
      offset += static_cast<int64_t>(contents.size());
      return absl::OkStatus();
    });
  });
}

bool Exists(const std::string& path) {
  struct stat info = {};
  return lstat(path.c_str(), &info) == 0;
}

bool IsFolder(const std::string& path) {
  struct stat info = {};
  return lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

absl::Status MakeFolders(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (!error) return absl::OkStatus();
  return WithClass(ErrorClass::kOutput,
                   absl::ErrnoToStatus(error.value(), absl::StrCat("cannot make ", path)));
}

}  // namespace stagecoach::base
