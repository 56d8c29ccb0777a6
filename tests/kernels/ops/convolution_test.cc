#include "kernels/ops/convolution.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kernels/ops/op_harness.h"
#include "tests/testing/close_to.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/reference.h"
#include "tests/testing/tolerance.h"

namespace stagecoach::kernels::convolution_test {
namespace {

using reference::Vector;
using ::stagecoach::testing::CloseTo;
using ::stagecoach::testing::DotBound;
using ::stagecoach::testing::ExpectInvalid;
using ::stagecoach::testing::Magnitudes;
using ::stagecoach::testing::OpBench;
using ::stagecoach::testing::OpTest;
using ::stagecoach::testing::RandomNormal;
using ::stagecoach::testing::RoundedTo;
using ::stagecoach::testing::ToDouble;

// Returns the bounds of sums of `terms` products each; `magnitudes` has the sums of their
// magnitudes.
std::vector<double> Bounds(int64_t terms, const Vector& magnitudes) {
  std::vector<double> bounds;
  for (const double sum : magnitudes) bounds.push_back(DotBound(terms, sum));
  return bounds;
}

class Convolution : public OpTest<ConvolutionShape> {
 protected:
  // oneDNN 2.6 cannot compute long rows with AMX.
  void SetUp() override {
    OpTest<ConvolutionShape>::SetUp();
    if (IsSkipped()) return;
    OpBench bench(backend().variants.front());
    const absl::Status status = bench.ops().Create(shape()).status();
    if (!absl::IsUnavailable(status)) return;
    EXPECT_GT(shape().width, 512);
    EXPECT_THAT(status.message(), ::testing::HasSubstr("ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"));
    GTEST_SKIP() << status.message();
  }

  Vector Forward() const {
    return Results([&](OpBench& bench) {
      ConvolutionOp& op = bench.Create(shape());
      const Tensor x = bench.Operand(bench.Images(inputs()), x_), w = bench.Operand(weights(), w_);
      const Tensor b = shape().has_bias ? bench.Operand({shape().outputs}, b_) : Tensor{};
      const Tensor y = bench.Result(bench.Images(outputs()));
      std::byte* const workspace = bench.Workspace(op.workspace_bytes());
      bench.Run([&](Stream& stream) { return op.Forward(stream, x, w, b, y, workspace); });
      return y;
    });
  }
  // With `adds`, the sum with dx_addend_.
  Vector BackwardInput(bool adds) const {
    return Results([&](OpBench& bench) {
      ConvolutionOp& op = bench.Create(shape());
      EXPECT_EQ(op.adds_to_dx(), AddsToDx());
      const Tensor addend = adds ? bench.Operand(bench.Images(inputs()), dx_addend_) : Tensor{};
      const Tensor dy = bench.Operand(bench.Images(outputs()), dy_),
                   w = bench.Operand(weights(), w_);
      const Tensor dx = bench.Result(bench.Images(inputs()));
      std::byte* const workspace = bench.Workspace(op.workspace_bytes());
      bench.Run(
          [&](Stream& stream) { return op.BackwardInput(stream, dy, w, addend, dx, workspace); });
      return dx;
    });
  }
  // Returns dw and db; with `adds`, accumulated onto existing numbers.
  std::array<Vector, 2> BackwardWeight(bool adds) const {
    return Results([&](OpBench& bench) {
      ConvolutionOp& op = bench.Create(shape());
      const Tensor x = bench.Operand(bench.Images(inputs()), x_),
                   dy = bench.Operand(bench.Images(outputs()), dy_);
      const Tensor dw = bench.Sums(weights(), dw_, adds);
      const Tensor db = shape().has_bias ? bench.Sums({shape().outputs}, db_, adds) : Tensor{};
      std::byte* const workspace = bench.Workspace(op.workspace_bytes());
      bench.Run([&](Stream& stream) {
        return op.BackwardWeight(stream, x, dy, dw, db, adds, workspace);
      });
      return std::array{dw, db};
    });
  }

  // Products add in the same pass.
  bool AddsToDx() const {
    return !backend().is_cpu && shape().kernel == 1 && shape().stride == 1 && shape().groups == 1;
  }
  Shape inputs() const { return {shape().samples, shape().inputs, shape().height, shape().width}; }
  Shape weights() const {
    return {shape().outputs, shape().inputs / shape().groups, shape().kernel, shape().kernel};
  }
  Shape outputs() const {
    return {shape().samples, shape().outputs, shape().output_height(), shape().output_width()};
  }

  // TF32 can represent these numbers too, if products use it.
  std::vector<float> Factors(int64_t count, uint64_t seed) const {
    return RoundedTo(backend().precision == Precision::kTf32 ? DType::kBfloat16 : type(),
                     RandomNormal(count, seed));
  }

