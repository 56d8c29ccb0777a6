#ifndef STAGECOACH_KERNELS_CPU_OPS_GRADIENT_PRODUCTS_H_
#define STAGECOACH_KERNELS_CPU_OPS_GRADIENT_PRODUCTS_H_

#include <cstdint>

namespace stagecoach::kernels {

// The two products of a linear layer's backward pass in float32, of row-major matrices: x (rows,
// inputs), w (inputs, outputs), dz (rows, outputs). Each is for a tile of inputs, on one thread.
// Operands are packed piece by piece, so that TileProduct reads them from L2 in order, and each
// element is summed in order of its index, whatever the tiles are: so dw of several micro-batches,
// added one after the other, has the bits of a single one with all their rows.
//
// They replace oneDNN's (docs/performance.md, Parts): with AVX-512 it adds to the gradient of
// weights that no cache holds at 151 GFLOP/s where these reach 250, and with AVX2 it computes the
// input gradient at 102 where these reach 132 (64 x 2304 x 2304, oneDNN 2.6.3).

// Computes dx[r][i] = sum over o of dz[r][o] w[i][o], for `inputs` rows of w and columns of dx,
// whose rows are outputs and lddx apart; scratch has InputGradientScratch values.
int64_t InputGradientScratch(int64_t rows, int64_t inputs, int64_t outputs);
void InputGradient(int64_t rows, int64_t inputs, int64_t outputs, const float* dz, const float* w,
                   float* dx, int64_t lddx, float* scratch);

// Computes dw[i][o] (+)= sum over r of x[r][i] dz[r][o], for `inputs` columns of x and rows of dw.
// x has rows ldx apart; scratch has WeightGradientScratch values.
int64_t WeightGradientScratch(int64_t rows, int64_t inputs, int64_t outputs);
void WeightGradient(int64_t rows, int64_t inputs, int64_t outputs, const float* x, int64_t ldx,
                    const float* dz, bool accumulate, float* dw, float* scratch);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CPU_OPS_GRADIENT_PRODUCTS_H_
