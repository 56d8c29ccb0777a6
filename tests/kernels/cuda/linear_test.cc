#include "kernels/ops/linear.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/bfloat16.h"
#include "kernels/reference/reference.h"
#include "tests/kernels/cuda/gpu_bench.h"
#include "tests/testing/close_to.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace stagecoach::kernels {
namespace {

using reference::Vector;
using ::stagecoach::testing::CloseTo;
using ::stagecoach::testing::DotBound;
using ::stagecoach::testing::GeluBound;
using ::stagecoach::testing::GeluDerivativeBound;
using ::stagecoach::testing::GpuBench;
using ::stagecoach::testing::GpuTest;
using ::stagecoach::testing::Magnitudes;
using ::stagecoach::testing::PrecisionOf;
using ::stagecoach::testing::RandomNormal;
using ::stagecoach::testing::RandomUniform;
using ::stagecoach::testing::StatusIs;
using ::stagecoach::testing::ToDouble;

// What products do to their operands: with tf32 they keep 10 bits after the leading one, and which
// way they round is not said.
double OperandError(Precision precision) { return precision == Precision::kTf32 ? 0x1p-10 : 0.0; }

// A bound for a sum of `terms` products of operands, where `sum_abs` is the sum of their absolute
// values.
double ProductBound(Precision precision, int64_t terms, double sum_abs) {
  const double operand = OperandError(precision);
  const double moved = (2.0 + operand) * operand * sum_abs;
  return moved + DotBound(terms, sum_abs + moved);
}

// The operands of every call of one linear layer, each a number of the activation type. y and z are
// consistent with each other but not with x: backward is tested on operands of its own.
struct Problem {
  Problem(const LinearShape& shape_in, Precision precision_in)
      : shape(shape_in), precision(precision_in), type(ActivationType(precision_in)) {
    const int64_t R = shape.rows, I = shape.inputs, O = shape.outputs;
    x = Rounded(RandomNormal(R * I, 1));
    w = Rounded(RandomNormal(I * O, 2));
    b = Rounded(RandomNormal(O, 3));
    dy = Rounded(RandomNormal(R * O, 4));
    z = Rounded(RandomUniform(-6.0F, 6.0F, R * O, 5));
    for (const float value : z) y.push_back(std::max(0.0F, value));
    dw = RandomNormal(I * O, 6);
    db = RandomNormal(O, 7);
  }

  std::vector<float> Rounded(std::vector<float> values) const {
    if (type != DType::kBfloat16) return values;
    for (float& value : values) value = FromBfloat16(ToBfloat16(value));
    return values;
  }
  // With the rounding of a result that is off by at most `bound` to the activation type.
  double Stored(double value, double bound) const {
    return bound + PrecisionOf(type).unit_roundoff * (std::fabs(value) + bound);
  }

  const LinearShape shape;
  const Precision precision;
  const DType type;
  std::vector<float> x, w, b, dy, z, y, dw, db;
};

// A problem on a GPU. The outputs of an operation hold not-a-number before it.
class OnGpu {
 public:
  explicit OnGpu(const Problem& problem)
      : problem_(problem), shape_(problem.shape), bench_(problem.precision) {
    auto op = bench_.ops().CreateLinear(shape_);
    STAGECOACH_CHECK_OK(op);
    op_ = *std::move(op);
    workspace_ = bench_.Workspace(op_->workspace_bytes());
  }

  GpuBench& bench() { return bench_; }

  struct ForwardResult {
    Tensor z, y;
  };
  ForwardResult Forward() {
    const Tensor z = gelu() ? Result(outputs()) : Tensor{};
    const Tensor y = Result(outputs());
    const Tensor x = Operand(inputs(), problem_.x), w = Weights();
    const Tensor b = Operand(Shape{shape_.outputs}, problem_.b);
    EXPECT_OK(bench_.Run(
        [&](Stream& stream) { return op_->Forward(stream, x, w, b, z, y, workspace_); }));
    return {z, y};
  }

