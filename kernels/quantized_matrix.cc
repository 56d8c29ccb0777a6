#include "kernels/quantized_matrix.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/quantization_levels.h"

namespace stagecoach::kernels {
namespace {

constexpr int64_t kAlignment = 64;

int64_t Blocks(int64_t count, int64_t block) { return (count + block - 1) / block; }

int64_t CodeRowBytes(const QuantizedMatrix& matrix) {
  return matrix.kind == Quantization::kInt8 ? matrix.outputs : Blocks(matrix.outputs, 2);
}

template <size_t kCount>
constexpr std::array<float, kCount> ArrayOf(const LevelTable<kCount>& table) {
  std::array<float, kCount> array = {};
  std::copy(std::begin(table.of), std::end(table.of), array.begin());
  return array;
}

}  // namespace

constinit const std::array<float, 16> kNf4Levels = ArrayOf(kNf4LevelTable);

const std::array<float, 256>& Nf4ScaleLevels() {
  static constexpr std::array<float, 256> kLevels = ArrayOf(kNf4ScaleLevelTable);
  return kLevels;
}

const char* QuantizationName(Quantization kind) {
  switch (kind) {
    case Quantization::kNf4:
      return "nf4";
    case Quantization::kNf4Single:
      return "nf4-single";
    case Quantization::kInt8:
      return "int8";
  }
  return "";
}

absl::StatusOr<Quantization> ParseQuantization(absl::string_view name) {
  for (const Quantization kind : kAllQuantizations) {
    if (name == QuantizationName(kind)) return kind;
  }
  const auto append = [](std::string* text, Quantization kind) {
    absl::StrAppend(text, QuantizationName(kind));
  };
  return absl::InvalidArgumentError(absl::StrCat("no quantization is named \"", name,
                                                 "\"; there are ",
                                                 absl::StrJoin(kAllQuantizations, ", ", append)));
}

int64_t QuantizedMatrix::bytes() const { return QuantizedLayout(*this).bytes; }

std::string QuantizedMatrix::ToString() const {
  std::string text = absl::StrCat(QuantizationName(kind), " [", inputs, ", ", outputs, "]");
  if (!parts.empty()) absl::StrAppend(&text, " in parts of ", absl::StrJoin(parts, ", "));
  return text;
}

absl::Status CheckQuantizedMatrix(const QuantizedMatrix& matrix, int64_t max_extent) {
  const auto is_extent = [&](int64_t value) { return value >= 1 && value <= max_extent; };
  if (!is_extent(matrix.inputs) || !is_extent(matrix.outputs)) {
    return absl::InvalidArgumentError(absl::StrCat("quantized matrix: extents must be 1 to ",
                                                   max_extent, ": ", matrix.ToString()));
  }
  int64_t left = matrix.outputs;
  for (const int64_t outputs : matrix.parts) {
    if (outputs < 1 || outputs > left) left = -1;
    if (left < 0) break;
    left -= outputs;
  }
  if (left != 0 && !matrix.parts.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("quantized matrix: its parts must make up its outputs, each with at least 1: ",
                     matrix.ToString()));
  }
  return absl::OkStatus();
}

QuantizedLayout::QuantizedLayout(const QuantizedMatrix& matrix) {
  const bool has_blocks = matrix.kind != Quantization::kInt8;
  const bool has_nested = matrix.kind == Quantization::kNf4;
  Part next;
  const auto append = [&](int64_t outputs) {
    next.outputs = outputs;
    next.blocks = has_blocks ? Blocks(outputs * matrix.inputs, kNf4Block) : 0;
    next.nested = has_nested ? Blocks(next.blocks, kNf4NestedBlock) : 0;
    parts.push_back(next);
    next.first_output += next.outputs;
    next.first_block += next.blocks;
    next.first_nested += next.nested;
  };
  if (matrix.parts.empty()) append(matrix.outputs);
  for (const int64_t outputs : matrix.parts) append(outputs);

  const auto place = [&](int64_t size) {
    const int64_t at = bytes;
    bytes += Blocks(size, kAlignment) * kAlignment;
    return at;
  };
  constexpr int64_t kFloat = sizeof(float);
  code_row_bytes = CodeRowBytes(matrix);
  codes = place(matrix.inputs * code_row_bytes);
  scales = place(has_nested   ? next.first_block
                 : has_blocks ? next.first_block * kFloat
                              : matrix.outputs * kFloat);
  nested = place(next.first_nested * kFloat);
  offsets = place(has_nested ? std::ssize(parts) * kFloat : 0);
}

}  // namespace stagecoach::kernels
