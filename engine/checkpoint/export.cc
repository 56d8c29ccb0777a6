#include "engine/checkpoint/export.h"

#include <cstddef>

#include "absl/types/span.h"
#include "base/status_macros.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/checkpoint/shard_files.h"

namespace stagecoach::engine {
namespace {

absl::Status WriteParameters(const Checkpoint& checkpoint, base::FileWriter& writer) {
  SafetensorsHeader header{.metadata = {{"format", "pt"}}};
  for (const SavedFile& file : checkpoint.manifest().files) {
    if (IsOptimizerFile(file.name)) continue;
    for (const SavedFile::Tensor& tensor : file.tensors) {
      header.tensors.push_back({.name = tensor.name, .shape = tensor.shape});
    }
  }
  const std::string begin = LayOutSafetensors(header);
  RETURN_IF_ERROR(writer.WriteAt(0, begin));
  size_t next = 0;
  for (const SavedFile& file : checkpoint.manifest().files) {
    if (IsOptimizerFile(file.name)) continue;
    ASSIGN_OR_RETURN(const LoadedFile loaded, checkpoint.Load(file.name));
    for (const SavedFile::Tensor& tensor : file.tensors) {
      ASSIGN_OR_RETURN(const absl::Span<const float> values,
                       loaded.Find(tensor.name, tensor.shape));
      RETURN_IF_ERROR(
          writer.WriteAt(header.tensors[next++].begin,
                         absl::MakeConstSpan(reinterpret_cast<const std::byte*>(values.data()),
                                             values.size() * sizeof(float))));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ExportParameters(base::SystemCalls& calls, const Checkpoint& checkpoint,
                              const std::string& path) {
  return base::ReplaceFile(
      calls, path, [&](base::FileWriter& writer) { return WriteParameters(checkpoint, writer); });
}

}  // namespace stagecoach::engine
