#ifndef STAGECOACH_KERNELS_CPU_OPS_MULTIPLY_ADD_H_
#define STAGECOACH_KERNELS_CPU_OPS_MULTIPLY_ADD_H_

#include <immintrin.h>

namespace stagecoach::kernels {

// factor * b + c, rounded once where the processor can. Compilers would choose by the width of the
// vector and the number of sums, so that an element's bits depended on where its block ends.
template <typename Vector>
Vector MultiplyAdd(float factor, Vector b, Vector c) {
  const Vector a = factor - Vector{};
#if defined(__AVX512F__)
  if constexpr (sizeof(Vector) == 64) return _mm512_fmadd_ps(a, b, c);
#endif
#if defined(__FMA__)
  if constexpr (sizeof(Vector) == 32) return _mm256_fmadd_ps(a, b, c);
  if constexpr (sizeof(Vector) == 16) return _mm_fmadd_ps(a, b, c);
#endif
  return a * b + c;
}

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CPU_OPS_MULTIPLY_ADD_H_
