#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <bit>
#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/cuda/cublas_lt/faults.h"
#include "tests/testing/cuda/cublas_lt/problem.h"
#include "tests/testing/cuda/stand_in.h"

namespace stagecoach::testing::cuda {
namespace {

using ::testing::IsEmpty;
using ::testing::Not;

std::vector<uint32_t> BitsOf(const Floats& values) {
  std::vector<uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

TEST_F(CublasLt, AlgorithmsDifferInLastBitsAndKeepTheirOwn) {
  BlasBench gpu;
  BlasProblem p(gpu, {.m = 32, .n = 32, .k = 200});
  std::vector<std::vector<uint32_t>> bits;
  std::vector<int32_t> ids;
  for (const auto& result : p.Heuristic()) {
    ASSERT_EQ(p.Multiply(&result.algo), CUBLAS_STATUS_SUCCESS);
    const std::vector<uint32_t> first = BitsOf(p.Result());
    ASSERT_EQ(p.Multiply(&result.algo), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(BitsOf(p.Result()), first);
    EXPECT_THAT(bits, Not(::testing::Contains(first)));
    EXPECT_THAT(ids, Not(::testing::Contains(IdOf(result.algo))));
    bits.push_back(first);
    ids.push_back(IdOf(result.algo));
  }
  EXPECT_GE(bits.size(), 4U);
}

TEST_F(CublasLt, HeuristicKeepsToTheWorkspace) {
  BlasBench gpu;
  BlasProblem p(gpu, {});
  const size_t all = p.Heuristic().size();
  p.SetPreference(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{100});
  const auto results = p.Heuristic();
  EXPECT_THAT(results, Not(IsEmpty()));
  EXPECT_LT(results.size(), all);
  for (const auto& result : results) EXPECT_LE(result.workspaceSize, 100U);
}

TEST_F(CublasLt, HeuristicKeepsToReductionSchemes) {
  BlasBench gpu;
  BlasProblem p(gpu, {});
  p.SetPreference(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                  uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  int split = 0;
  for (const auto& result : p.Heuristic()) {
    uint32_t scheme = 0;
    int32_t parts = 0;
    ASSERT_EQ(
        cublasLtMatmulAlgoConfigGetAttribute(&result.algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
                                             &scheme, sizeof(scheme), nullptr),
        CUBLAS_STATUS_SUCCESS);
    ASSERT_EQ(cublasLtMatmulAlgoConfigGetAttribute(&result.algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM,
                                                   &parts, sizeof(parts), nullptr),
              CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(scheme != CUBLASLT_REDUCTION_SCHEME_NONE, parts > 1);
    if (scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) ++split;
    EXPECT_EQ(scheme & ~uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE}, 0U);
  }
  EXPECT_EQ(split, 1);
}

TEST_F(CublasLt, HeuristicGivesNoMoreThanIsWanted) {
  BlasBench gpu;
  BlasProblem p(gpu, {});
  EXPECT_EQ(p.Heuristic(CUBLAS_STATUS_SUCCESS, 2).size(), 2U);
}

TEST_F(CublasLt, CheckAsksForTheWorkspaceThatIsNeeded) {
  BlasBench gpu;
  BlasProblem p(gpu, {});
  for (const auto& result : p.Heuristic()) {
    size_t workspace_bytes = 1;
    EXPECT_EQ(p.Check(result.algo, &workspace_bytes), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(workspace_bytes, result.workspaceSize);
  }
}

TEST_F(CublasLt, CheckRefusesAlgorithmsOfOtherProblems) {
  BlasBench gpu;
  BlasProblem p(gpu, {});
  BlasProblem other(gpu, {.k = 32});
  EXPECT_EQ(p.Check(other.Heuristic().front().algo), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(p.Check({}), CUBLAS_STATUS_INVALID_VALUE);
}

TEST_F(CublasLt, CheckFailsOnPurpose) {
  BlasBench gpu;
  BlasProblem p(gpu, {});
  const cublasLtMatmulAlgo_t algo = p.Heuristic().front().algo;
  FailCall(1);
  EXPECT_EQ(p.Check(algo), CUBLAS_STATUS_INTERNAL_ERROR);
  EXPECT_EQ(failed_call(), "cublasLtMatmulAlgoCheck");
}

// ---- Algorithms by their attributes.

// Copies an attribute.
template <typename T>
void CopyAttribute(cublasLtMatmulAlgoConfigAttributes_t attribute, const cublasLtMatmulAlgo_t& from,
                   cublasLtMatmulAlgo_t& to) {
  T value{};
  ASSERT_EQ(cublasLtMatmulAlgoConfigGetAttribute(&from, attribute, &value, sizeof(value), nullptr),
            CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(cublasLtMatmulAlgoConfigSetAttribute(&to, attribute, &value, sizeof(value)),
            CUBLAS_STATUS_SUCCESS);
}

void CopyAttributes(const cublasLtMatmulAlgo_t& from, cublasLtMatmulAlgo_t& to) {
  CopyAttribute<int32_t>(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, from, to);
  for (const auto attribute :
       {CUBLASLT_ALGO_CONFIG_TILE_ID, CUBLASLT_ALGO_CONFIG_STAGES_ID,
        CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING,
        CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION}) {
    CopyAttribute<uint32_t>(attribute, from, to);
  }
  for (const auto attribute :
       {CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID}) {
    CopyAttribute<uint16_t>(attribute, from, to);
  }
}

TEST_F(CublasLt, AlgorithmsAreRebuiltFromTheirAttributes) {
  BlasBench gpu;
  BlasProblem p(gpu, {.m = 32, .n = 32, .k = 200});
  for (const auto& result : p.Heuristic()) {
    SCOPED_TRACE(IdOf(result.algo));
    cublasLtMatmulAlgo_t algo = {};
    ASSERT_EQ(p.Init(IdOf(result.algo), algo), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(p.Check(algo), CUBLAS_STATUS_NOT_SUPPORTED) << "without attributes";
    CopyAttributes(result.algo, algo);
    size_t workspace_bytes = 1;
    EXPECT_EQ(p.Check(algo, &workspace_bytes), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(workspace_bytes, result.workspaceSize);
    ASSERT_EQ(p.Multiply(&result.algo), CUBLAS_STATUS_SUCCESS);
    const std::vector<uint32_t> bits = BitsOf(p.Result());
    ASSERT_EQ(p.Multiply(&algo), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(BitsOf(p.Result()), bits);
  }
}

TEST_F(CublasLt, RebuiltAlgorithmsAreOfTheirTypes) {
  BlasBench gpu;
  BlasProblem p(gpu, {}), other_extents(gpu, {.m = 16}),
      other_types(gpu, {.operands = CUDA_R_16BF});
  const cublasLtMatmulAlgo_t offered = p.Heuristic().front().algo;
  cublasLtMatmulAlgo_t algo = {};
  ASSERT_EQ(p.Init(IdOf(offered), algo), CUBLAS_STATUS_SUCCESS);
  CopyAttributes(offered, algo);
  EXPECT_EQ(other_extents.Check(algo), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(other_types.Check(algo), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(p.Init(4711, algo), CUBLAS_STATUS_INVALID_VALUE);
  BlasProblem no_such_types(gpu, {});
  no_such_types.c.result = CUDA_R_16BF;
  EXPECT_EQ(no_such_types.Init(IdOf(offered), algo), CUBLAS_STATUS_NOT_SUPPORTED);
}

TEST_F(CublasLt, RefusesToSetWhatIsNoAttributeOfARebuiltAlgorithm) {
  BlasBench gpu;
  BlasProblem p(gpu, {});
  cublasLtMatmulAlgo_t offered = p.Heuristic().front().algo, algo = {};
  ASSERT_EQ(p.Init(IdOf(offered), algo), CUBLAS_STATUS_SUCCESS);
  const uint32_t value = 1;
  const auto set = [&](cublasLtMatmulAlgo_t& to, cublasLtMatmulAlgoConfigAttributes_t attribute,
                       size_t bytes) {
    return cublasLtMatmulAlgoConfigSetAttribute(&to, attribute, &value, bytes);
  };
  EXPECT_EQ(set(algo, CUBLASLT_ALGO_CONFIG_TILE_ID, 4), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(set(algo, CUBLASLT_ALGO_CONFIG_TILE_ID, 2), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(set(algo, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, 4), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(set(algo, CUBLASLT_ALGO_CONFIG_ID, 4), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(set(offered, CUBLASLT_ALGO_CONFIG_TILE_ID, 4), CUBLAS_STATUS_INVALID_VALUE);
}

// ---- Faults.

TEST_F(CublasLt, OffersWhatATestAsksFor) {
  BlasBench gpu;
  BlasProblem p(gpu, {});
  const auto results = p.Heuristic();
  SetBlasFaults({.unoffered = {IdOf(results[0].algo)}, .further = 3});
  const auto others = p.Heuristic();
  ASSERT_EQ(others.size(), results.size() + 2);
  EXPECT_EQ(IdOf(others[0].algo), IdOf(results[1].algo));
  EXPECT_EQ(IdOf(others.back().algo), kFirstFurtherId + 2);
  EXPECT_EQ(p.Multiply(&others.back().algo), CUBLAS_STATUS_SUCCESS);
}

TEST_F(CublasLt, LacksTheProductsThatATestNames) {
  BlasBench gpu;
  BlasProblem p(gpu, {.m = 8}), other(gpu, {.m = 16});
  SetBlasFaults({.lacks = [](const Product& product) { return product.m == 8; }});
  EXPECT_THAT(p.Heuristic(CUBLAS_STATUS_NOT_SUPPORTED), IsEmpty());
  EXPECT_EQ(p.Multiply(nullptr), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_THAT(other.Heuristic(), Not(IsEmpty()));
}

TEST_F(CublasLt, RefusesTheAlgorithmsThatATestNames) {
  BlasBench gpu;
  BlasProblem p(gpu, {});
  const auto results = p.Heuristic();
  SetBlasFaults({.refused = {IdOf(results[0].algo)}});
  EXPECT_EQ(p.Heuristic().size(), results.size());
  EXPECT_EQ(p.Check(results[0].algo), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(p.Multiply(&results[0].algo), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(p.Check(results[1].algo), CUBLAS_STATUS_SUCCESS);
}

TEST_F(CublasLt, NeedsTheWorkspaceThatATestNames) {
  BlasBench gpu;
  BlasProblem p(gpu, {});
  const auto result = p.Heuristic().front();
  SetBlasFaults({.workspace_bytes = {{IdOf(result.algo), 5000}}});
  size_t workspace_bytes = 0;
  EXPECT_EQ(p.Check(result.algo, &workspace_bytes), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(workspace_bytes, 5000U);
  EXPECT_EQ(p.Multiply(&result.algo, 4999), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(p.Multiply(&result.algo, 5000), CUBLAS_STATUS_SUCCESS);
}

TEST_F(CublasLt, FailsToRunTheAlgorithmsThatATestNames) {
  BlasBench gpu;
  BlasProblem p(gpu, {});
  const cublasLtMatmulAlgo_t algo = p.Heuristic().front().algo;
  SetBlasFaults({.failing = {IdOf(algo)}});
  EXPECT_EQ(p.Check(algo), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(p.Multiply(&algo), CUBLAS_STATUS_EXECUTION_FAILED);
}

TEST_F(CublasLt, AlgorithmsThatATestNamesGiveOtherBitsOnEveryRun) {
  BlasBench gpu;
  BlasProblem p(gpu, {});
  const cublasLtMatmulAlgo_t algo = p.Heuristic().front().algo;
  SetBlasFaults({.unsteady = {IdOf(algo)}});
  ASSERT_EQ(p.Multiply(&algo), CUBLAS_STATUS_SUCCESS);
  const Floats first = p.Result();
  ASSERT_EQ(p.Multiply(&algo), CUBLAS_STATUS_SUCCESS);
  EXPECT_NE(BitsOf(p.Result()), BitsOf(first));
}

TEST_F(CublasLt, RunsTakeTheTimeThatATestNames) {
  BlasBench gpu;
  BlasProblem p(gpu, {});
  const cublasLtMatmulAlgo_t algo = p.Heuristic().front().algo;
  SetBlasFaults({.extra_ns = {{IdOf(algo), 3'600'000'000'000}}});
  cudaEvent_t begin = nullptr, end = nullptr;
  for (cudaEvent_t* const event : {&begin, &end}) {
    ASSERT_EQ(cudaEventCreateWithFlags(event, cudaEventDefault), cudaSuccess);
  }
  ASSERT_EQ(cudaEventRecord(begin, gpu.stream), cudaSuccess);
  ASSERT_EQ(p.Multiply(&algo), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(cudaEventRecord(end, gpu.stream), cudaSuccess);
  gpu.Wait();
  float milliseconds = 0.0F;
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, begin, end), cudaSuccess);
  EXPECT_GE(milliseconds, 3.6e6F);
  for (const cudaEvent_t event : {begin, end}) EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
}

TEST_F(CublasLt, FaultsEndWithReset) {
  SetBlasFaults({.lacks = [](const Product&) { return true; }});
  Reset({});
  BlasBench gpu;
  BlasProblem p(gpu, {});
  EXPECT_THAT(p.Heuristic(), Not(IsEmpty()));
}

}  // namespace
}  // namespace stagecoach::testing::cuda
