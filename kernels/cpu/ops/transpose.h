#ifndef STAGECOACH_KERNELS_CPU_OPS_TRANSPOSE_H_
#define STAGECOACH_KERNELS_CPU_OPS_TRANSPOSE_H_

#include <algorithm>
#include <cstdint>

namespace stagecoach::kernels {

// in (rows, columns) with leading dimension `ldin` -> out (columns, rows) with leading dimension
// `ldout`, rounded if need be; in blocks, so that both sides stay in L1.
template <typename From, typename To>
void Transpose(const From* in, int64_t ldin, int64_t rows, int64_t columns, To* out,
               int64_t ldout) {
  constexpr int64_t kBlock = 16;
  for (int64_t r0 = 0; r0 < rows; r0 += kBlock) {
    const int64_t r1 = std::min(r0 + kBlock, rows);
    for (int64_t c0 = 0; c0 < columns; c0 += kBlock) {
      const int64_t c1 = std::min(c0 + kBlock, columns);
      for (int64_t c = c0; c < c1; ++c) {
        for (int64_t r = r0; r < r1; ++r) out[c * ldout + r] = in[r * ldin + c];
      }
    }
  }
}

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CPU_OPS_TRANSPOSE_H_
