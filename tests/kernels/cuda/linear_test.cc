#include "kernels/ops/linear.h"

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kernels/ops/linear_fixture.h"
#include "tests/kernels/ops/op_harness.h"
#include "tests/testing/status_matchers.h"

// Guarantees of a CUDA device's linear layers beyond those of all devices.
namespace stagecoach::kernels::cuda_linear_test {
namespace {

using ::stagecoach::testing::LinearTest;
using ::stagecoach::testing::NameOfLinear;
using ::stagecoach::testing::OpBench;
using ::stagecoach::testing::ProductBackends;
using ::stagecoach::testing::StatusIs;

class CudaLinear : public LinearTest {
 protected:
  void SetUp() override {
    LinearTest::SetUp();
    if (!IsSkipped()) bench_ = std::make_unique<OpBench>(backend().variants.front());
  }

  std::unique_ptr<OpBench> bench_;
};

TEST_P(CudaLinear, KeepsTheWorkspaceInProportion) {
  const LinearShape& s = shape();
  const int64_t tensors = 4 * (s.rows * s.inputs + s.inputs * s.outputs + s.rows * s.outputs);
  constexpr int64_t kRounding = 4 * 256;  // for three parts and the beginning
  EXPECT_LE(bench_->Create(s).workspace_bytes(), 2 * tensors + 4 * s.outputs + kRounding);
}

TEST_P(CudaLinear, GivesEqualShapesEqualWorkspaces) {
  const int64_t expected = bench_->Create(shape()).workspace_bytes();
  bench_->Create(LinearShape{.rows = 3, .inputs = 5, .outputs = 7});
  EXPECT_EQ(bench_->Create(shape()).workspace_bytes(), expected);
}

TEST_P(CudaLinear, RefusesMisalignedTensors) {
  LinearOp& op = bench_->Create(shape());
  Tensor x = bench_->Result({shape().rows + 1, shape().inputs});
  x.data = static_cast<std::byte*>(x.data) + 2;
  const Tensor w = bench_->Result(weights()), b = bench_->Result(bias());
  const Tensor z = bench_->Result(outputs()), y = bench_->Result(outputs());
  std::byte* const workspace = bench_->Workspace(op.workspace_bytes());
  bench_->Run([&](Stream& stream) {
    EXPECT_THAT(op.Forward(stream, x, w, b, z, y, workspace),
                StatusIs(absl::StatusCode::kInvalidArgument));
    return absl::OkStatus();
  });
}

INSTANTIATE_OP_TEST_ON(ProductBackends(), CudaLinear, NameOfLinear,
                       ::testing::Values(LinearShape{4, 8, 16}, LinearShape{64, 48, 32}));

}  // namespace
}  // namespace stagecoach::kernels::cuda_linear_test
