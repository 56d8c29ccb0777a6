#ifndef STAGECOACH_ENGINE_CHECKPOINT_FILES_SAFETENSORS_H_
#define STAGECOACH_ENGINE_CHECKPOINT_FILES_SAFETENSORS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/tensor.h"

namespace stagecoach::base {
class ArrayReader;
class FileReader;
}  // namespace stagecoach::base

namespace stagecoach::engine {

// The file format safetensors (https://huggingface.co/docs/safetensors): eight bytes, the length of
// the header as a little-endian number; the header, a JSON object of each tensor's type, shape and
// place, possibly padded with spaces at its end; the tensors' bytes, one after the other without
// gaps.

inline constexpr int64_t kMaxSafetensorsHeaderBytes = 100'000'000;  // the limit of other readers

struct SafetensorsEntry {
  std::string name;
  // Nothing: I64, of which there are no tensors here.
  std::optional<kernels::DType> type = kernels::DType::kFloat32;
  kernels::Shape shape;
  int64_t begin = 0;  // in the file; ends at begin + bytes()

  int64_t element_bytes() const {
    return type.has_value() ? SizeOf(*type) : static_cast<int64_t>(sizeof(int64_t));
  }
  int64_t bytes() const { return shape.elements() * element_bytes(); }
  friend bool operator==(const SafetensorsEntry&, const SafetensorsEntry&) = default;
};

struct SafetensorsHeader {
  std::map<std::string, std::string> metadata;
  std::vector<SafetensorsEntry> tensors;  // in the order of their places

  friend bool operator==(const SafetensorsHeader&, const SafetensorsHeader&) = default;
};

// Assigns each tensor its place, in the given order and whatever its `begin` was, and returns the
// beginning of the file: the length and the header, as many bytes as the first tensor's begin, a
// multiple of 64. Pre-condition: names are UTF-8 and differ.
std::string LayOutSafetensors(SafetensorsHeader& header);

// Returns the header of a file of `file_bytes` bytes that begins with `text`, which contains at
// least the whole header. InvalidArgument: it is damaged; tensors overlap, leave gaps or do not end
// where the file does; a type or shape is not supported. Safe on hostile input.
absl::StatusOr<SafetensorsHeader> ParseSafetensors(absl::string_view text, int64_t file_bytes);

// Does the same for a file, of which it reads no more. Also the errors of ReadAt.
absl::StatusOr<SafetensorsHeader> ReadSafetensorsHeader(const base::FileReader& file);

// Returns the shape in such a header, if its elements, and their bytes, can be counted. Safe on
// hostile input.
absl::StatusOr<kernels::Shape> ParseShape(const base::ArrayReader& dims,
                                          int64_t element_bytes = sizeof(double));

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_CHECKPOINT_FILES_SAFETENSORS_H_