  struct InputGradient {
    Tensor dz, dx;
  };
  // dz in memory of its own, or that of z; dx computed, or not asked for.
  InputGradient BackwardInput(bool in_place = false, bool want_dx = true) {
    const bool relu = shape_.activation == Activation::kRelu;
    const Tensor y = relu ? Operand(outputs(), problem_.y) : Tensor{};
    const Tensor z = gelu() ? Operand(outputs(), problem_.z) : Tensor{};
    const Tensor dz = in_place ? z : relu || gelu() ? Result(outputs()) : Tensor{};
    const Tensor dx = want_dx ? Result(inputs()) : Tensor{};
    const Tensor dy = Operand(outputs(), problem_.dy), w = Weights();
    EXPECT_OK(bench_.Run([&](Stream& stream) {
      return op_->BackwardInput(stream, dy, y, z, w, dz, dx, workspace_);
    }));
    return {dz, dx};
  }

  struct WeightGradient {
    Tensor dw, db;
  };
  WeightGradient BackwardWeight(bool accumulate) {
    const Shape weights{shape_.inputs, shape_.outputs};
    const Shape biases{shape_.outputs};
    const Tensor dw = accumulate ? bench_.Operand(weights, problem_.dw, DType::kFloat32)
                                 : bench_.Result(weights, DType::kFloat32);
    const Tensor db = accumulate ? bench_.Operand(biases, problem_.db, DType::kFloat32)
                                 : bench_.Result(biases, DType::kFloat32);
    const Tensor x = Operand(inputs(), problem_.x), dz = Operand(outputs(), problem_.dy);
    EXPECT_OK(bench_.Run([&](Stream& stream) {
      return op_->BackwardWeight(stream, x, dz, dw, db, accumulate, workspace_);
    }));
    return {dw, db};
  }

  // Without accumulation.
  WeightGradient ReplayBackwardWeight(int rounds) {
    const Tensor dw = bench_.Result({shape_.inputs, shape_.outputs}, DType::kFloat32);
    const Tensor db = bench_.Result({shape_.outputs}, DType::kFloat32);
    const Tensor x = Operand(inputs(), problem_.x), dz = Operand(outputs(), problem_.dy);
    auto recording = bench_.device().CreateRecording();
    STAGECOACH_CHECK_OK(recording);
    for (int round = 0; round < rounds; ++round) {
      EXPECT_OK(bench_.Run([&](Stream& stream) {
        return stream.Replay(**recording, [&] {
          return op_->BackwardWeight(stream, x, dz, dw, db, /*accumulate=*/false, workspace_);
        });
      }));
    }
    return {dw, db};
  }

 private:
  bool gelu() const { return shape_.activation == Activation::kGelu; }
  Shape inputs() const { return {shape_.rows, shape_.inputs}; }
  Shape outputs() const { return {shape_.rows, shape_.outputs}; }
  Tensor Operand(const Shape& shape, const std::vector<float>& values) {
    return bench_.Operand(shape, values, problem_.type);
  }
  Tensor Result(const Shape& shape) { return bench_.Result(shape, problem_.type); }
  Tensor Weights() { return Operand(Shape{shape_.inputs, shape_.outputs}, problem_.w); }

  const Problem& problem_;
  const LinearShape shape_;
  GpuBench bench_;
  std::unique_ptr<LinearOp> op_;
  std::byte* workspace_ = nullptr;
};

// The same layer without its activation, for sums of absolute values.
LinearShape Plain(LinearShape shape) {
  shape.activation = Activation::kNone;
  return shape;
}

using Extents = std::tuple<int64_t, int64_t, int64_t>;  // rows, inputs, outputs

using Case = std::tuple<Extents, Activation, Precision>;

class CudaLinear : public GpuTest, public ::testing::WithParamInterface<Case> {
 protected:
  static Problem ProblemOfCase() {
    const auto& [extents, activation, precision] = GetParam();
    const auto& [rows, inputs, outputs] = extents;
    return Problem({.rows = rows, .inputs = inputs, .outputs = outputs, .activation = activation},
                   precision);
  }

