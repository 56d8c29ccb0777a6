#ifndef STAGECOACH_ENGINE_CHECKPOINT_CHECKPOINT_H_
#define STAGECOACH_ENGINE_CHECKPOINT_CHECKPOINT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/checkpoint/files/large_buffer.h"
#include "engine/checkpoint/files/safetensors.h"
#include "engine/checkpoint/manifest.h"

namespace stagecoach::engine {

// Checkpoints on disk. A run has a folder, in which every checkpoint has one:
//
//   step-00000200/
//     manifest.json                      what was saved (manifest.h)
//     manifest.json.xxh128               its hash, as `xxh128sum` prints it
//     layer-00000.safetensors            the layers (shard_files.h)
//     layer-00000.optimizer.safetensors
//     layer-00000.frozen.safetensors     the same file as in the checkpoint before, if it can be
//
// Nothing is read through a symbolic link in a checkpoint, and nothing outside of it. Damage is
// reported as DataLoss, which names the file and, if possible, the tensor.

inline constexpr char kManifestName[] = "manifest.json";
inline constexpr char kManifestHashName[] = "manifest.json.xxh128";

std::string CheckpointName(int64_t step);  // "step-00000200"

// A file of tensors whose bytes have been verified against what was saved.
class LoadedFile {
 public:
  // Pre-condition: the header is that of the bytes.
  LoadedFile(std::string path, LargeBuffer bytes, SafetensorsHeader header)
      : path_(std::move(path)), bytes_(std::move(bytes)), header_(std::move(header)) {}

  const SafetensorsHeader& header() const { return header_; }
  // Returns the bytes of a tensor, or its values, for which `space` may be needed; DataLoss if
  // there is none of that name and form.
  absl::StatusOr<absl::Span<const std::byte>> BytesOf(const SavedFile::Tensor& tensor) const;
  absl::StatusOr<absl::Span<const float>> ValuesOf(const SavedFile::Tensor& tensor,
                                                   std::vector<float>& space) const;

 private:
  std::string path_;
  LargeBuffer bytes_;
  SafetensorsHeader header_;
};

// Returns the tensor of that name in the header of the file at `path`; DataLoss if there is none of
// that name and form (a tensor without data).
absl::StatusOr<const SafetensorsEntry*> FindTensor(const std::string& path,
                                                   const SafetensorsHeader& header,
                                                   absl::string_view name,
                                                   const kernels::Tensor& form);

// Receives a file while it is read.
class FileReceiver {
 public:
  virtual ~FileReceiver() = default;
  // Called first. An error ends the reading.
  virtual absl::Status Begin(const std::string& path, const SafetensorsHeader& header) = 0;
  // Returns the space for the next bytes, at least one. An error ends the reading.
  virtual absl::StatusOr<absl::Span<std::byte>> Space() = 0;
  // Called when the bytes of the file from `begin` on are at the beginning of Space().
  virtual void Take(int64_t begin, absl::Span<const std::byte> bytes) = 0;
};

class Checkpoint {
 public:
  // Reads the manifest and checks that all files exist, with their sizes. NotFound: there is no
  // such folder. DataLoss: it is damaged.
  static absl::StatusOr<Checkpoint> Open(const std::string& path);

  const std::string& path() const { return path_; }
  const Manifest& manifest() const { return manifest_; }

  // Reads one of manifest().files completely, and compares its hash.
  absl::StatusOr<LoadedFile> Load(const std::string& name) const;
  // Does the same without memory for all of it. The bytes and the header are known to be those that
  // were saved only once this has returned OK. Returns an error of `receiver`, unless the file is
  // damaged.
  absl::Status LoadTo(const std::string& name, FileReceiver& receiver) const;
  // Loads all files, one after the other, and compares the hash of every tensor; returns the first
  // error.
  absl::Status Verify() const;

 private:
  std::string PathOf(absl::string_view name) const { return absl::StrCat(path_, "/", name); }

  Checkpoint(std::string path, Manifest manifest)
      : path_(std::move(path)), manifest_(std::move(manifest)) {}

  std::string path_;
  Manifest manifest_;
};

// Lists the folders named like a checkpoint in that of a run, by step, whether or not they are
// complete; none if there is no such folder. Links are ignored.
struct FoundCheckpoint {
  int64_t step = 0;
  std::string path;
};
absl::StatusOr<std::vector<FoundCheckpoint>> ListCheckpoints(const std::string& folder);

// The checkpoint from which a run resumes.
struct RestoredCheckpoint {
  std::string path;
  Manifest manifest;
  std::vector<absl::Status> passed_over;  // why newer ones were not taken, newest first
};

// Returns the checkpoints that `path` may stand for: itself, if it has a manifest or the hash of
// one; otherwise those of the run whose folder it is, newest first, whether or not they are
// complete. NotFound: there is none.
absl::StatusOr<std::vector<std::string>> CandidatesIn(const std::string& path);

// Opens the first of them that can be opened; `passed_over` gets an error for every newer one.
// NotFound: there is none.
absl::StatusOr<Checkpoint> OpenNewest(const std::string& path,
                                      std::vector<absl::Status>& passed_over);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_CHECKPOINT_CHECKPOINT_H_
