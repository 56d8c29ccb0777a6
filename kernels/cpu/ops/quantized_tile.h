#ifndef STAGECOACH_KERNELS_CPU_OPS_QUANTIZED_TILE_H_
#define STAGECOACH_KERNELS_CPU_OPS_QUANTIZED_TILE_H_

#include <cstddef>
#include <cstdint>

#include "kernels/quantized_matrix.h"

namespace stagecoach::kernels {

// Gives the values of a part of a quantized matrix on one thread. T is float or Bfloat16.
class QuantizedTile {
 public:
  static constexpr int64_t kMostColumns = 1024;

  struct Range {
    int64_t first = 0, count = 0;
  };

  explicit QuantizedTile(const QuantizedMatrix& matrix);

  // Writes the values in these rows and columns to `to`, whose rows are `stride` apart: those of
  // Dequantize, rounded to T. Pre-condition: at most kMostColumns columns, the first of them even.
  template <typename T>
  void Expand(const std::byte* stored, const Range& rows, const Range& columns, T* to,
              int64_t stride) const;

 private:
  // Computes the factors of n outputs' codes in a row.
  void FillScales(const std::byte* stored, int64_t row, int64_t first, int64_t n, float* to) const;

  const bool is_int8_, scales_are_of_group_;
  const int64_t inputs_;
  const QuantizedLayout layout_;
};

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CPU_OPS_QUANTIZED_TILE_H_