  void ExpectWeightGradient(bool accumulate) {
    OnGpu gpu(problem_);
    const auto actual = gpu.BackwardWeight(accumulate);
    const Vector x = ToDouble(problem_.x), dz = ToDouble(problem_.dy);
    auto expected = reference::LinearBackwardWeight(problem_.shape, x, dz);
    auto sum_abs = reference::LinearBackwardWeight(problem_.shape, Magnitudes(x), Magnitudes(dz));
    if (accumulate) {
      expected.dw = reference::Add(expected.dw, ToDouble(problem_.dw));
      expected.db = reference::Add(expected.db, ToDouble(problem_.db));
      sum_abs.dw = reference::Add(sum_abs.dw, Magnitudes(ToDouble(problem_.dw)));
      sum_abs.db = reference::Add(sum_abs.db, Magnitudes(ToDouble(problem_.db)));
    }
    // One more term for what was there, one more rounding where a sum is stored in between.
    const auto bounds = [&](Vector sums) {
      for (double& sum : sums) sum = ProductBound(problem_.precision, problem_.shape.rows + 2, sum);
      return sums;
    };
    EXPECT_THAT(gpu.bench().Values(actual.dw), CloseTo(expected.dw, bounds(sum_abs.dw)));
    EXPECT_THAT(gpu.bench().Values(actual.db), CloseTo(expected.db, bounds(sum_abs.db)));
  }

