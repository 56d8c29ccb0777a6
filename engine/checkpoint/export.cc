#include "engine/checkpoint/export.h"

#include <unistd.h>

#include <cstddef>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/checkpoint/shard_files.h"

namespace stagecoach::engine {
namespace {

absl::Status WriteAll(base::SystemCalls& calls, const Checkpoint& checkpoint,
                      const std::string& path) {
  SafetensorsHeader header{.metadata = {{"format", "pt"}}};
  for (const SavedFile& file : checkpoint.manifest().files) {
    if (IsOptimizerFile(file.name)) continue;
    for (const SavedFile::Tensor& tensor : file.tensors) {
      header.tensors.push_back({.name = tensor.name, .shape = tensor.shape});
    }
  }
  const std::string begin = LayOutSafetensors(header);
  ASSIGN_OR_RETURN(base::FileWriter writer, base::FileWriter::Open(calls, path));
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
  return writer.Sync();
}

}  // namespace

absl::Status ExportParameters(base::SystemCalls& calls, const Checkpoint& checkpoint,
                              const std::string& path) {
  const std::string unfinished = absl::StrCat(path, ".tmp.", getpid());
  absl::Status status = WriteAll(calls, checkpoint, unfinished);
  if (status.ok() && calls.Rename(unfinished.c_str(), path.c_str()) != 0) {
    status = base::SystemError("create", path);
  }
  if (!status.ok()) {
    calls.RemoveFile(unfinished.c_str());
    return status;
  }
  const size_t slash = path.rfind('/');
  return SyncFolder(calls, slash == std::string::npos ? "." : path.substr(0, slash + 1));
}

}  // namespace stagecoach::engine
