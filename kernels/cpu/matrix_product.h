#ifndef STAGECOACH_KERNELS_CPU_MATRIX_PRODUCT_H_
#define STAGECOACH_KERNELS_CPU_MATRIX_PRODUCT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace stagecoach::kernels {

// c = a b (+ c if accumulate) with row-major matrices a (m, k), b (k, n), c (m, n) and leading
// dimensions lda, ldb, ldc; a is stored transposed, as (k, m), if `transpose_a`. One thread.
// oneDNN's stateless product.
absl::Status Gemm(bool transpose_a, int64_t m, int64_t n, int64_t k, const float* a, int64_t lda,
                  const float* b, int64_t ldb, bool accumulate, float* c, int64_t ldc);

// c = a b^T with a (m, k), b (n, k) and c (m, n), all row-major and contiguous; a oneDNN primitive
// made once for its shape. Right for a tall a and a b of few rows: a is read in place, only b is
// repacked. One thread per slot.
class TransposedProduct {
 public:
  // `slots`: how many threads may be inside Run at once, each with a slot of its own.
  static absl::StatusOr<std::unique_ptr<TransposedProduct>> Create(int64_t m, int64_t n, int64_t k,
                                                                   int slots);
  ~TransposedProduct();

  int64_t scratchpad_bytes() const;  // of one slot

  absl::Status Run(int slot, const float* a, const float* b, float* c, std::byte* scratchpad) const;

 private:
  struct State;
  explicit TransposedProduct(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CPU_MATRIX_PRODUCT_H_
