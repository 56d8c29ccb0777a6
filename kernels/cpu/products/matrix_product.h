#ifndef STAGECOACH_KERNELS_CPU_PRODUCTS_MATRIX_PRODUCT_H_
#define STAGECOACH_KERNELS_CPU_PRODUCTS_MATRIX_PRODUCT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cpu/runtime/cpu_stream.h"
#include "kernels/tensor.h"

namespace stagecoach::kernels {

// A product of row-major matrices a (m, k), b (k, n) and c (m, n) with the leading dimensions lda,
// ldb and ldc.
struct ProductShape {
  int64_t m = 1, n = 1, k = 1;
  bool transpose_a = false;  // a is stored as (k, m)
  int64_t lda = 1;
  bool transpose_b = false;  // b is stored as (n, k)
  int64_t ldb = 1;
  int64_t ldc = 1;
  bool may_accumulate = false;
};

// Computes c = a b (+ c); made once for its shape. a and b are float32 or bfloat16, sums and c are
// float32. One thread per slot. Products of float32 are oneDNN's stateless ones, except with a
// transposed b: then a primitive reads a tall a in place, and repacks b alone. Products of bfloat16
// are primitives. Neither computes a vector whose elements are not neighbors; the project's own
// code does.
class MatrixProduct {
 public:
  // `slots` is how many threads may be inside Run at once, each with a slot of its own.
  static absl::StatusOr<std::unique_ptr<MatrixProduct>> Create(DType type,
                                                               const ProductShape& shape,
                                                               int slots);
  ~MatrixProduct();

  int64_t scratchpad_bytes() const;  // of one slot

  // The product is added to the present contents of c if `accumulate`, which the shape must allow.
  absl::Status Run(int slot, const void* a, const void* b, bool accumulate, float* c,
                   std::byte* scratchpad) const;

 private:
  struct State;
  explicit MatrixProduct(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// The products of a tiling, whose tiles are equally long, except for the last.
class TiledProduct {
 public:
  // `shape_of` returns the shape for a tile of that length.
  static absl::StatusOr<TiledProduct> Create(
      DType type, const Tiling& tiles, int slots,
      absl::FunctionRef<ProductShape(int64_t length)> shape_of);

  int64_t scratchpad_bytes() const;
  // Does the same as MatrixProduct::Run.
  absl::Status Run(int tile, int slot, const void* a, const void* b, bool accumulate, float* c,
                   std::byte* scratchpad) const;

 private:
  int last_tile_ = 0;
  std::unique_ptr<MatrixProduct> whole_, last_;  // if there is one tile, `last_` alone
};

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CPU_PRODUCTS_MATRIX_PRODUCT_H_
