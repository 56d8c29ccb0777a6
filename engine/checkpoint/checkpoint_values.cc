#include "engine/checkpoint/checkpoint_values.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/error_class.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "base/system/system_calls.h"
#include "engine/checkpoint/files/large_buffer.h"
#include "engine/checkpoint/files/safetensors.h"
#include "engine/checkpoint/shard_files.h"
#include "engine/runtime/stage/fill_tensors.h"

namespace stagecoach::engine {

absl::StatusOr<CheckpointValues> CheckpointValues::Open(const std::string& path) {
  ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(path));
  return CheckpointValues(std::move(checkpoint));
}

CheckpointValues::CheckpointValues(Checkpoint checkpoint) : checkpoint_(std::move(checkpoint)) {
  const std::vector<SavedFile>& files = checkpoint_.manifest().files;
  for (size_t file = 0; file < files.size(); ++file) {
    if (IsOptimizerFile(files[file].name)) continue;
    for (size_t tensor = 0; tensor < files[file].tensors.size(); ++tensor) {
      places_[files[file].tensors[tensor].name] = {file, tensor};
    }
  }
}

bool CheckpointValues::HasAdapters(const ParameterTable& parameters) const {
  const auto all = parameters.all();
  return std::any_of(all.begin(), all.end(), [&](const ModelParameter& parameter) {
    return parameter.is_adapter && places_.contains(parameter.name);
  });
}

absl::Status CheckpointValues::Read(const ModelParameter& parameter,
                                    const kernels::Tensor& values) const {
  const auto refuse = [&](const auto&... why) {
    return base::DataError(absl::StrCat(checkpoint_.path(), ": it is of another model: \"",
                                        parameter.name, "\" ", why...),
                           absl::StatusCode::kFailedPrecondition);
  };
  const auto place = places_.find(parameter.name);
  if (place == places_.end()) return refuse("is not in it");
  const SavedFile& file = checkpoint_.manifest().files[place->second.first];
  const SavedFile::Tensor& tensor = file.tensors[place->second.second];
  if (tensor.shape != parameter.shape) {
    return refuse("has the shape ", tensor.shape.ToString(), " in it, and ",
                  parameter.shape.ToString(), " in this one");
  }
  const std::string path = absl::StrCat(checkpoint_.path(), "/", file.name);
  ASSIGN_OR_RETURN(const base::FileReader reader, base::FileReader::Open(path));
  ASSIGN_OR_RETURN(const SafetensorsHeader header, ReadSafetensorsHeader(reader));
  ASSIGN_OR_RETURN(const SafetensorsEntry* const entry,
                   FindTensor(path, header, tensor.name, tensor.stored()));
  ASSIGN_OR_RETURN(const LargeBuffer buffer, AllocateLargeBuffer(entry->bytes()));
  const auto bytes = absl::MakeSpan(buffer.get(), static_cast<size_t>(entry->bytes()));
  RETURN_IF_ERROR(reader.ReadAt(entry->begin, bytes));
  if (base::HashOf(bytes) != tensor.hash) {
    return absl::DataLossError(
        absl::StrCat(path, ": tensor \"", tensor.name, "\" is not what was saved"));
  }
  if (tensor.quantized.has_value() && tensor.quantized == parameter.quantized) {
    std::memcpy(values.data, bytes.data(), bytes.size());
    return absl::OkStatus();
  }
  FillFromFloats(parameter, {}, values, [&](absl::Span<float> to) {
    if (tensor.quantized.has_value()) {
      Dequantize(*tensor.quantized, bytes, to);
    } else {
      std::memcpy(to.data(), bytes.data(), bytes.size());
    }
  });
  return absl::OkStatus();
}

}  // namespace stagecoach::engine
