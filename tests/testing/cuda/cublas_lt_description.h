#ifndef STAGECOACH_TESTS_TESTING_CUDA_CUBLAS_LT_DESCRIPTION_H_
#define STAGECOACH_TESTS_TESTING_CUDA_CUBLAS_LT_DESCRIPTION_H_

#include <cublasLt.h>

#include <cstdint>
#include <utility>

#include "tests/testing/cuda/cublas_lt_objects.h"
#include "tests/testing/cuda/cublas_lt_product.h"

// From descriptors to products: what the real library supports of them.
namespace stagecoach::testing::cuda {

struct Layouts {
  cublasLtMatrixLayout_t a, b, c, d;
};

// What the descriptors say of a product, but for addresses of operands and the algorithm. The
// status is the library's refusal of what cannot be (INVALID_VALUE), or what it, or this stand-in,
// has no algorithm for (NOT_SUPPORTED).
std::pair<cublasStatus_t, Product> Describe(const MatmulDesc* desc, const Layouts& layouts);

// Whether there are products of such types: the tables in the documentation of cublasLtMatmul, as
// far as they are used here. Of `product`, types of matrices count.
cublasStatus_t CheckTypes(const MatmulDesc& desc, const Product& product);

inline constexpr uint32_t kAuxBit = 128;
inline constexpr uint32_t kBiasGradientBit = 16;
// Which other operands an epilogue has. A mask is ReLU's aux: one bit per element.
bool UsesBias(uint32_t epilogue);
bool UsesAux(uint32_t epilogue);
bool UsesMask(uint32_t epilogue);

}  // namespace stagecoach::testing::cuda

#endif  // STAGECOACH_TESTS_TESTING_CUDA_CUBLAS_LT_DESCRIPTION_H_
