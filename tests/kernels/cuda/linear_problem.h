#ifndef STAGECOACH_TESTS_KERNELS_CUDA_LINEAR_PROBLEM_H_
#define STAGECOACH_TESTS_KERNELS_CUDA_LINEAR_PROBLEM_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/bfloat16.h"
#include "kernels/device.h"
#include "kernels/ops/linear.h"
#include "kernels/tensor.h"
#include "tests/kernels/cuda/gpu_bench.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/reference.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

// One linear layer and its operands, computed by the CUDA backend that CudaBackend::Load finds.
namespace stagecoach::testing {

// The operands of every call of one linear layer, each a number of the activation type. y and z are
// consistent with each other but not with x: backward is tested on operands of its own.
struct LinearProblem {
  LinearProblem(const kernels::LinearShape& shape_in, kernels::Precision precision_in)
      : shape(shape_in), precision(precision_in), type(kernels::ActivationType(precision_in)) {
    const int64_t R = shape.rows, I = shape.inputs, O = shape.outputs;
    x = Rounded(RandomNormal(R * I, 1));
    w = Rounded(RandomNormal(I * O, 2));
    if (shape.has_bias) b = Rounded(RandomNormal(O, 3));
    dy = Rounded(RandomNormal(R * O, 4));
    z = Rounded(RandomUniform(-6.0F, 6.0F, R * O, 5));
    for (const float value : z) {
      y.push_back(static_cast<float>(kernels::reference::Activate(shape.activation, value)));
    }
    y = Rounded(std::move(y));
    dw = RandomNormal(I * O, 6);
    if (shape.has_bias) db = RandomNormal(O, 7);
  }

  std::vector<float> Rounded(std::vector<float> values) const {
    if (type != kernels::DType::kBfloat16) return values;
    for (float& value : values) value = kernels::FromBfloat16(kernels::ToBfloat16(value));
    return values;
  }
  // With the rounding of a result that is off by at most `bound` to the activation type.
  double Stored(double value, double bound) const {
    return bound + PrecisionOf(type).unit_roundoff * (std::fabs(value) + bound);
  }

  const kernels::LinearShape shape;
  const kernels::Precision precision;
  const kernels::DType type;
  std::vector<float> x, w, b, dy, z, y, dw, db;
};

// A problem on a GPU. The outputs of an operation hold not-a-number before it.
class LinearOnGpu {
 public:
  explicit LinearOnGpu(const LinearProblem& problem)
      : problem_(problem), shape_(problem.shape), bench_(problem.precision) {
    auto op = bench_.ops().Create(shape_);
    STAGECOACH_CHECK_OK(op);
    op_ = *std::move(op);
    workspace_ = bench_.Workspace(op_->workspace_bytes());
  }

  GpuBench& bench() { return bench_; }

  struct ForwardResult {
    kernels::Tensor z, y;
  };
  ForwardResult Forward() {
    const kernels::Tensor z = keeps_z() ? Result(outputs()) : kernels::Tensor{};
    const kernels::Tensor y = Result(outputs());
    const kernels::Tensor x = Operand(inputs(), problem_.x), w = Weights();
    const kernels::Tensor b =
        shape_.has_bias ? Operand(kernels::Shape{shape_.outputs}, problem_.b) : kernels::Tensor{};
    EXPECT_OK(bench_.Run(
        [&](kernels::Stream& stream) { return op_->Forward(stream, x, w, b, z, y, workspace_); }));
    return {z, y};
  }

  struct InputGradient {
    kernels::Tensor dz, dx;
  };
  // dz in memory of its own, or that of z; dx computed, or not asked for.
  InputGradient BackwardInput(bool in_place = false, bool want_dx = true) {
    const bool keeps_y = !keeps_z() && shape_.activation != kernels::Activation::kNone;
    const kernels::Tensor y = keeps_y ? Operand(outputs(), problem_.y) : kernels::Tensor{};
    const kernels::Tensor z = keeps_z() ? Operand(outputs(), problem_.z) : kernels::Tensor{};
    const kernels::Tensor dz = in_place               ? z
                               : keeps_y || keeps_z() ? Result(outputs())
                                                      : kernels::Tensor{};
    const kernels::Tensor dx = want_dx ? Result(inputs()) : kernels::Tensor{};
    const kernels::Tensor dy = Operand(outputs(), problem_.dy), w = Weights();
    EXPECT_OK(bench_.Run([&](kernels::Stream& stream) {
      return op_->BackwardInput(stream, dy, y, z, w, dz, dx, workspace_);
    }));
    return {dz, dx};
  }

  struct WeightGradient {
    kernels::Tensor dw, db;
  };
  WeightGradient BackwardWeight(bool accumulate) {
    const kernels::Shape weights{shape_.inputs, shape_.outputs};
    const kernels::Shape biases{shape_.outputs};
    const kernels::Tensor dw = accumulate
                                   ? bench_.Operand(weights, problem_.dw, kernels::DType::kFloat32)
                                   : bench_.Result(weights, kernels::DType::kFloat32);
    const kernels::Tensor db = !shape_.has_bias ? kernels::Tensor{}
                               : accumulate
                                   ? bench_.Operand(biases, problem_.db, kernels::DType::kFloat32)
                                   : bench_.Result(biases, kernels::DType::kFloat32);
    const kernels::Tensor x = Operand(inputs(), problem_.x), dz = Operand(outputs(), problem_.dy);
    EXPECT_OK(bench_.Run([&](kernels::Stream& stream) {
      return op_->BackwardWeight(stream, x, dz, dw, db, accumulate, workspace_);
    }));
    return {dw, db};
  }

