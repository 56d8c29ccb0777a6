#include "engine/checkpoint/export.h"

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "engine/checkpoint/files/safetensors.h"
#include "engine/checkpoint/shard_files.h"

namespace stagecoach::engine {
namespace {

absl::Status AppendParameters(const Checkpoint& checkpoint, const base::AppendFunction& append) {
  SafetensorsHeader header{.metadata = {{"format", "pt"}}};
  for (const SavedFile& file : checkpoint.manifest().files) {
    if (IsOptimizerFile(file.name)) continue;
    for (const SavedFile::Tensor& tensor : file.tensors) {
      header.tensors.push_back({.name = tensor.name, .shape = tensor.shape});
    }
  }
  RETURN_IF_ERROR(append(LayOutSafetensors(header)));
  // The tensors follow in the same order, without gaps.
  std::vector<float> space;
  for (const SavedFile& file : checkpoint.manifest().files) {
    if (IsOptimizerFile(file.name)) continue;
    ASSIGN_OR_RETURN(const LoadedFile loaded, checkpoint.Load(file.name));
    for (const SavedFile::Tensor& tensor : file.tensors) {
      ASSIGN_OR_RETURN(const absl::Span<const float> values, loaded.ValuesOf(tensor, space));
      RETURN_IF_ERROR(append(absl::string_view(reinterpret_cast<const char*>(values.data()),
                                               values.size() * sizeof(float))));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ExportParameters(const Checkpoint& checkpoint, const std::string& path) {
  return base::WriteFileAtomically(path, [&](const base::AppendFunction& append) {
    return AppendParameters(checkpoint, append);
  });
}

}  // namespace stagecoach::engine
