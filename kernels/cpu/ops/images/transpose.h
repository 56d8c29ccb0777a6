#ifndef STAGECOACH_KERNELS_CPU_OPS_IMAGES_TRANSPOSE_H_
#define STAGECOACH_KERNELS_CPU_OPS_IMAGES_TRANSPOSE_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace stagecoach::kernels {

// Transposes a block of 4 x 4 numbers.
inline void TransposeBlock(const float* in, int64_t ldin, float* out, int64_t ldout) {
  using Quad = float __attribute__((vector_size(16)));
  Quad row[4];
  for (int r = 0; r < 4; ++r) std::memcpy(&row[r], in + r * ldin, sizeof(Quad));
  const Quad low01 = __builtin_shufflevector(row[0], row[1], 0, 4, 1, 5);
  const Quad high01 = __builtin_shufflevector(row[0], row[1], 2, 6, 3, 7);
  const Quad low23 = __builtin_shufflevector(row[2], row[3], 0, 4, 1, 5);
  const Quad high23 = __builtin_shufflevector(row[2], row[3], 2, 6, 3, 7);
  const Quad column[4] = {__builtin_shufflevector(low01, low23, 0, 1, 4, 5),
                          __builtin_shufflevector(low01, low23, 2, 3, 6, 7),
                          __builtin_shufflevector(high01, high23, 0, 1, 4, 5),
                          __builtin_shufflevector(high01, high23, 2, 3, 6, 7)};
  for (int c = 0; c < 4; ++c) std::memcpy(out + c * ldout, &column[c], sizeof(Quad));
}

// Transposes in (rows, columns) with leading dimension `ldin` to out (columns, rows) with leading
// dimension `ldout`, rounded if necessary; in blocks, so that both sides stay in L1.
template <typename From, typename To>
void Transpose(const From* in, int64_t ldin, int64_t rows, int64_t columns, To* out,
               int64_t ldout) {
  constexpr int64_t kBlock = 16;
  for (int64_t r0 = 0; r0 < rows; r0 += kBlock) {
    const int64_t r1 = std::min(r0 + kBlock, rows);
    for (int64_t c0 = 0; c0 < columns; c0 += kBlock) {
      const int64_t c1 = std::min(c0 + kBlock, columns);
      if constexpr (std::is_same_v<From, float> && std::is_same_v<To, float>) {
        if (r1 - r0 == kBlock && c1 - c0 == kBlock) {
          for (int64_t c = c0; c < c1; c += 4) {
            for (int64_t r = r0; r < r1; r += 4) {
              TransposeBlock(in + r * ldin + c, ldin, out + c * ldout + r, ldout);
            }
          }
          continue;
        }
      }
      for (int64_t c = c0; c < c1; ++c) {
        for (int64_t r = r0; r < r1; ++r) out[c * ldout + r] = in[r * ldin + c];
      }
    }
  }
}

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CPU_OPS_IMAGES_TRANSPOSE_H_
