#ifndef STAGECOACH_KERNELS_CPU_OPS_FEW_ROWS_H_
#define STAGECOACH_KERNELS_CPU_OPS_FEW_ROWS_H_

#include <cstddef>
#include <cstdint>

#include "kernels/bfloat16.h"
#include "kernels/cpu/ops/quantized_tile.h"

namespace stagecoach::kernels {

// Products of a few rows with weights that no cache holds, in which each number is summed in
// float32 in the order of its index: so a row's bits do not depend on how many rows there are, nor
// on what the others are, and several rows read the weights once. Each is for a tile of columns of
// z, on one thread; T is float or Bfloat16.
//
// Measured on one core with AVX-512 (512 x 2048 in fp32, from memory): 1 row at 16 GB/s of weights,
// 16 rows at 7, which is 7 times as many rows a second; oneDNN's at 21 and 7, whose sums of one row
// and of several have other orders.

// z[r][c] = sum over k of x[r][k] w[k][c], for `columns` columns of w and z; rows of x are `inputs`
// apart. scratch: RowsTimesWeightsScratch values.
template <typename T>
int64_t RowsTimesWeightsScratch(int64_t rows, int64_t inputs);
template <typename T>
void RowsTimesWeights(int64_t rows, int64_t columns, int64_t inputs, const T* x, const T* w,
                      int64_t ldw, float* z, int64_t ldz, float* scratch);
// Does the same, to the bit, for the columns of a quantized w from `first` on, at most
// QuantizedTile::kMostColumns, which it expands piece by piece. scratch: RowsTimesQuantizedScratch
// values.
template <typename T>
int64_t RowsTimesQuantizedScratch(int64_t rows, int64_t columns, int64_t inputs);
template <typename T>
void RowsTimesQuantized(int64_t rows, int64_t columns, int64_t inputs, const T* x,
                        const QuantizedTile& w, const std::byte* stored, int64_t first, float* z,
                        int64_t ldz, float* scratch);

// z[c][r] = sum over k of w[c][k] x[k][r], for `classes` rows of w and z; rows of w are `features`
// apart, those of x and z `ldx`, a multiple of 4. scratch: WeightsTimesRowsScratch values.
template <typename T>
int64_t WeightsTimesRowsScratch(int64_t features);
template <typename T>
void WeightsTimesRows(int64_t classes, int64_t rows, int64_t features, const T* w, const float* x,
                      float* z, int64_t ldx, float* scratch);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CPU_OPS_FEW_ROWS_H_