  struct Gradients {
    kernels::Tensor dz, dx, dw, db;
  };
  // By two calls or one; with the product for dw aside, while what follows uses the workspace.
  enum class Way : uint8_t { kApart, kAtOnce, kAside };
  // Input and weight gradients, added to what is there. dz is in the memory of z where that is
  // kept.
  Gradients Backward(Way way) {
    const kernels::Shape weights{shape_.inputs, shape_.outputs};
    const kernels::Tensor dy = Operand(outputs(), problem_.dy), w = Weights();
    const kernels::Tensor x = Operand(inputs(), problem_.x), dx = Result(inputs());
    const kernels::Tensor y = Operand(outputs(), problem_.y);
    const kernels::Tensor z = keeps_z() ? Operand(outputs(), problem_.z) : kernels::Tensor{};
    const kernels::Tensor dz = keeps_z() ? z
                               : shape_.activation == kernels::Activation::kNone
                                   ? dy
                                   : Result(outputs());
    const kernels::Tensor dw = bench_.Operand(weights, problem_.dw, kernels::DType::kFloat32);
    const kernels::Tensor db =
        shape_.has_bias ? bench_.Operand({shape_.outputs}, problem_.db, kernels::DType::kFloat32)
                        : kernels::Tensor{};
    const int64_t words = op_->workspace_bytes() / kernels::SizeOf(kernels::DType::kFloat32);
    const kernels::Tensor garbage = bench_.Result({words}, kernels::DType::kFloat32);
    std::byte* const aside = bench_.Workspace(op_->aside_bytes());
    EXPECT_OK(bench_.Run([&](kernels::Stream& stream) -> absl::Status {
      if (way == Way::kApart) {
        RETURN_IF_ERROR(op_->BackwardInput(stream, dy, y, z, w, dz, dx, workspace_));
        return op_->BackwardWeight(stream, x, dz, dw, db, /*accumulate=*/true, workspace_);
      }
      RETURN_IF_ERROR(op_->Backward(stream, dy, x, y, z, w, dz, dx, dw, db, /*accumulate=*/true,
                                    workspace_, way == Way::kAside ? aside : nullptr));
      if (way == Way::kAtOnce) return absl::OkStatus();
      RETURN_IF_ERROR(stream.Copy(workspace_, garbage.data, garbage.bytes()));
      return stream.JoinAside();
    }));
    return {dz, dx, dw, db};
  }

  // Without accumulation.
  WeightGradient ReplayBackwardWeight(int rounds) {
    const kernels::Tensor dw =
        bench_.Result({shape_.inputs, shape_.outputs}, kernels::DType::kFloat32);
    const kernels::Tensor db = bench_.Result({shape_.outputs}, kernels::DType::kFloat32);
    const kernels::Tensor x = Operand(inputs(), problem_.x), dz = Operand(outputs(), problem_.dy);
    auto recording = bench_.device().CreateRecording();
    STAGECOACH_CHECK_OK(recording);
    for (int round = 0; round < rounds; ++round) {
      EXPECT_OK(bench_.Run([&](kernels::Stream& stream) {
        return stream.Replay(**recording, [&] {
          return op_->BackwardWeight(stream, x, dz, dw, db, /*accumulate=*/false, workspace_);
        });
      }));
    }
    return {dw, db};
  }

 private:
  bool keeps_z() const { return KeepsZ(shape_.activation); }
  kernels::Shape inputs() const { return {shape_.rows, shape_.inputs}; }
  kernels::Shape outputs() const { return {shape_.rows, shape_.outputs}; }
  kernels::Tensor Operand(const kernels::Shape& shape, const std::vector<float>& values) {
    return bench_.Operand(shape, values, problem_.type);
  }
  kernels::Tensor Result(const kernels::Shape& shape) {
    return bench_.Result(shape, problem_.type);
  }
  kernels::Tensor Weights() {
    return Operand(kernels::Shape{shape_.inputs, shape_.outputs}, problem_.w);
  }

  const LinearProblem& problem_;
  const kernels::LinearShape shape_;
  GpuBench bench_;
  std::unique_ptr<kernels::LinearOp> op_;
  std::byte* workspace_ = nullptr;
};

// The layer on a device of its own, against the double-precision reference, within bounds that
// follow from the arithmetic.
void ExpectForward(const LinearProblem& problem);
void ExpectBackwardInput(const LinearProblem& problem);
void ExpectBackwardWeight(const LinearProblem& problem, bool accumulate);
void ExpectTheSameBitsAtOnceAndApart(const LinearProblem& problem);

}  // namespace stagecoach::testing

#endif  // STAGECOACH_TESTS_KERNELS_CUDA_LINEAR_PROBLEM_H_
