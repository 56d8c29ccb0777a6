#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "gtest/gtest.h"
#include "kernels/bfloat16.h"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/ops/images/product_convolution.h"
#include "kernels/ops/convolution.h"
#include "kernels/ops/ops.h"
#include "tests/kernels/cuda/backend_fixture.h"
#include "tests/testing/status_matchers.h"

// The parts of a convolution by a matrix of windows. tests/kernels/ops/convolution_test.cc tests
// what it computes.
namespace stagecoach::kernels::window_convolution_test {
namespace {

// Whole numbers, so that every sum of products is exact, in any order.
std::vector<int32_t> Pairs(int64_t numbers, int seed) {
  std::vector<int32_t> words;
  for (int64_t i = 0; i < numbers; i += 2) {
    const auto number = [&](int64_t j) {
      return static_cast<uint32_t>(ToBfloat16(static_cast<float>((j * seed + j / 3) % 5 - 2)));
    };
    words.push_back(static_cast<int32_t>(number(i) | number(i + 1) << 16));
  }
  return words;
}

struct Results {
  int64_t workspace_bytes = 0;
  std::vector<int32_t> y, dw, db;
};

absl::StatusOr<Results> ResultsWith(Device& device, const ConvolutionShape& shape,
                                    int64_t most_bytes) {
  ASSIGN_OR_RETURN(std::unique_ptr<ConvolutionOp> dx, device.ops().Create(shape));
  ASSIGN_OR_RETURN(const std::unique_ptr<ConvolutionOp> op,
                   CreateWindowConvolution(shape, BlasOf(device), std::move(dx), most_bytes));
  const int64_t weights = shape.outputs * shape.inputs * shape.kernel * shape.kernel;
  const int64_t outputs =
      shape.samples * shape.outputs * shape.output_height() * shape.output_width();
  std::vector<Buffer> buffers;
  const auto tensor = [&](int64_t numbers, DType type, int seed) -> absl::StatusOr<Tensor> {
    const std::vector<int32_t> values =
        Pairs(type == DType::kFloat32 ? 2 * numbers : numbers, seed);
    ASSIGN_OR_RETURN(Buffer buffer, device.Allocate(std::ssize(values) * 4));
    if (type == DType::kBfloat16) RETURN_IF_ERROR(Write(device, buffer, values));
    buffers.push_back(std::move(buffer));
    return Tensor{buffers.back().data(), type, Shape{numbers}};
  };
  ASSIGN_OR_RETURN(const Tensor x, tensor(shape.samples * shape.inputs * shape.height * shape.width,
                                          DType::kBfloat16, 7));
  ASSIGN_OR_RETURN(const Tensor w, tensor(weights, DType::kBfloat16, 3));
  ASSIGN_OR_RETURN(const Tensor b, tensor(shape.outputs, DType::kBfloat16, 2));
  ASSIGN_OR_RETURN(const Tensor dy, tensor(outputs, DType::kBfloat16, 11));
  ASSIGN_OR_RETURN(const Tensor y, tensor(outputs, DType::kBfloat16, 1));
  ASSIGN_OR_RETURN(const Tensor dw, tensor(weights, DType::kFloat32, 1));
  ASSIGN_OR_RETURN(const Tensor db, tensor(shape.outputs, DType::kFloat32, 1));
  ASSIGN_OR_RETURN(const Buffer workspace, device.Allocate(op->workspace_bytes()));
  RETURN_IF_ERROR(RunJob(device, [&](Stream& stream) -> absl::Status {
    RETURN_IF_ERROR(op->Forward(stream, x, w, b, y, workspace.data()));
    for (const bool accumulate : {false, true}) {
      RETURN_IF_ERROR(op->BackwardWeight(stream, x, dy, dw, db, accumulate, workspace.data()));
    }
    return absl::OkStatus();
  }));
  Results results = {.workspace_bytes = op->workspace_bytes()};
  ASSIGN_OR_RETURN(results.y, Read(device, buffers[4]));
  ASSIGN_OR_RETURN(results.dw, Read(device, buffers[5]));
  ASSIGN_OR_RETURN(results.db, Read(device, buffers[6]));
  return results;
}

using WindowConvolutionTest = CudaBackendTest;

TEST_F(WindowConvolutionTest, AnyPartsHaveTheSameResults) {
  constexpr ConvolutionShape kShape = {.samples = 5,
                                       .inputs = 3,
                                       .height = 7,
                                       .width = 6,
                                       .outputs = 8,
                                       .kernel = 3,
                                       .stride = 2,
                                       .padding = 1};
  ASSERT_TRUE(IsWindowConvolution(kShape, DType::kBfloat16));
  // 27 numbers of a window are 32 columns.
  const int64_t sample_bytes = kShape.output_height() * kShape.output_width() * 32 * 2;
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Device> device,
                       Backend().CreateDevice({.precision = Precision::kBfloat16}));
  ASSERT_OK_AND_ASSIGN(const Results whole, ResultsWith(*device, kShape, 5 * sample_bytes));
  for (const int64_t most_bytes : {int64_t{1}, 2 * sample_bytes, 5 * sample_bytes - 1}) {
    ASSERT_OK_AND_ASSIGN(const Results parts, ResultsWith(*device, kShape, most_bytes));
    EXPECT_EQ(parts.y, whole.y);
    EXPECT_EQ(parts.dw, whole.dw);
    EXPECT_EQ(parts.db, whole.db);
    EXPECT_LE(parts.workspace_bytes, whole.workspace_bytes);
  }
}

TEST(WindowConvolution, IsOfFewChannelsAndSmallWindows) {
  const auto is = [](auto change, DType type = DType::kBfloat16) {
    ConvolutionShape stem = {
        .samples = 256, .inputs = 3, .height = 224, .width = 224, .outputs = 64, .kernel = 7};
    stem.stride = 2;
    stem.padding = 3;
    change(stem);
    return IsWindowConvolution(stem, type);
  };
  EXPECT_TRUE(is([](auto&) {}));
  EXPECT_TRUE(is([](auto& s) { s.inputs = 4; }));
  EXPECT_TRUE(is([](auto& s) { s.kernel = s.stride = 16; }));  // patches
  EXPECT_FALSE(is([](auto&) {}, DType::kFloat32));
  EXPECT_FALSE(is([](auto& s) { s.inputs = 5; }));
  EXPECT_FALSE(is([](auto& s) { s.kernel = 1; }));
  EXPECT_FALSE(is([](auto& s) { s.outputs = 60; }));
  EXPECT_FALSE(is([](auto& s) { s.groups = 3; }));
  EXPECT_FALSE(is([](auto& s) { s.kernel = 27; }));              // 2,192 columns
  EXPECT_FALSE(is([](auto& s) { s.height = s.width = 2048; }));  // 319 MB a sample
}

}  // namespace
}  // namespace stagecoach::kernels::window_convolution_test