  const Problem problem_ = ProblemOfCase();
};

TEST_P(CudaLinear, ForwardMatchesReference) {
  OnGpu gpu(problem_);
  const auto actual = gpu.Forward();
  const Vector x = ToDouble(problem_.x), w = ToDouble(problem_.w), b = ToDouble(problem_.b);
  const auto expected = reference::LinearForward(problem_.shape, x, w, b);
  const Vector sum_abs =
      reference::LinearForward(Plain(problem_.shape), Magnitudes(x), Magnitudes(w), Magnitudes(b))
          .z;
  Vector z_bound, y_bound;
  for (size_t k = 0; k < sum_abs.size(); ++k) {
    z_bound.push_back(problem_.Stored(
        expected.z[k], ProductBound(problem_.precision, problem_.shape.inputs + 1, sum_abs[k])));
    y_bound.push_back(problem_.shape.activation == Activation::kGelu
                          ? problem_.Stored(expected.y[k], GeluBound(expected.z[k], z_bound[k]))
                          : z_bound[k]);
  }
  EXPECT_THAT(gpu.bench().Values(actual.y), CloseTo(expected.y, y_bound));
  if (!actual.z.empty()) {
    EXPECT_THAT(gpu.bench().Values(actual.z), CloseTo(expected.z, z_bound));
  }
}

TEST_P(CudaLinear, BackwardInputMatchesReference) {
  OnGpu gpu(problem_);
  const auto actual = gpu.BackwardInput();
  const Vector dy = ToDouble(problem_.dy), z = ToDouble(problem_.z), w = ToDouble(problem_.w);
  const auto expected = reference::LinearBackwardInput(problem_.shape, dy, z, w);
  Vector dz_bound, dz_largest;
  for (size_t k = 0; k < dy.size(); ++k) {
    const bool gelu = problem_.shape.activation == Activation::kGelu;
    dz_bound.push_back(
        gelu ? problem_.Stored(expected.dz[k], std::fabs(dy[k]) * GeluDerivativeBound(z[k]) +
                                                   DotBound(1, std::fabs(expected.dz[k])))
             : 0.0);
    dz_largest.push_back(std::fabs(expected.dz[k]) + dz_bound[k]);
  }
  const Vector w_abs = Magnitudes(w);
  const auto times_w = [&](const Vector& dz) {
    return reference::LinearBackwardInput(Plain(problem_.shape), dz, z, w_abs).dx;
  };
  const Vector propagated = times_w(dz_bound), sum_abs = times_w(dz_largest);
  Vector dx_bound;
  for (size_t k = 0; k < sum_abs.size(); ++k) {
    dx_bound.push_back(problem_.Stored(
        expected.dx[k],
        propagated[k] + ProductBound(problem_.precision, problem_.shape.outputs, sum_abs[k])));
  }
  EXPECT_THAT(gpu.bench().Values(actual.dx), CloseTo(expected.dx, dx_bound));
  if (!actual.dz.empty()) {
    EXPECT_THAT(gpu.bench().Values(actual.dz), CloseTo(expected.dz, dz_bound));
  }
}

TEST_P(CudaLinear, BackwardWeightOverwritesWithReference) {
  ExpectWeightGradient(/*accumulate=*/false);
}

TEST_P(CudaLinear, BackwardWeightAddsReference) { ExpectWeightGradient(/*accumulate=*/true); }

std::string CaseName(const ::testing::TestParamInfo<CudaLinear::ParamType>& info) {
  const auto& [extents, activation, precision] = info.param;
  const auto& [rows, inputs, outputs] = extents;
  return absl::StrCat(rows, "x", inputs, "x", outputs, "_", ActivationName(activation), "_",
                      PrecisionName(precision));
}

// One row, one input, one output; odd extents, multiples of 8 and 16, and mixtures of them; many
// rows, so that sums of columns are cut into blocks.
INSTANTIATE_TEST_SUITE_P(
    Shapes, CudaLinear,
    ::testing::Combine(
        ::testing::Values(Extents{1, 1, 1}, Extents{1, 7, 1}, Extents{3, 1, 5}, Extents{5, 4, 1},
                          Extents{1, 16, 8}, Extents{17, 33, 65}, Extents{16, 24, 37},
                          Extents{9, 13, 40}, Extents{8, 8, 8}, Extents{64, 48, 32},
                          Extents{33, 784, 10}, Extents{700, 8, 24}, Extents{700, 5, 3}),
        ::testing::Values(Activation::kNone, Activation::kRelu, Activation::kGelu),
        ::testing::Values(Precision::kFloat32, Precision::kTf32, Precision::kBfloat16)),
    CaseName);

class CudaLinearBits : public GpuTest, public ::testing::WithParamInterface<Precision> {
 protected:
  Problem ProblemWith(Activation activation, int64_t outputs = 40) const {
    return Problem({.rows = 24, .inputs = 32, .outputs = outputs, .activation = activation},
                   GetParam());
  }
};

TEST_P(CudaLinearBits, AreTheSameOnEveryRun) {
  // Both ways of computing what goes beside products.
  for (const int64_t outputs : {40, 41}) {
    const Problem problem = ProblemWith(Activation::kGelu, outputs);
    OnGpu one(problem), other(problem);
    const auto bits = [](OnGpu& gpu) {
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
    const Problem problem = ProblemWith(activation);
    OnGpu both(problem), dz_only(problem);
    EXPECT_EQ(dz_only.bench().Bytes(dz_only.BackwardInput(/*in_place=*/false, false).dz),
              both.bench().Bytes(both.BackwardInput().dz))
        << ActivationName(activation);
  }
}

TEST_P(CudaLinearBits, AreTheSameWhereDzIsTheMemoryOfZ) {
  const Problem problem = ProblemWith(Activation::kGelu);
  OnGpu separate(problem), in_place(problem);
  const auto expected = separate.BackwardInput();
  const auto actual = in_place.BackwardInput(/*in_place=*/true);
  EXPECT_EQ(in_place.bench().Bytes(actual.dz), separate.bench().Bytes(expected.dz));
  EXPECT_EQ(in_place.bench().Bytes(actual.dx), separate.bench().Bytes(expected.dx));
}

// As CUDA graphs, of which the first is recorded in the second round.
TEST_P(CudaLinearBits, AreTheSameWhenReplayed) {
  const Problem problem = ProblemWith(Activation::kGelu);
  OnGpu gpu(problem);
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
    return bench().ops().CreateLinear(shape);
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
}  // namespace stagecoach::kernels
