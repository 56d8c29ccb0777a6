#include "kernels/ops/linear.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

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
using ::testing::AllOf;
using ::testing::Ge;
using ::testing::Le;

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

class CudaQuantizedLinear : public LinearTest {
 protected:
  static LinearShape Of(int64_t rows, int64_t inputs, int64_t outputs,
                        const std::vector<int64_t>& parts = {}) {
    return {.rows = rows,
            .inputs = inputs,
            .outputs = outputs,
            .quantized = {{Quantization::kNf4, inputs, outputs, parts}},
            .forward_only = true};
  }
};

// From the shape alone: what few rows multiply as it is stored takes no scratch, unless there are
// backward passes, or so many inputs that the sums of pieces are stored; everything else is
// expanded.
TEST_P(CudaQuantizedLinear, HasRoomForTheValuesOnlyIfItExpandsThem) {
  OpBench bench(backend().variants.front());
  const auto expands = [&](const LinearShape& shape) {
    LinearOp& op = bench.Create(shape);
    const int64_t value_bytes = shape.inputs * shape.outputs * SizeOf(type());
    if (op.workspace_bytes() == 0) {
      EXPECT_FALSE(op.expands_weight());
      return false;
    }
    EXPECT_GE(op.workspace_bytes(), value_bytes);
    return op.expands_weight();
  };
  EXPECT_FALSE(expands(Of(1, 64, 32)));
  EXPECT_FALSE(expands(Of(16, 192, 96, {64, 31, 1})));
  EXPECT_TRUE(expands(Of(17, 64, 32)));
  EXPECT_TRUE(expands(Of(4, 96, 32)));
  EXPECT_TRUE(expands(Of(4, 64, 48)));
  EXPECT_TRUE(expands(Of(4, 64, 32, std::vector<int64_t>(32, 1))));
  LinearShape shape = Of(4, 64, 48);
  shape.quantized->kind = Quantization::kInt8;
  EXPECT_FALSE(expands(shape));
  shape.forward_only = false;
  EXPECT_GE(bench.Create(shape).workspace_bytes(), 64 * 48 * SizeOf(type()));

  const LinearOp& of_pieces = bench.Create(Of(4, 16384, 32));
  EXPECT_FALSE(of_pieces.expands_weight());
  EXPECT_THAT(of_pieces.workspace_bytes(),
              AllOf(Ge(2 * 4 * 32 * SizeOf(DType::kFloat32)), Le(4096)));
}

TEST_P(CudaQuantizedLinear, HasNoIndependentRowsIfItExpandsTheWeight) {
  OpBench bench(backend().variants.front());
  LinearShape shape = Of(16, 64, 32);
  shape.independent_rows = true;
  EXPECT_OK(bench.ops().Create(shape).status());
  shape.rows = 17;
  EXPECT_THAT(bench.ops().Create(shape), StatusIs(absl::StatusCode::kUnimplemented));
}

TEST_P(CudaQuantizedLinear, RefusesMisalignedTensors) {
  OpBench bench(backend().variants.front());
  LinearOp& op = bench.Create(shape());
  const Tensor x = bench.Result(inputs()), b = bench.Result(bias()), y = bench.Result(outputs());
  const Tensor w = bench.ResultOf(DType::kUint8, {shape().quantized->bytes() + 16});
  const auto moved = [](Tensor tensor) {
    tensor.data = static_cast<std::byte*>(tensor.data) + 8;
    return tensor;
  };
  bench.Run([&](Stream& stream) {
    EXPECT_THAT(op.Forward(stream, moved(x), w, b, {}, y, nullptr),
                StatusIs(absl::StatusCode::kInvalidArgument, "multiples of 16"));
    EXPECT_THAT(op.Forward(stream, x, moved(w), b, {}, y, nullptr),
                StatusIs(absl::StatusCode::kInvalidArgument, "multiples of 16"));
    return absl::OkStatus();
  });
}

INSTANTIATE_OP_TEST_ON(ProductBackends(), CudaQuantizedLinear, NameOfLinear,
                       ::testing::Values(LinearShape{.rows = 4,
                                                     .inputs = 64,
                                                     .outputs = 32,
                                                     .quantized = {{Quantization::kInt8, 64, 32}},
                                                     .forward_only = true}));

}  // namespace
}  // namespace stagecoach::kernels::cuda_linear_test