  const std::vector<float> x_ = Factors(inputs().elements(), 1);
  const std::vector<float> w_ = Factors(weights().elements(), 2);
  const std::vector<float> b_ = Rounded(RandomNormal(shape().has_bias ? shape().outputs : 0, 3));
  const std::vector<float> dy_ = Factors(outputs().elements(), 4);
  const std::vector<float> dx_addend_ = Rounded(RandomNormal(inputs().elements(), 7));
  const std::vector<float> dw_ = RandomNormal(weights().elements(), 5);
  const std::vector<float> db_ = RandomNormal(shape().outputs, 6);
  const Vector x_exact_ = ToDouble(x_), w_exact_ = ToDouble(w_), dy_exact_ = ToDouble(dy_);
  const int64_t window_ = shape().kernel * shape().kernel;
};

TEST_P(Convolution, ForwardMatchesReference) {
  const Vector b = ToDouble(b_);
  const Vector magnitudes = reference::ConvolutionForward(shape(), Magnitudes(x_exact_),
                                                          Magnitudes(w_exact_), Magnitudes(b));
  EXPECT_THAT(Forward(), Near(reference::ConvolutionForward(shape(), x_exact_, w_exact_, b),
                              Bounds(shape().inputs / shape().groups * window_ + 1, magnitudes)));
}

TEST_P(Convolution, BackwardInputMatchesReference) {
  Vector expected = reference::ConvolutionBackwardInput(shape(), dy_exact_, w_exact_);
  Vector magnitudes =
      reference::ConvolutionBackwardInput(shape(), Magnitudes(dy_exact_), Magnitudes(w_exact_));
  const int64_t terms = shape().outputs / shape().groups * window_ + 1;
  EXPECT_THAT(BackwardInput(/*adds=*/false), Near(expected, Bounds(terms, magnitudes)));
  if (!AddsToDx()) return;
  expected = reference::Add(expected, ToDouble(dx_addend_));
  magnitudes = reference::Add(magnitudes, Magnitudes(ToDouble(dx_addend_)));
  EXPECT_THAT(BackwardInput(/*adds=*/true), Near(expected, Bounds(terms, magnitudes)));
}

TEST_P(Convolution, BackwardWeightMatchesReferenceAndAddsToWhatThereIs) {
  auto expected = reference::ConvolutionBackwardWeight(shape(), x_exact_, dy_exact_);
  auto magnitudes =
      reference::ConvolutionBackwardWeight(shape(), Magnitudes(x_exact_), Magnitudes(dy_exact_));
  const int64_t terms = outputs().elements() / shape().outputs + 1;
  for (const bool adds : {false, true}) {
    if (adds) {
      expected.dw = reference::Add(expected.dw, ToDouble(dw_));
      magnitudes.dw = reference::Add(magnitudes.dw, Magnitudes(ToDouble(dw_)));
    }
    const auto [dw, db] = BackwardWeight(adds);
    EXPECT_THAT(dw, CloseTo(expected.dw, Bounds(terms, magnitudes.dw)));
    if (!shape().has_bias) continue;
    if (adds) {
      expected.db = reference::Add(expected.db, ToDouble(db_));
      magnitudes.db = reference::Add(magnitudes.db, Magnitudes(ToDouble(db_)));
    }
    EXPECT_THAT(db, CloseTo(expected.db, Bounds(terms, magnitudes.db)));
  }
}

std::string NameOf(const ConvolutionShape& s) {
  return absl::StrCat(s.samples, "x", s.inputs, "x", s.height, "x", s.width, "_to", s.outputs, "_k",
                      s.kernel, "s", s.stride, "p", s.padding, "g", s.groups,
                      s.has_bias ? "" : "_no_bias");
}

// A single number; images of one pixel; kernels as large as the image, and larger; strides with a
// remainder; channels that fill the library's blocks, and do not; weights that fill some blocks of
// threads and a part of one; rows that are cut into parts; groups, down to one channel each;
// samples that form tasks of several, and a prime number of them.
INSTANTIATE_OP_TEST_ON(::stagecoach::testing::ProductBackends(), Convolution, NameOf,
                       ::testing::Values(ConvolutionShape{}, ConvolutionShape{3, 5, 1, 1, 7},
                                         ConvolutionShape{2, 3, 5, 4, 6, 3, 1, 1},
                                         ConvolutionShape{1, 2, 4, 4, 3, 4},
                                         ConvolutionShape{2, 2, 2, 3, 4, 5, 1, 2, 1, false},
                                         ConvolutionShape{2, 3, 8, 9, 5, 3, 2, 1, 1, false},
                                         ConvolutionShape{3, 16, 6, 6, 32, 3, 2, 1, 1, false},
                                         ConvolutionShape{16, 32, 5, 5, 64, 1, 2},
                                         ConvolutionShape{4, 8, 3, 3, 16},
                                         ConvolutionShape{13, 3, 9, 8, 16, 7, 2, 3},
                                         ConvolutionShape{2, 4, 6, 70, 8, 3, 1, 1, 1, false},
                                         ConvolutionShape{1, 1, 40, 40, 8, 32, 8, 4},
                                         ConvolutionShape{1, 4, 3, 900, 8, 3, 1, 1, 1, false},
                                         ConvolutionShape{10, 20, 4, 4, 128, 3, 1, 1, 1, false},
                                         ConvolutionShape{2, 24, 4, 4, 40, 3, 1, 1, 1, false},
                                         ConvolutionShape{2, 4, 5, 5, 6, 3, 1, 1, 2},
                                         ConvolutionShape{3, 32, 6, 6, 32, 3, 1, 1, 32, false}));

TEST(ConvolutionRefusal, IsAnInvalidArgument) {
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  ExpectInvalid<ConvolutionShape>({{.samples = 0},
                                   {.inputs = -1},
                                   {.height = kHuge},
                                   {.width = 0},
                                   {.outputs = kHuge},
                                   {.kernel = 2},
                                   {.stride = 0},
                                   {.padding = -1},
                                   {.inputs = 4, .outputs = 6, .groups = 4},
                                   {.inputs = 6, .outputs = 4, .groups = 4},
                                   {.outputs = 1 << 20, .kernel = 1 << 20, .padding = 1 << 20},
                                   {.samples = 1 << 20, .inputs = 1 << 20, .height = 1 << 20}});
}

}  // namespace
}  // namespace stagecoach::kernels::convolution_test
