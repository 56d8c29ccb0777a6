#ifndef STAGECOACH_ENGINE_CHECKPOINT_CHECKPOINT_H_
#define STAGECOACH_ENGINE_CHECKPOINT_CHECKPOINT_H_

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/checkpoint/manifest.h"
#include "engine/checkpoint/safetensors.h"

namespace stagecoach::engine {

// Checkpoints as they lie on disk. A run has a folder, in which every checkpoint has one:
//
//   step-00000200/
//     manifest.json                      what was saved (manifest.h)
//     manifest.json.xxh128               its hash, as `xxh128sum` prints it
//     layer-00000.safetensors            the layers (shard_files.h)
//     layer-00000.optimizer.safetensors
//
// Nothing is read through a symbolic link in a checkpoint, and nothing outside of it. What is
// damaged is DataLoss, and names the file and, where one can be told, the tensor.

inline constexpr char kManifestName[] = "manifest.json";
inline constexpr char kManifestHashName[] = "manifest.json.xxh128";

std::string CheckpointName(int64_t step);  // "step-00000200"

// A file of tensors whose bytes are those that were saved.
class LoadedFile {
 public:
  // Bytes from std::aligned_alloc.
  struct FreeBytes {
    void operator()(char* bytes) const { std::free(bytes); }
  };
  using Bytes = std::unique_ptr<char[], FreeBytes>;

  // Pre-condition: the header is that of the bytes.
  LoadedFile(std::string path, Bytes bytes, SafetensorsHeader header)
      : path_(std::move(path)), bytes_(std::move(bytes)), header_(std::move(header)) {}

  const SafetensorsHeader& header() const { return header_; }
  absl::Span<const float> values(const SafetensorsEntry& entry) const;
  // The values of the tensor, or DataLoss if there is none of that name and shape.
  absl::StatusOr<absl::Span<const float>> Find(absl::string_view name,
                                               const kernels::Shape& shape) const;

 private:
  std::string path_;
  Bytes bytes_;
  SafetensorsHeader header_;
};

class Checkpoint {
 public:
  // Reads the manifest and looks whether all files are there, in their size. NotFound: there is no
  // such folder. DataLoss: it is damaged.
  static absl::StatusOr<Checkpoint> Open(const std::string& path);

  const std::string& path() const { return path_; }
  const Manifest& manifest() const { return manifest_; }

  // Reads one of manifest().files, all of it, and compares its hash.
  absl::StatusOr<LoadedFile> Load(const std::string& name) const;
  // Loads all, one after the other, and compares the hash of every tensor: the first error.
  absl::Status Verify() const;

 private:
  Checkpoint(std::string path, Manifest manifest)
      : path_(std::move(path)), manifest_(std::move(manifest)) {}

  std::string path_;
  Manifest manifest_;
};

// The folders named like a checkpoint in that of a run, by step, whether or not they are whole;
// none if there is no such folder. Links are none.
struct FoundCheckpoint {
  int64_t step = 0;
  std::string path;
};
absl::StatusOr<std::vector<FoundCheckpoint>> ListCheckpoints(const std::string& folder);

// What a run goes on from.
struct RestoredCheckpoint {
  std::string path;
  Manifest manifest;
  std::vector<absl::Status> passed_over;  // why newer ones were not taken, from the newest on
};

// What `path` may stand for: itself, if it has a manifest or the hash of one, or else the
// checkpoints of the run whose folder it is, from the newest on, whether or not they are whole.
// NotFound: there is none.
absl::StatusOr<std::vector<std::string>> CandidatesIn(const std::string& path);

// The first of them that can be opened; `passed_over` is given an error for every newer one.
// NotFound: there is none.
absl::StatusOr<Checkpoint> OpenNewest(const std::string& path,
                                      std::vector<absl::Status>& passed_over);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_CHECKPOINT_CHECKPOINT_H_
