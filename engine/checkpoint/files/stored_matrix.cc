#include "engine/checkpoint/files/stored_matrix.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/check.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "kernels/bfloat16.h"

namespace stagecoach::engine {
namespace {

using kernels::Bfloat16;
using kernels::DType;

// IEEE 754 binary16.
class Float16 {
 public:
  operator float() const {  // NOLINT(google-explicit-constructor): a load, as of Bfloat16
    const int exponent = bits_ >> 10 & 0x1F, fraction = bits_ & 0x3FF;
    const float sign = (bits_ & 0x8000) != 0 ? -1.0F : 1.0F;
    if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), -24);
    if (exponent == 0x1F) {
      return fraction != 0 ? std::numeric_limits<float>::quiet_NaN()
                           : sign * std::numeric_limits<float>::infinity();
    }
    return sign * std::ldexp(static_cast<float>(0x400 + fraction), exponent - 25);
  }

 private:
  uint16_t bits_;
};

// Has no branches, so that loops over it vectorize.
bool IsFinite(float value) { return (std::bit_cast<uint32_t>(value) & 0x7F800000U) != 0x7F800000U; }

// Eight elements. GCC drops the attribute if the size depends on a template parameter.
using EightWords = uint16_t __attribute__((vector_size(16)));
using EightLongs = uint32_t __attribute__((vector_size(32)));

// Eight rows of eight elements become columns: three times, the upper four rows and the lower four
// are shuffled into one another like two halves of a pack of cards.
template <typename T>
void TransposeEight(const T* in, int64_t in_stride, T* out, int64_t out_stride) {
  using Row = std::conditional_t<sizeof(T) == sizeof(uint16_t), EightWords, EightLongs>;
  constexpr int kEight = 8;
  Row rows[kEight], shuffled[kEight];
  for (int r = 0; r < kEight; ++r) std::memcpy(&rows[r], in + r * in_stride, sizeof(Row));
  for (int round = 0; round < 3; ++round) {
    for (int r = 0; r < 4; ++r) {
      shuffled[2 * r] = __builtin_shufflevector(rows[r], rows[r + 4], 0, 8, 1, 9, 2, 10, 3, 11);
      shuffled[2 * r + 1] =
          __builtin_shufflevector(rows[r], rows[r + 4], 4, 12, 5, 13, 6, 14, 7, 15);
    }
    std::memcpy(rows, shuffled, sizeof(rows));
  }
  for (int r = 0; r < kEight; ++r) {
    std::memcpy(static_cast<void*>(out + r * out_stride), &rows[r], sizeof(Row));
  }
}

template <typename T>
void Transpose(const T* in, int64_t in_stride, int64_t rows, int64_t columns, T* out,
               int64_t out_stride) {
  constexpr int64_t kEight = 8;
  const int64_t whole_rows = rows / kEight * kEight, whole_columns = columns / kEight * kEight;
  const auto plainly = [&](int64_t first_row, int64_t first_column, int64_t end_column) {
    for (int64_t c = first_column; c < end_column; ++c) {
      for (int64_t r = first_row; r < rows; ++r) out[c * out_stride + r] = in[r * in_stride + c];
    }
  };
  for (int64_t c = 0; c < whole_columns; c += kEight) {
    for (int64_t r = 0; r < whole_rows; r += kEight) {
      TransposeEight(in + r * in_stride + c, in_stride, out + c * out_stride + r, out_stride);
    }
  }
  plainly(whole_rows, 0, whole_columns);
  plainly(0, whole_columns, columns);
}

template <typename Stored, typename Value>
absl::StatusOr<std::optional<float>> ReadAs(const StoredMatrix& from, bool transposes,
                                            Value* values, int64_t stride) {
  constexpr int64_t kPartBytes = int64_t{512} << 10;
  constexpr int64_t kLine = 64 / int64_t{sizeof(Value)};
  const int64_t columns = from.columns;
  if (columns == 0) return std::nullopt;
  const int64_t part = std::clamp<int64_t>(kPartBytes / (columns * int64_t{sizeof(Stored)}), 1,
                                           std::max<int64_t>(from.rows, 1));
  // The extra line keeps rows whose lengths are powers of two from falling into the same few places
  // of a cache.
  const int64_t row_stride = columns + kLine;
  const auto stored = std::make_unique_for_overwrite<Stored[]>(static_cast<size_t>(part * columns));
  const auto rounded = std::make_unique_for_overwrite<Value[]>(
      static_cast<size_t>(transposes ? part * row_stride : 0));
  for (int64_t first = 0; first < from.rows; first += part) {
    const int64_t rows = std::min(part, from.rows - first);
    const int64_t count = rows * columns;
    RETURN_IF_ERROR(from.file->ReadAt(from.begin + first * columns * int64_t{sizeof(Stored)},
                                      absl::MakeSpan(reinterpret_cast<std::byte*>(stored.get()),
                                                     static_cast<size_t>(count) * sizeof(Stored))));
    bool are_finite = true;
    for (int64_t i = 0; i < count; ++i) {
      are_finite &= IsFinite(static_cast<float>(stored[static_cast<size_t>(i)]));
    }
    if (!are_finite) {
      return static_cast<float>(*std::find_if_not(
          stored.get(), stored.get() + count,
          [](const Stored& value) { return IsFinite(static_cast<float>(value)); }));
    }
    for (int64_t r = 0; r < rows; ++r) {
      const Stored* const row = stored.get() + r * columns;
      Value* const to = transposes ? rounded.get() + r * row_stride : values + (first + r) * stride;
      if constexpr (std::is_same_v<Stored, Value>) {
        std::copy(row, row + columns, to);
      } else {
        for (int64_t c = 0; c < columns; ++c) to[c] = static_cast<float>(row[c]);
      }
    }
    if (transposes) {
      Transpose(rounded.get(), row_stride, rows, columns, values + first, stride);
    }
  }
  return std::nullopt;
}

}  // namespace

