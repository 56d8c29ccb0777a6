#ifndef STAGECOACH_TESTS_TESTING_CUDA_WARPGROUP_TEST_KERNELS_H_
#define STAGECOACH_TESTS_TESTING_CUDA_WARPGROUP_TEST_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

// Products of warpgroups alone, for each layout of their factors that kernels use; for the emulator
// and for GPUs.
namespace stagecoach::testing::cuda {

// Computes c (rows, columns) from matrices of bfloat16 by rows: a (rows, terms), and b (columns,
// terms) or, if `b_has_terms_as_rows`, b (terms, columns). In the second case a comes from
// registers, otherwise from shared memory.
struct WarpgroupProduct {
  int rows, columns, terms;
  bool b_has_terms_as_rows;
  cudaError_t (*launch)(cudaStream_t stream, const uint16_t* a, const uint16_t* b, float* c);
};
std::span<const WarpgroupProduct> WarpgroupProducts();

}  // namespace stagecoach::testing::cuda

#endif  // STAGECOACH_TESTS_TESTING_CUDA_WARPGROUP_TEST_KERNELS_H_
