#ifndef STAGECOACH_TESTS_TESTING_CUDA_CUBLAS_LT_ALGORITHMS_H_
#define STAGECOACH_TESTS_TESTING_CUDA_CUBLAS_LT_ALGORITHMS_H_

#include <cublasLt.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "tests/testing/cuda/cublas_lt/objects.h"
#include "tests/testing/cuda/cublas_lt/product.h"

// The algorithms of the stand-in, and the products that each can compute.
namespace stagecoach::testing::cuda {

inline constexpr int kVectorBytes = 16;

// The contents of a cublasLtMatmulAlgo_t.
struct Algorithm {
  int32_t id = 0;
  uint32_t tile = 0;
  uint32_t stages = 0;
  int32_t split_k = 0;
  uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_NONE;
  uint32_t swizzle = 0;
  uint32_t custom_option = 0;
  uint16_t inner_shape = 0;
  uint16_t cluster = 0;
  SumOrder order = SumOrder::kAscending;
  bool any_alignment = false;  // otherwise operands, and rows and columns within them, begin at
                               // multiples of 16 bytes
  bool by_id = false;          // from cublasLtMatmulAlgoInit, not from the heuristic
  uint8_t bias_alignment = 0;  // the bias's alignment when the algorithm was requested
  uint64_t problem = 0;        // the product for which it was requested; `by_id`: the types of that
  uint64_t magic = 0;          // marks an algorithm that was requested

  bool operator==(const Algorithm&) const = default;
};

cublasLtMatmulAlgo_t Pack(const Algorithm& algorithm);
// Returns nothing if neither the heuristic nor cublasLtMatmulAlgoInit made it.
std::optional<Algorithm> Unpack(const cublasLtMatmulAlgo_t& packed);
// Finds the algorithm with which to compute `product`. INVALID_VALUE if it was requested for
// another product, or for other types; NOT_SUPPORTED if no algorithm has its attributes, or if it
// cannot compute the product.
cublasStatus_t UnpackFor(const Product& product, const cublasLtMatmulAlgo_t& packed,
                         Algorithm& algorithm);

// Returns algorithm `id` with the attributes' default values, for products whose types are those of
// `types`; nothing if it does not exist.
std::optional<Algorithm> WithId(int32_t id, const Product& types);

// Returns the product as `algorithm` computes it.
Product With(Product product, const Algorithm& algorithm);

// Returns the algorithms that may be used, best first; the order depends on the problem alone.
std::vector<Algorithm> Candidates(const Product& product, const MatmulPreference& preference);

// Returns the best one that addresses and workspace allow, for callers that name none.
std::optional<Algorithm> BestFor(const Product& product, size_t workspace_bytes);

bool IsAligned(const void* address, uint64_t bytes);
// Returns whether the addresses are aligned as they were when `algorithm` was requested.
bool AreAligned(const Product& product, const Algorithm& algorithm);

}  // namespace stagecoach::testing::cuda

#endif  // STAGECOACH_TESTS_TESTING_CUDA_CUBLAS_LT_ALGORITHMS_H_