bool IsFloatingPoint(kernels::DType type) {
  return type == kernels::DType::kFloat32 || type == kernels::DType::kFloat64 ||
         type == kernels::DType::kBfloat16 || type == kernels::DType::kFloat16;
}

absl::StatusOr<std::optional<float>> ReadMatrix(const StoredMatrix& from, bool transposes,
                                                const kernels::Tensor& values, int64_t stride) {
  const auto read = [&]<typename Value>(Value* to) -> absl::StatusOr<std::optional<float>> {
    switch (from.type) {
      case DType::kFloat32:
        return ReadAs<float>(from, transposes, to, stride);
      case DType::kFloat64:
        return ReadAs<double>(from, transposes, to, stride);
      case DType::kBfloat16:
        return ReadAs<Bfloat16>(from, transposes, to, stride);
      case DType::kFloat16:
        return ReadAs<Float16>(from, transposes, to, stride);
      default:
        STAGECOACH_CHECK(false, "a type that was refused");
    }
  };
  if (values.dtype == DType::kBfloat16) return read(static_cast<Bfloat16*>(values.data));
  return read(values.f32());
}

namespace {

// Reads a vector, to which the offset is added.
absl::Status ReadSum(const base::FileReader& file, const SafetensorsEntry& entry,
                     const HuggingFacePiece& piece, const kernels::Tensor& values) {
  STAGECOACH_CHECK(piece.rows() == 1, "an offset of a matrix");
  std::vector<float> sums(static_cast<size_t>(piece.columns()));
  HuggingFacePiece plain = piece;
  plain.offset = 0.0F;
  RETURN_IF_ERROR(ReadPiece(file, entry, plain, kernels::Float32(sums.data(), {piece.columns()}),
                            piece.columns()));
  for (float& value : sums) value += piece.offset;
  if (values.dtype == DType::kBfloat16) {
    std::copy(sums.begin(), sums.end(), static_cast<Bfloat16*>(values.data));
  } else {
    std::copy(sums.begin(), sums.end(), values.f32());
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadPiece(const base::FileReader& file, const SafetensorsEntry& entry,
                       const HuggingFacePiece& piece, const kernels::Tensor& values,
                       int64_t stride) {
  STAGECOACH_CHECK(piece.order.empty() || piece.is_transposed || piece.rows() == 1,
                   "an order of what lies apart");
  if (piece.offset != 0.0F) return ReadSum(file, entry, piece, values);
  for (int64_t first = 0, end = 0; first < piece.columns(); first = end) {
    end = piece.EndOfRun(first);
    StoredMatrix matrix = {.file = &file,
                           .type = *entry.type,
                           .begin = entry.begin,
                           .rows = piece.rows(),
                           .columns = end - first};
    // Theirs is a column of ours, or a part of a row.
    if (piece.is_transposed) std::swap(matrix.rows, matrix.columns);
    const int64_t before = piece.is_transposed ? first * matrix.columns : first;
    matrix.begin += (piece.first_row * matrix.columns + before) * SizeOf(matrix.type);
    kernels::Tensor to = values;
    to.data = static_cast<std::byte*>(values.data) + piece.ColumnOf(first) * SizeOf(values.dtype);
    ASSIGN_OR_RETURN(const std::optional<float> bad,
                     ReadMatrix(matrix, piece.is_transposed, to, stride));
    if (!bad.has_value()) continue;
    return base::DataError(
        absl::StrCat("the tensor \"", piece.tensor, "\" has a value that is not finite, ", *bad));
  }
  return absl::OkStatus();
}

}  // namespace stagecoach::engine
