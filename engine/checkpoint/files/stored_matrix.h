#ifndef STAGECOACH_ENGINE_CHECKPOINT_FILES_STORED_MATRIX_H_
#define STAGECOACH_ENGINE_CHECKPOINT_FILES_STORED_MATRIX_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/system/system_calls.h"
#include "engine/checkpoint/files/safetensors.h"
#include "engine/models/hugging_face.h"
#include "kernels/tensor.h"

namespace stagecoach::engine {

// Numbers in a file, row by row.
struct StoredMatrix {
  const base::FileReader* file = nullptr;
  kernels::DType type = kernels::DType::kFloat32;  // floating-point
  int64_t begin = 0;                               // in the file, in bytes
  int64_t rows = 0, columns = 0;
};

// Returns whether a matrix may have that type.
bool IsFloatingPoint(kernels::DType type);

// Reads the whole matrix, in parts that a core's cache holds, and writes it into a larger one,
// whose rows are `stride` apart: element (r, c) of the file to values[r * stride + c] or,
// transposed, to values[c * stride + r]. `values`: in host memory, float32 or bfloat16, to which
// the numbers are rounded, wider ones to float32 first. Returns the first number that is NaN or
// infinite as a float32, if there is one; the rest may not have been read then. Errors of ReadAt.
absl::StatusOr<std::optional<float>> ReadMatrix(const StoredMatrix& from, bool transposes,
                                                const kernels::Tensor& values, int64_t stride);

// Reads the values of a piece from its tensor in a file, and writes them, in the order of ours,
// into rows that are `stride` apart, as ReadMatrix does. With an offset, the sums are rounded to
// float32 before they are to the type of `values`. DataError: one is NaN or infinite.
absl::Status ReadPiece(const base::FileReader& file, const SafetensorsEntry& entry,
                       const HuggingFacePiece& piece, const kernels::Tensor& values,
                       int64_t stride);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_CHECKPOINT_FILES_STORED_MATRIX_H_
