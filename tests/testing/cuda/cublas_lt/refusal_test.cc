#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/cuda/cublas_lt/problem.h"
#include "tests/testing/cuda/stand_in.h"

namespace stagecoach::testing::cuda {
namespace {

using ::testing::IsEmpty;

// Expects that the heuristic and the product itself refuse a problem that `change` has changed.
template <typename Change>
void ExpectRefused(cublasStatus_t status, const BlasCase& c, Change change) {
  SCOPED_TRACE(NameOf(c));
  BlasBench gpu;
  BlasProblem p(gpu, c);
  change(p);
  EXPECT_THAT(p.Heuristic(status), IsEmpty());
  EXPECT_EQ(p.Multiply(nullptr), status);
}
void ExpectRefused(cublasStatus_t status, const BlasCase& c) {
  ExpectRefused(status, c, [](BlasProblem&) {});
}

template <typename T>
void SetLayout(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute, T value) {
  EXPECT_EQ(cublasLtMatrixLayoutSetAttribute(layout, attribute, &value, sizeof(value)),
            CUBLAS_STATUS_SUCCESS);
}

TEST_F(CublasLt, RefusesExtentsThatDoNotMatch) {
  ExpectRefused(CUBLAS_STATUS_INVALID_VALUE, {}, [](BlasProblem& p) {
    SetLayout(p.layout_a, CUBLASLT_MATRIX_LAYOUT_COLS, uint64_t{23});
  });
}

TEST_F(CublasLt, RefusesLeadingDimensionsThatAreTooSmall) {
  ExpectRefused(CUBLAS_STATUS_INVALID_VALUE, {}, [](BlasProblem& p) {
    SetLayout(p.layout_b, CUBLASLT_MATRIX_LAYOUT_LD, int64_t{23});
  });
}

TEST_F(CublasLt, RefusesEmptyMatrices) {
  ExpectRefused(CUBLAS_STATUS_INVALID_VALUE, {}, [](BlasProblem& p) {
    SetLayout(p.layout_d, CUBLASLT_MATRIX_LAYOUT_COLS, uint64_t{0});
  });
}

TEST_F(CublasLt, RefusesCombinationsOfTypes) {
  ExpectRefused(CUBLAS_STATUS_NOT_SUPPORTED, {.operands = CUDA_R_32F, .result = CUDA_R_16BF});
  ExpectRefused(CUBLAS_STATUS_NOT_SUPPORTED,
                {.operands = CUDA_R_16BF, .compute = CUBLAS_COMPUTE_32F_FAST_TF32});
  ExpectRefused(CUBLAS_STATUS_NOT_SUPPORTED, {.compute = CUBLAS_COMPUTE_16F});
}

TEST_F(CublasLt, RefusesEpiloguesOfRowMajorResults) {
  ExpectRefused(CUBLAS_STATUS_NOT_SUPPORTED,
                {.row_major_d = true, .epilogue = CUBLASLT_EPILOGUE_BIAS});
}

TEST_F(CublasLt, RefusesAuxLeadingDimensionsOfOtherMultiples) {
  const auto set = [](int64_t leading) {
    return [leading](BlasProblem& p) { p.Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, leading); };
  };
  ExpectRefused(CUBLAS_STATUS_INVALID_VALUE, {.epilogue = CUBLASLT_EPILOGUE_GELU_AUX}, set(12));
  ExpectRefused(CUBLAS_STATUS_INVALID_VALUE, {.m = 9, .epilogue = CUBLASLT_EPILOGUE_GELU_AUX},
                set(8));
  ExpectRefused(CUBLAS_STATUS_INVALID_VALUE, {.epilogue = CUBLASLT_EPILOGUE_RELU_AUX}, set(64));
}

TEST_F(CublasLt, RefusesBiasAndAuxOfOtherTypesThanTheResult) {
  ExpectRefused(CUBLAS_STATUS_INVALID_VALUE, {.epilogue = CUBLASLT_EPILOGUE_BIAS},
                [](BlasProblem& p) { p.Set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_16BF); });
  ExpectRefused(
      CUBLAS_STATUS_INVALID_VALUE, {.epilogue = CUBLASLT_EPILOGUE_GELU_AUX},
      [](BlasProblem& p) { p.Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, CUDA_R_16BF); });
}

TEST_F(CublasLt, HasNoAuxAndNoBiasGradientsOfUnalignedLines) {
  for (const cublasLtEpilogue_t epilogue :
       {CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_DRELU_BGRAD}) {
    ExpectRefused(CUBLAS_STATUS_NOT_SUPPORTED, {.m = 7, .epilogue = epilogue, .padding = 1});
  }
}

