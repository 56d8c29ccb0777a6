#ifndef STAGECOACH_TESTS_TESTING_CUDA_CUBLAS_LT_DESCRIPTION_H_
#define STAGECOACH_TESTS_TESTING_CUDA_CUBLAS_LT_DESCRIPTION_H_

#include <cublasLt.h>

#include <cstdint>
#include <utility>

#include "tests/testing/cuda/cublas_lt/objects.h"
#include "tests/testing/cuda/cublas_lt/product.h"

// Converts descriptors to products, as far as the real library supports them.
namespace stagecoach::testing::cuda {

struct Layouts {
  cublasLtMatrixLayout_t a, b, c, d;
};

// Returns what the descriptors say of a product, except for addresses of operands and the
// algorithm. The status is the library's refusal of invalid products (INVALID_VALUE), or of those
// for which it, or this stand-in, has no algorithm (NOT_SUPPORTED).
std::pair<cublasStatus_t, Product> Describe(const MatmulDesc* desc, const Layouts& layouts);

// Checks that products of such types exist: the tables in the documentation of cublasLtMatmul, as
// far as they are used here. Only the types of `product`'s matrices matter.
cublasStatus_t CheckTypes(const MatmulDesc& desc, const Product& product);

inline constexpr uint32_t kAuxBit = 128;
inline constexpr uint32_t kBiasGradientBit = 16;
// Say which other operands an epilogue has. A mask is ReLU's aux: one bit per element.
bool UsesBias(uint32_t epilogue);
bool UsesAux(uint32_t epilogue);
bool UsesMask(uint32_t epilogue);

}  // namespace stagecoach::testing::cuda

#endif  // STAGECOACH_TESTS_TESTING_CUDA_CUBLAS_LT_DESCRIPTION_H_
