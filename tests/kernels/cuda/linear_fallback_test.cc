#include <cublasLt.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/device.h"
#include "kernels/ops/linear.h"
#include "tests/kernels/cuda/gpu_bench.h"
#include "tests/kernels/cuda/linear_cases.h"
#include "tests/kernels/cuda/linear_problem.h"
#include "tests/testing/cuda/cublas_lt_faults.h"
#include "tests/testing/cuda/stand_in.h"
#include "tests/testing/status_matchers.h"

// Linear layers where cuBLASLt does not have a fused epilogue: for no shape is that a reason not to
// compute.
namespace stagecoach::kernels::linear_fallback_test {
namespace {

namespace cuda = ::stagecoach::testing::cuda;
using ::stagecoach::testing::AllActivations;
using ::stagecoach::testing::AllPrecisions;
using ::stagecoach::testing::ExpectBackwardInput;
using ::stagecoach::testing::ExpectBackwardWeight;
using ::stagecoach::testing::ExpectForward;
using ::stagecoach::testing::GpuBench;
using ::stagecoach::testing::GpuTest;
using ::stagecoach::testing::LinearCaseName;
using ::stagecoach::testing::LinearCaseTest;
using ::stagecoach::testing::LinearExtents;
using ::stagecoach::testing::StatusIs;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

bool HasEpilogue(const cuda::Product& product) {
  return product.epilogue != CUBLASLT_EPILOGUE_DEFAULT;
}

class CudaLinearWithoutEpilogues : public LinearCaseTest {
 protected:
  CudaLinearWithoutEpilogues() {
    cuda::Reset({});
    cuda::SetBlasFaults({.lacks = HasEpilogue});
  }
  ~CudaLinearWithoutEpilogues() override { cuda::SetBlasFaults({}); }
};

TEST_P(CudaLinearWithoutEpilogues, ForwardMatchesReference) { ExpectForward(problem_); }

TEST_P(CudaLinearWithoutEpilogues, BackwardInputMatchesReference) { ExpectBackwardInput(problem_); }

TEST_P(CudaLinearWithoutEpilogues, BackwardWeightOverwritesWithReference) {
  ExpectBackwardWeight(problem_, /*accumulate=*/false);
}

TEST_P(CudaLinearWithoutEpilogues, BackwardWeightAddsReference) {
  ExpectBackwardWeight(problem_, /*accumulate=*/true);
}

TEST_P(CudaLinearWithoutEpilogues, NeedsTheWorkspaceThatItNeedsWithThem) {
  GpuBench without(problem_.precision);
  ASSERT_OK_AND_ASSIGN(const auto op, without.ops().Create(problem_.shape));
  cuda::SetBlasFaults({});
  GpuBench with(problem_.precision);
  ASSERT_OK_AND_ASSIGN(const auto fused, with.ops().Create(problem_.shape));
  EXPECT_EQ(op->workspace_bytes(), fused->workspace_bytes());
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, CudaLinearWithoutEpilogues,
    ::testing::Combine(::testing::Values(LinearExtents{1, 1, 1}, LinearExtents{1, 7, 1},
                                         LinearExtents{3, 1, 5}, LinearExtents{5, 4, 1},
                                         LinearExtents{1, 16, 8}, LinearExtents{17, 33, 65},
                                         LinearExtents{64, 48, 32}),
                       AllActivations(), AllPrecisions()),
    LinearCaseName);

class CudaLinearFallback : public GpuTest {
 protected:
  CudaLinearFallback() { cuda::Reset({}); }
  ~CudaLinearFallback() override { cuda::SetBlasFaults({}); }
};

TEST_F(CudaLinearFallback, IsForTheShapeThatLacksTheEpilogueAlone) {
  cuda::SetBlasFaults({.lacks = [](const cuda::Product& product) {
    return HasEpilogue(product) && product.m == 24;
  }});
  GpuBench bench(Precision::kFloat32);
  ASSERT_OK(bench.ops().Create(LinearShape{.rows = 8, .inputs = 16, .outputs = 24}));
  ASSERT_OK(bench.ops().Create(LinearShape{.rows = 8, .inputs = 16, .outputs = 32}));
  const std::vector<std::string> choices = bench.device().choices();
  EXPECT_THAT(choices,
              Contains(AllOf(StartsWith("product A B fp32 24x8x16 -> fp32, bias, fp32, on "),
                             EndsWith(": none"))));
  EXPECT_THAT(choices,
              Contains(AllOf(StartsWith("product A B fp32 24x8x16 -> fp32, none, fp32, on "),
                             HasSubstr(": id "))));
  EXPECT_THAT(choices,
              Contains(AllOf(StartsWith("product A B fp32 32x8x16 -> fp32, bias, fp32, on "),
                             HasSubstr(": id "))));
}

TEST_F(CudaLinearFallback, SaysWhichProductTheLibraryDoesNotHaveAtAll) {
  cuda::SetBlasFaults({.lacks = [](const cuda::Product&) { return true; }});
  GpuBench bench(Precision::kBfloat16);
  EXPECT_THAT(bench.ops().Create(LinearShape{.rows = 3, .inputs = 5, .outputs = 7}),
              StatusIs(absl::StatusCode::kUnimplemented,
                       AllOf(HasSubstr("3 rows, 5 inputs, 7 outputs"), HasSubstr("bf16 7x3x5"))));
}

}  // namespace
}  // namespace stagecoach::kernels::linear_fallback_test