TEST_F(CublasLt, RefusesNullOperands) {
  BlasBench gpu;
  BlasProblem p(gpu, {.epilogue = CUBLASLT_EPILOGUE_BIAS});
  const cublasLtMatmulAlgo_t algo = p.Heuristic().front().algo;
  p.Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<void*>(nullptr));
  EXPECT_EQ(p.Multiply(&algo), CUBLAS_STATUS_INVALID_VALUE);
  p.Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias.memory);
  p.a.memory = nullptr;
  EXPECT_EQ(p.Multiply(&algo), CUBLAS_STATUS_INVALID_VALUE);
}

TEST_F(CublasLt, RefusesAlgorithmsOfOtherProblems) {
  BlasBench gpu;
  BlasProblem p(gpu, {});
  BlasProblem other(gpu, {.k = 32});
  EXPECT_EQ(p.Multiply(&other.Heuristic().front().algo), CUBLAS_STATUS_INVALID_VALUE);
}

TEST_F(CublasLt, RefusesAWorkspaceThatIsTooSmall) {
  BlasBench gpu;
  BlasProblem p(gpu, {});
  for (const auto& result : p.Heuristic()) {
    if (result.workspaceSize == 0) continue;
    EXPECT_EQ(p.Multiply(&result.algo, result.workspaceSize - 1), CUBLAS_STATUS_INVALID_VALUE);
  }
}

TEST_F(CublasLt, RefusesAddressesLessAlignedThanTheAlgorithmWasAskedFor) {
  BlasBench gpu;
  BlasProblem p(gpu, {.epilogue = CUBLASLT_EPILOGUE_GELU_AUX});
  const cublasLtMatmulAlgo_t algo = p.Heuristic().front().algo;
  p.Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, p.aux.memory + 4);
  EXPECT_EQ(p.Multiply(&algo), CUBLAS_STATUS_INVALID_VALUE);
}

TEST_F(CublasLt, RefusesAttributesOfOtherSizes) {
  BlasBench gpu;
  BlasProblem p(gpu, {});
  const int64_t transpose = CUBLAS_OP_T;
  EXPECT_EQ(cublasLtMatmulDescSetAttribute(p.desc, CUBLASLT_MATMUL_DESC_TRANSA, &transpose,
                                           sizeof(transpose)),
            CUBLAS_STATUS_INVALID_VALUE);
}

TEST_F(CublasLt, NeedsADriver) {
  Reset({.driver = false});
  cublasLtHandle_t handle = nullptr;
  EXPECT_EQ(cublasLtCreate(&handle), CUBLAS_STATUS_NOT_INITIALIZED);
}

TEST_F(CublasLt, FailsOnPurposeWithItsOwnErrors) {
  BlasBench gpu;
  BlasProblem p(gpu, {});
  FailCall(1);
  EXPECT_EQ(p.Multiply(nullptr), CUBLAS_STATUS_EXECUTION_FAILED);
  EXPECT_EQ(failed_call(), "cublasLtMatmul");
  FailCall(1);
  EXPECT_THAT(p.Heuristic(CUBLAS_STATUS_INTERNAL_ERROR), IsEmpty());
}

TEST_F(CublasLt, CountsWhatIsNotDestroyed) {
  cublasLtMatmulDesc_t desc = nullptr;
  ASSERT_EQ(cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(live().blas_objects, 1);
  ASSERT_EQ(cublasLtMatmulDescDestroy(desc), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(live().blas_objects, 0);
}

using CublasLtDeathTest = CublasLt;

TEST_F(CublasLtDeathTest, DiesOfOperandsInHostMemory) {
  BlasBench gpu;
  BlasProblem p(gpu, {});
  Floats host(1024);
  std::byte* const memory = std::exchange(p.b.memory, reinterpret_cast<std::byte*>(host.data()));
  EXPECT_DEATH(p.Multiply(nullptr), "cublasLtMatmul: B .* is not in memory of the stream's GPU");
  p.b.memory = memory;
}

TEST_F(CublasLtDeathTest, DiesOfResultsThatOverlapOperands) {
  BlasBench gpu;
  BlasProblem p(gpu, {.m = 16, .n = 16, .k = 16});
  std::byte* const memory = std::exchange(p.b.memory, p.d.memory);
  EXPECT_DEATH(p.Multiply(nullptr), "cublasLtMatmul: D overlaps B");
  p.b.memory = memory;
}

TEST_F(CublasLtDeathTest, DiesOfObjectsThatWereDestroyed) {
  cublasLtMatmulDesc_t desc = nullptr;
  ASSERT_EQ(cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(cublasLtMatmulDescDestroy(desc), CUBLAS_STATUS_SUCCESS);
  EXPECT_DEATH(cublasLtMatmulDescDestroy(desc), "destroyed twice");
}

}  // namespace
}  // namespace stagecoach::testing::cuda
