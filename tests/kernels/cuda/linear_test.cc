#include "kernels/ops/linear.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kernels/cuda/gpu_bench.h"
#include "tests/kernels/cuda/linear_cases.h"
#include "tests/kernels/cuda/linear_problem.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::kernels::linear_test {
namespace {

using ::stagecoach::testing::AllActivations;
using ::stagecoach::testing::AllPrecisions;
using ::stagecoach::testing::ExpectBackwardInput;
using ::stagecoach::testing::ExpectBackwardWeight;
using ::stagecoach::testing::ExpectForward;
using ::stagecoach::testing::ExpectTheSameBitsAtOnceAndApart;
using ::stagecoach::testing::GpuBench;
using ::stagecoach::testing::GpuTest;
using ::stagecoach::testing::LinearCaseName;
using ::stagecoach::testing::LinearCaseTest;
using ::stagecoach::testing::LinearExtents;
using ::stagecoach::testing::LinearOnGpu;
using ::stagecoach::testing::LinearProblem;
using ::stagecoach::testing::StatusIs;

class CudaLinear : public LinearCaseTest {};

TEST_P(CudaLinear, ForwardMatchesReference) { ExpectForward(problem_); }

TEST_P(CudaLinear, BackwardInputMatchesReference) { ExpectBackwardInput(problem_); }

TEST_P(CudaLinear, BackwardWeightOverwritesWithReference) {
  ExpectBackwardWeight(problem_, /*accumulate=*/false);
}

TEST_P(CudaLinear, BackwardWeightAddsReference) {
  ExpectBackwardWeight(problem_, /*accumulate=*/true);
}

TEST_P(CudaLinear, HasTheSameBitsAtOnceAndApart) { ExpectTheSameBitsAtOnceAndApart(problem_); }

// One row, one input, one output; odd extents, multiples of 8 and 16, and mixtures of them; many
// rows, so that sums of columns are cut into blocks.
INSTANTIATE_TEST_SUITE_P(
    Shapes, CudaLinear,
    ::testing::Combine(::testing::Values(LinearExtents{1, 1, 1}, LinearExtents{1, 7, 1},
                                         LinearExtents{3, 1, 5}, LinearExtents{5, 4, 1},
                                         LinearExtents{1, 16, 8}, LinearExtents{17, 33, 65},
                                         LinearExtents{16, 24, 37}, LinearExtents{9, 13, 40},
                                         LinearExtents{8, 8, 8}, LinearExtents{64, 48, 32},
                                         LinearExtents{33, 784, 10}, LinearExtents{700, 8, 24},
                                         LinearExtents{700, 5, 3}),
                       AllActivations(), AllPrecisions()),
    LinearCaseName);

class CudaLinearWithoutBias
    : public GpuTest,
      public ::testing::WithParamInterface<std::tuple<Activation, Precision>> {};

TEST_P(CudaLinearWithoutBias, MatchesReference) {
  const auto& [activation, precision] = GetParam();
  for (const int64_t rows : {17, 300}) {
    const LinearProblem problem(
        {.rows = rows, .inputs = 24, .outputs = 40, .activation = activation, .has_bias = false},
        precision);
    ExpectForward(problem);
    ExpectBackwardInput(problem);
    ExpectBackwardWeight(problem, /*accumulate=*/false);
    ExpectBackwardWeight(problem, /*accumulate=*/true);
    ExpectTheSameBitsAtOnceAndApart(problem);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, CudaLinearWithoutBias,
                         ::testing::Combine(AllActivations(), AllPrecisions()),
                         [](const auto& test) {
                           return absl::StrCat(ActivationName(std::get<0>(test.param)), "_",
                                               PrecisionName(std::get<1>(test.param)));
                         });

class CudaLinearBits : public GpuTest, public ::testing::WithParamInterface<Precision> {
 protected:
  LinearProblem ProblemWith(Activation activation, int64_t outputs = 40) const {
    return LinearProblem({.rows = 24, .inputs = 32, .outputs = outputs, .activation = activation},
                         GetParam());
  }
};

TEST_P(CudaLinearBits, AreTheSameOnEveryRun) {
  // Both ways of computing what goes beside products.
  for (const int64_t outputs : {40, 41}) {
    const LinearProblem problem = ProblemWith(Activation::kGelu, outputs);
    LinearOnGpu one(problem), other(problem);
    const auto bits = [](LinearOnGpu& gpu) {
      std::vector<std::vector<std::byte>> bytes;
      const auto [z, y] = gpu.Forward();
      const auto [dz, dx] = gpu.BackwardInput();
      const auto [dw, db] = gpu.BackwardWeight(/*accumulate=*/true);
      for (const Tensor& tensor : {z, y, dz, dx, dw, db}) {
        bytes.push_back(gpu.bench().Bytes(tensor));
      }
      return bytes;
    };
    EXPECT_EQ(bits(one), bits(other)) << outputs << " outputs";
  }
}

TEST_P(CudaLinearBits, OfDzAreTheSameWithoutDx) {
  for (const Activation activation : {Activation::kRelu, Activation::kGelu}) {
    const LinearProblem problem = ProblemWith(activation);
    LinearOnGpu both(problem), dz_only(problem);
    EXPECT_EQ(dz_only.bench().Bytes(dz_only.BackwardInput(/*in_place=*/false, false).dz),
              both.bench().Bytes(both.BackwardInput().dz))
        << ActivationName(activation);
  }
}

TEST_P(CudaLinearBits, AreTheSameWhereDzIsTheMemoryOfZ) {
  const LinearProblem problem = ProblemWith(Activation::kGelu);
  LinearOnGpu separate(problem), in_place(problem);
  const auto expected = separate.BackwardInput();
  const auto actual = in_place.BackwardInput(/*in_place=*/true);
  EXPECT_EQ(in_place.bench().Bytes(actual.dz), separate.bench().Bytes(expected.dz));
  EXPECT_EQ(in_place.bench().Bytes(actual.dx), separate.bench().Bytes(expected.dx));
}

// As CUDA graphs, of which the first is recorded in the second round.
TEST_P(CudaLinearBits, AreTheSameWhenReplayed) {
  const LinearProblem problem = ProblemWith(Activation::kGelu);
  LinearOnGpu gpu(problem);
  const auto expected = gpu.BackwardWeight(/*accumulate=*/false);
  const auto actual = gpu.ReplayBackwardWeight(/*rounds=*/3);
  EXPECT_EQ(gpu.bench().Bytes(actual.dw), gpu.bench().Bytes(expected.dw));
  EXPECT_EQ(gpu.bench().Bytes(actual.db), gpu.bench().Bytes(expected.db));
}

INSTANTIATE_TEST_SUITE_P(Precisions, CudaLinearBits,
                         ::testing::Values(Precision::kFloat32, Precision::kTf32,
                                           Precision::kBfloat16),
                         [](const auto& test) { return PrecisionName(test.param); });

class CudaLinearMaker : public GpuTest {
 protected:
  // Not before the test is known to have a GPU.
  GpuBench& bench() {
    if (bench_ == nullptr) bench_ = std::make_unique<GpuBench>(Precision::kBfloat16);
    return *bench_;
  }
  absl::StatusOr<std::unique_ptr<LinearOp>> Create(const LinearShape& shape) {
    return bench().ops().Create(shape);
  }

 private:
  std::unique_ptr<GpuBench> bench_;
};

TEST_F(CudaLinearMaker, RefusesExtentsThatAreNone) {
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  for (const LinearShape& shape :
       {LinearShape{.rows = 0}, LinearShape{.rows = -1}, LinearShape{.inputs = 0},
        LinearShape{.inputs = -1}, LinearShape{.outputs = 0}, LinearShape{.outputs = -1},
        LinearShape{.rows = kHuge}, LinearShape{.inputs = kHuge}, LinearShape{.outputs = kHuge}}) {
    EXPECT_THAT(Create(shape), StatusIs(absl::StatusCode::kInvalidArgument))
        << absl::StrCat(shape.rows, "x", shape.inputs, "x", shape.outputs);
  }
}

TEST_F(CudaLinearMaker, KeepsTheWorkspaceInProportion) {
  const LinearShape shape{.rows = 4, .inputs = 8, .outputs = 16};
  ASSERT_OK_AND_ASSIGN(const auto op, Create(shape));
  const int64_t tensors = 4 * (4 * 8 + 8 * 16 + 4 * 16);
  constexpr int64_t kRounding = 4 * 256;  // of three parts and the beginning
  EXPECT_LE(op->workspace_bytes(), 2 * tensors + 4 * 16 + kRounding);
}

TEST_F(CudaLinearMaker, GivesEqualShapesEqualWorkspaces) {
  ASSERT_OK_AND_ASSIGN(const auto one, Create({.rows = 64, .inputs = 48, .outputs = 32}));
  ASSERT_OK_AND_ASSIGN(const auto between, Create({.rows = 3, .inputs = 5, .outputs = 7}));
  ASSERT_OK_AND_ASSIGN(const auto other, Create({.rows = 64, .inputs = 48, .outputs = 32}));
  EXPECT_EQ(one->workspace_bytes(), other->workspace_bytes());
}

TEST_F(CudaLinearMaker, MakesOperationsThatRefuseMisalignedTensors) {
  const LinearShape shape{.rows = 8, .inputs = 8, .outputs = 8};
  ASSERT_OK_AND_ASSIGN(const auto op, Create(shape));
  const auto tensor = [&] { return bench().Result({9, 8}, DType::kBfloat16); };
  const Tensor y = tensor(), w = tensor(), b = tensor();
  Tensor x = tensor();
  x.data = static_cast<std::byte*>(x.data) + 2;
  std::byte* const workspace = bench().Workspace(op->workspace_bytes());
  EXPECT_THAT(bench().Run([&](Stream& stream) {
    return op->Forward(stream, x, w, b, Tensor{}, y, workspace);
  }),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace stagecoach::kernels::linear_test
