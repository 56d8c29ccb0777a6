#include "kernels/cuda/ops/linear/quantized_operand.h"

#include <cstddef>

namespace stagecoach::kernels {

QuantizedOperand::QuantizedOperand(const QuantizedMatrix& matrix)
    : matrix_(matrix), layout_(matrix) {
  for (size_t p = 0; p < layout_.parts.size(); ++p) {
    const QuantizedLayout::Part& part = layout_.parts[p];
    if (parts_.empty() || parts_.back().count == Nf4Parts::kMost) {
      parts_.push_back({.inputs = matrix.inputs,
                        .outputs = matrix.outputs,
                        .first_part = static_cast<int64_t>(p),
                        .first_output = part.first_output});
    }
    Nf4Parts& last = parts_.back();
    last.parts[last.count++] = {part.first_output, part.first_block, part.first_nested};
    last.end = part.first_output + part.outputs;
  }
}

Nf4Data QuantizedOperand::Nf4At(const void* stored) const {
  const auto* const from = static_cast<const uint8_t*>(stored);
  const auto* const scales = from + layout_.scales;
  const bool is_nested = matrix_.kind == Quantization::kNf4;
  return {.codes = from + layout_.codes,
          .scales = is_nested ? scales : nullptr,
          .float_scales = is_nested ? nullptr : reinterpret_cast<const float*>(scales),
          .nested = reinterpret_cast<const float*>(from + layout_.nested),
          .offsets = reinterpret_cast<const float*>(from + layout_.offsets)};
}

Int8Data QuantizedOperand::Int8At(const void* stored) const {
  const auto* const from = static_cast<const uint8_t*>(stored);
  return {.inputs = matrix_.inputs,
          .outputs = matrix_.outputs,
          .codes = reinterpret_cast<const int8_t*>(from + layout_.codes),
          .scales = reinterpret_cast<const float*>(from + layout_.scales)};
}

}  // namespace stagecoach::kernels
