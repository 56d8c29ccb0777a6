#ifndef STAGECOACH_TESTS_TESTING_CUDA_CUBLAS_LT_PRODUCT_H_
#define STAGECOACH_TESTS_TESTING_CUDA_CUBLAS_LT_PRODUCT_H_

#include <cublasLt.h>

#include <cstddef>
#include <cstdint>

// The computation of one cublasLtMatmul, as plain loops.
namespace stagecoach::testing::cuda {

struct Matrix {
  std::byte* data = nullptr;
  cudaDataType_t type = CUDA_R_32F;  // or CUDA_R_16BF
  int64_t rows = 0, columns = 0;
  int64_t leading =
      0;  // elements from one column to the next; from one row to the next if row_major
  bool row_major = false;

  int64_t element_bytes() const { return type == CUDA_R_16BF ? 2 : 4; }
  // Returns the size from the first element to the end of the last.
  int64_t bytes() const;
  float Get(int64_t row, int64_t column) const;
  void Set(int64_t row, int64_t column, float value) const;
};

// The order in which the k products of an element are summed. Sums in different orders differ in
// their last bits, so that a test notices if another algorithm was used than the requested one.
enum class SumOrder : uint8_t { kAscending, kDescending, kEvenThenOdd };

// D = epilogue(alpha op(A) op(B) + beta C).    op(A) (m, k)   op(B) (k, n)   C, D (m, n)
// Accumulated in float32.
struct Product {
  int64_t m = 0, n = 0, k = 0;
  Matrix a, b, c, d;
  bool transpose_a = false, transpose_b = false;
  float alpha = 1.0F, beta = 0.0F;  // C is not read if beta is 0
  bool tf32 = false;                // operands are rounded to 10 bits of mantissa

  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  Matrix bias;  // (m, 1), read or written depending on `epilogue`
  Matrix aux;   // (m, n); for ReLU's bit mask only `data` and `leading`, in bits, matter

  SumOrder order = SumOrder::kAscending;
  // Parts of k, each summed separately: kept in `workspace` in the type of D or in float32, or
  // (kept nowhere) added one after the other to a result of D's type.
  int split_k = 1;
  cublasLtReductionScheme_t reduction = CUBLASLT_REDUCTION_SCHEME_NONE;
  std::byte* workspace = nullptr;
  int64_t workspace_bytes = 0;
};

// Returns the bytes of workspace that a product needs, from its other members.
int64_t WorkspaceBytes(const Product& product);

void Compute(const Product& product);

}  // namespace stagecoach::testing::cuda

#endif  // STAGECOACH_TESTS_TESTING_CUDA_CUBLAS_LT_PRODUCT_H_
