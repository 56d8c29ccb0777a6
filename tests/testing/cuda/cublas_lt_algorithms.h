#ifndef STAGECOACH_TESTS_TESTING_CUDA_CUBLAS_LT_ALGORITHMS_H_
#define STAGECOACH_TESTS_TESTING_CUDA_CUBLAS_LT_ALGORITHMS_H_

#include <cublasLt.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "tests/testing/cuda/cublas_lt_objects.h"
#include "tests/testing/cuda/cublas_lt_product.h"

// The algorithms of the stand-in, and which of them can compute which product.
namespace stagecoach::testing::cuda {

inline constexpr int kVectorBytes = 16;

// What is inside of a cublasLtMatmulAlgo_t.
struct Algorithm {
  int32_t id;
  uint32_t tile;
  uint32_t stages;
  int32_t split_k;
  uint32_t reduction;
  uint16_t inner_shape;
  uint16_t cluster;
  SumOrder order;
  bool any_alignment;      // else operands, and rows and columns within them, begin at 16 bytes
  uint8_t bias_alignment;  // what the bias had when the algorithm was asked for
  uint64_t problem;        // for which it was asked for
  uint64_t magic;          // and that it was

  bool operator==(const Algorithm&) const = default;
};

cublasLtMatmulAlgo_t Pack(const Algorithm& algorithm);
// Nothing if the heuristic did not make it.
std::optional<Algorithm> Unpack(const cublasLtMatmulAlgo_t& packed);
// The same if it was asked for `product`.
std::optional<Algorithm> UnpackFor(const Product& product, const cublasLtMatmulAlgo_t& packed);

// The product as `algorithm` computes it.
Product With(Product product, const Algorithm& algorithm);

// The algorithms that may be used, best first; which is best depends on the problem alone.
std::vector<Algorithm> Candidates(const Product& product, const MatmulPreference& preference);

// The best that addresses and workspace allow, for callers that name none.
std::optional<Algorithm> BestFor(const Product& product, size_t workspace_bytes);

bool IsAligned(const void* address, uint64_t bytes);
// Whether the addresses are such as `algorithm` was asked for.
bool AreAligned(const Product& product, const Algorithm& algorithm);

}  // namespace stagecoach::testing::cuda

#endif  // STAGECOACH_TESTS_TESTING_CUDA_CUBLAS_LT_ALGORITHMS_H_
