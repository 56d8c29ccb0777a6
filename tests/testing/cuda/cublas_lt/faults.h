#ifndef STAGECOACH_TESTS_TESTING_CUDA_CUBLAS_LT_FAULTS_H_
#define STAGECOACH_TESTS_TESTING_CUDA_CUBLAS_LT_FAULTS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>

#include "tests/testing/cuda/cublas_lt/product.h"

// Faults with which a test makes the stand-in of cuBLASLt behave as the real library may, but the
// stand-in by itself does not. Algorithms are named by their CUBLASLT_ALGO_CONFIG_ID.
namespace stagecoach::testing::cuda {

inline constexpr int32_t kFirstFurtherId = 100;

struct BlasFaults {
  // Products for which the library has no algorithm; only types and extents of the operands matter.
  std::function<bool(const Product&)> lacks;
  // Algorithms that the heuristic does not offer, though the library has them.
  std::set<int32_t> unoffered;
  // The number of additional algorithms of the library. The heuristic offers them after the others;
  // their ids count up from kFirstFurtherId.
  int further = 0;
  // Algorithms that the heuristic offers, but cublasLtMatmulAlgoCheck and the product refuse.
  std::set<int32_t> refused;
  // Algorithms that need this much workspace, of which the heuristic does not know.
  std::map<int32_t, size_t> workspace_bytes;
  // Algorithms that pass the check, but that cublasLtMatmul fails to run.
  std::set<int32_t> failing;
  // Algorithms that produce other bits on every run.
  std::set<int32_t> unsteady;
  // Algorithms whose results are a tenth too small.
  std::set<int32_t> wrong;
  // Time of the GPU's clock that a run takes in addition to its time here.
  std::map<int32_t, int64_t> extra_ns;
  // Additional time for runs of products with an epilogue.
  int64_t epilogue_extra_ns = 0;
};

// Sets the faults of all following calls, until the next Reset. Thread-safe.
void SetBlasFaults(BlasFaults faults);

// ---- For the stand-in.
BlasFaults blas_faults();

}  // namespace stagecoach::testing::cuda

#endif  // STAGECOACH_TESTS_TESTING_CUDA_CUBLAS_LT_FAULTS_H_
