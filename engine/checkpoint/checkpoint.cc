#include "engine/checkpoint/checkpoint.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/error_class.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "base/system/system_calls.h"

namespace stagecoach::engine {
namespace {

constexpr size_t kReadAtOnce = size_t{256} << 10;
constexpr int64_t kMaxManifestBytes = int64_t{64} << 20;

absl::Status Damaged(absl::string_view path, absl::string_view what) {
  return absl::DataLossError(absl::StrCat(path, ": ", what));
}

absl::Status NoCheckpointIn(const std::string& path) {
  return base::DataError(absl::StrCat("there is no checkpoint in ", path),
                         absl::StatusCode::kNotFound);
}

// Returns the size of a regular file that is no link.
absl::StatusOr<int64_t> SizeOf(const std::string& path) {
  struct stat info = {};
  if (lstat(path.c_str(), &info) != 0) {
    return errno == ENOENT ? Damaged(path, "the file is missing")
                           : base::ReadError("inspect", path);
  }
  if (!S_ISREG(info.st_mode)) return Damaged(path, "it is not a regular file");
  return int64_t{info.st_size};
}

absl::StatusOr<std::string> ReadManifestText(const std::string& path) {
  const std::string file = absl::StrCat(path, "/", kManifestName);
  const std::string hash_file = absl::StrCat(path, "/", kManifestHashName);
  for (const std::string& name : {file, hash_file}) RETURN_IF_ERROR(SizeOf(name).status());
  ASSIGN_OR_RETURN(std::string text, base::ReadFile(file, kMaxManifestBytes));
  ASSIGN_OR_RETURN(const std::string expected, base::ReadFile(hash_file, kMaxManifestBytes));
  if (expected != absl::StrCat(base::HashOf(text), "  ", kManifestName, "\n")) {
    return Damaged(
        file, absl::StrCat("it is not what was saved: ", kManifestHashName, " has another hash"));
  }
  return text;
}

absl::StatusOr<base::FileReader> OpenFile(const std::string& path, const SavedFile& saved) {
  ASSIGN_OR_RETURN(base::FileReader file, base::FileReader::Open(path));
  if (file.size() == saved.bytes) return file;
  return Damaged(path, absl::StrCat("it has ", file.size(), " bytes of ", saved.bytes));
}

// Reads `bytes` from `begin` on, and hashes them while they are in the cache.
absl::Status ReadAndHash(const base::FileReader& file, int64_t begin, absl::Span<std::byte> bytes,
                         base::Hasher& hasher) {
  for (size_t done = 0; done < bytes.size(); done += kReadAtOnce) {
    const absl::Span<std::byte> part = bytes.subspan(done, kReadAtOnce);
    RETURN_IF_ERROR(file.ReadAt(begin + static_cast<int64_t>(done), part));
    hasher.Update(part);
  }
  return absl::OkStatus();
}

// Returns why the bytes of a file are not those that were saved.
absl::Status ExplainDamage(const std::string& path, absl::string_view bytes,
                           const SavedFile& saved) {
  const absl::StatusOr<SafetensorsHeader> header =
      ParseSafetensors(bytes, static_cast<int64_t>(bytes.size()));
  if (!header.ok()) {
    return Damaged(path, absl::StrCat("its header is damaged: ", header.status().message()));
  }
  for (const SafetensorsEntry& entry : header->tensors) {
    const auto expected =
        std::find_if(saved.tensors.begin(), saved.tensors.end(),
                     [&](const SavedFile::Tensor& tensor) { return tensor.name == entry.name; });
    const absl::string_view own =
        bytes.substr(static_cast<size_t>(entry.begin), static_cast<size_t>(entry.bytes()));
    if (expected == saved.tensors.end() || expected->hash == base::HashOf(own)) continue;
    return Damaged(path, absl::StrCat("tensor \"", entry.name, "\" is not what was saved"));
  }
  return Damaged(path, "its header is not what was saved");
}

}  // namespace

std::string CheckpointName(int64_t step) { return absl::StrFormat("step-%08d", step); }

absl::StatusOr<absl::Span<const std::byte>> LoadedFile::BytesOf(
    const SavedFile::Tensor& tensor) const {
  ASSIGN_OR_RETURN(const SafetensorsEntry* const entry,
                   FindTensor(path_, header_, tensor.name, tensor.stored()));
  return absl::MakeConstSpan(bytes_.get() + entry->begin, static_cast<size_t>(entry->bytes()));
}

absl::StatusOr<absl::Span<const float>> LoadedFile::ValuesOf(const SavedFile::Tensor& tensor,
                                                             std::vector<float>& space) const {
  ASSIGN_OR_RETURN(const absl::Span<const std::byte> bytes, BytesOf(tensor));
  const auto elements = static_cast<size_t>(tensor.shape.elements());
  if (!tensor.quantized.has_value()) {
    return absl::MakeConstSpan(reinterpret_cast<const float*>(bytes.data()), elements);
  }
  space.resize(elements);
  Dequantize(*tensor.quantized, bytes, absl::MakeSpan(space));
  return absl::MakeConstSpan(space);
}

absl::StatusOr<const SafetensorsEntry*> FindTensor(const std::string& path,
                                                   const SafetensorsHeader& header,
                                                   absl::string_view name,
                                                   const kernels::Tensor& form) {
  for (const SafetensorsEntry& entry : header.tensors) {
    if (entry.name != name) continue;
    if (entry.shape == form.shape && entry.type == form.dtype) return &entry;
    return Damaged(path,
                   absl::StrCat("tensor \"", name, "\" has the shape ", entry.shape.ToString(),
                                ", expected ", form.shape.ToString()));
  }
  return Damaged(path, absl::StrCat("there is no tensor \"", name, "\""));
}

absl::StatusOr<Checkpoint> Checkpoint::Open(const std::string& path) {
  if (!base::IsFolder(path))
    return base::DataError(absl::StrCat(path, " is not a folder"), absl::StatusCode::kNotFound);
  ASSIGN_OR_RETURN(const std::string text, ReadManifestText(path));
  absl::StatusOr<Manifest> manifest = ParseManifest(text);
  if (!manifest.ok()) {
    return base::Annotate(manifest.status(), absl::StrCat(path, "/", kManifestName));
  }
  for (const SavedFile& file : manifest->files) {
    const std::string name = absl::StrCat(path, "/", file.name);
    ASSIGN_OR_RETURN(const int64_t bytes, SizeOf(name));
    if (bytes == file.bytes) continue;
    return Damaged(name, absl::StrCat("it has ", bytes, " bytes of ", file.bytes));
  }
  return Checkpoint(path, *std::move(manifest));
}

absl::StatusOr<LoadedFile> Checkpoint::Load(const std::string& name) const {
  const std::string path = PathOf(name);
  const SavedFile* const saved = manifest_.FindFile(name);
  if (saved == nullptr) return Damaged(path, "the manifest has no such file");
  ASSIGN_OR_RETURN(const base::FileReader file, OpenFile(path, *saved));
  absl::StatusOr<LargeBuffer> buffer = AllocateLargeBuffer(saved->bytes);
  RETURN_IF_ERROR(base::Annotate(buffer.status(), path));
  base::Hasher hasher;
  RETURN_IF_ERROR(ReadAndHash(
      file, 0, absl::MakeSpan(buffer->get(), static_cast<size_t>(saved->bytes)), hasher));
  const absl::string_view bytes(reinterpret_cast<const char*>(buffer->get()),
                                static_cast<size_t>(saved->bytes));
  if (hasher.HexDigest() != saved->hash) return ExplainDamage(path, bytes, *saved);
  absl::StatusOr<SafetensorsHeader> header = ParseSafetensors(bytes, saved->bytes);
  if (!header.ok()) return Damaged(path, header.status().message());
  return LoadedFile(path, *std::move(buffer), *std::move(header));
}

absl::Status Checkpoint::LoadTo(const std::string& name, FileReceiver& receiver) const {
  const SavedFile* const saved = manifest_.FindFile(name);
  if (saved == nullptr) return Load(name).status();
  ASSIGN_OR_RETURN(const base::FileReader file, OpenFile(PathOf(name), *saved));
  const absl::StatusOr<SafetensorsHeader> header = ReadSafetensorsHeader(file);
  absl::Status status = header.status();
  if (status.ok()) status = receiver.Begin(file.path(), *header);
  base::Hasher hasher;
  for (int64_t done = 0; status.ok() && done < saved->bytes;) {
    ASSIGN_OR_RETURN(absl::Span<std::byte> space, receiver.Space());
    space =
        space.first(static_cast<size_t>(std::min<int64_t>(std::ssize(space), saved->bytes - done)));
    status = ReadAndHash(file, done, space, hasher);
    if (status.ok()) receiver.Take(done, space);
    done += std::ssize(space);
  }
  if (status.ok() && hasher.HexDigest() == saved->hash) return absl::OkStatus();
  // The whole file shows what is wrong.
  RETURN_IF_ERROR(Load(name).status());
  return status.ok() ? Damaged(file.path(), "it has changed while it was read") : status;
}

absl::Status Checkpoint::Verify() const {
  for (const SavedFile& saved : manifest_.files) {
    ASSIGN_OR_RETURN(const LoadedFile file, Load(saved.name));
    for (const SavedFile::Tensor& tensor : saved.tensors) {
      ASSIGN_OR_RETURN(const absl::Span<const std::byte> bytes, file.BytesOf(tensor));
      if (base::HashOf(bytes) == tensor.hash) continue;
      return Damaged(PathOf(kManifestName),
                     absl::StrCat("tensor \"", tensor.name, "\" has another hash in ", saved.name));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<FoundCheckpoint>> ListCheckpoints(const std::string& folder) {
  std::vector<FoundCheckpoint> found;
  std::error_code error;
  std::filesystem::directory_iterator entries(folder, error);
  if (error == std::errc::no_such_file_or_directory) return found;
  for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    const std::string name = entries->path().filename().string();
    absl::string_view digits = name;
    FoundCheckpoint checkpoint{.path = absl::StrCat(folder, "/", name)};
    if (absl::ConsumePrefix(&digits, "step-") && absl::SimpleAtoi(digits, &checkpoint.step) &&
        checkpoint.step >= 0 && name == CheckpointName(checkpoint.step) &&
        base::IsFolder(checkpoint.path)) {
      found.push_back(std::move(checkpoint));
    }
  }
  if (error) {
    return base::WithClass(
        base::ErrorClass::kData,
        absl::ErrnoToStatus(error.value(), absl::StrCat("cannot read the folder ", folder)));
  }
  std::sort(found.begin(), found.end(),
            [](const FoundCheckpoint& a, const FoundCheckpoint& b) { return a.step < b.step; });
  return found;
}

absl::StatusOr<std::vector<std::string>> CandidatesIn(const std::string& path) {
  for (const char* const name : {kManifestName, kManifestHashName}) {
    if (base::Exists(absl::StrCat(path, "/", name))) return std::vector<std::string>{path};
  }
  ASSIGN_OR_RETURN(const std::vector<FoundCheckpoint> found, ListCheckpoints(path));
  std::vector<std::string> paths;
  for (auto it = found.rbegin(); it != found.rend(); ++it) paths.push_back(it->path);
  if (paths.empty()) return NoCheckpointIn(path);
  return paths;
}

absl::StatusOr<Checkpoint> OpenNewest(const std::string& path,
                                      std::vector<absl::Status>& passed_over) {
  ASSIGN_OR_RETURN(const std::vector<std::string> candidates, CandidatesIn(path));
  for (const std::string& candidate : candidates) {
    absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(candidate);
    if (checkpoint.ok() || candidate == path) return checkpoint;
    passed_over.push_back(checkpoint.status());
  }
  return NoCheckpointIn(path);
}

}  // namespace stagecoach::engine
