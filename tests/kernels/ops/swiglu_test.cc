#include "kernels/ops/swiglu.h"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kernels/ops/op_harness.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/reference.h"
#include "tests/testing/tolerance.h"

namespace stagecoach::kernels::swiglu_test {
namespace {

using reference::Vector;
using ::stagecoach::testing::ExpectInvalid;
using ::stagecoach::testing::OpBench;
using ::stagecoach::testing::OpTest;
using ::stagecoach::testing::RandomNormal;
using ::stagecoach::testing::RandomUniform;
using ::stagecoach::testing::SwiGluBackwardBounds;
using ::stagecoach::testing::SwiGluForwardBounds;
using ::stagecoach::testing::ToDouble;

class SwiGlu : public OpTest<SwiGluShape> {
 protected:
  Vector Forward(const std::vector<float>& x) const {
    return ResultsAtAnyAddress([&](OpBench& bench) {
      SwiGluOp& op = bench.Create(shape());
      const Tensor x_operand = bench.Operand(pairs(), x), y = bench.Result(values());
      bench.Run([&](Stream& stream) { return op.Forward(stream, x_operand, y); });
      return y;
    });
  }
  Vector Backward(const std::vector<float>& dy, const std::vector<float>& x) const {
    return ResultsAtAnyAddress([&](OpBench& bench) {
      SwiGluOp& op = bench.Create(shape());
      const Tensor dy_operand = bench.Operand(values(), dy), x_operand = bench.Operand(pairs(), x);
      const Tensor dx = bench.Result(pairs());
      bench.Run(
          [&](Stream& stream) { return op.BackwardInput(stream, dy_operand, x_operand, dx); });
      return dx;
    });
  }

  Shape pairs() const { return {shape().rows, 2 * shape().features}; }
  Shape values() const { return {shape().rows, shape().features}; }
};

TEST_P(SwiGlu, MatchesReference) {
  const std::vector<float> x = Rounded(RandomUniform(-20.0F, 20.0F, pairs().elements(), 1));
  const std::vector<float> dy = Rounded(RandomNormal(values().elements(), 2));
  const Vector x_exact = ToDouble(x), dy_exact = ToDouble(dy);
  EXPECT_THAT(Forward(x), Near(reference::SwiGluForward(shape(), x_exact),
                               SwiGluForwardBounds(shape(), x_exact)));
  EXPECT_THAT(Backward(dy, x), Near(reference::SwiGluBackward(shape(), dy_exact, x_exact),
                                    SwiGluBackwardBounds(shape(), dy_exact, x_exact)));
}

std::string NameOf(const SwiGluShape& shape) {
  return absl::StrCat(shape.rows, "x", shape.features, shape.gate == GluGate::kGelu ? "gelu" : "");
}

INSTANTIATE_OP_TEST(SwiGlu, NameOf, SwiGluShape{1, 1}, SwiGluShape{3, 7}, SwiGluShape{5, 24},
                    SwiGluShape{17, 33}, SwiGluShape{2, 2048}, SwiGluShape{300, 9},
                    SwiGluShape{3, 4104}, SwiGluShape{3, 7, GluGate::kGelu},
                    SwiGluShape{5, 24, GluGate::kGelu}, SwiGluShape{2, 2048, GluGate::kGelu});

// Values at which the exponential overflows or vanishes.
using SwiGluGate = SwiGlu;

TEST_P(SwiGluGate, IsOpenOrShutFarFromZero) {
  const std::vector<float> x = {-9984.0F, 9984.0F, 3.0F, 2.0F};
  EXPECT_EQ(Forward(x), (Vector{0.0, 19968.0}));
  EXPECT_EQ(Backward({1.0F, 1.0F}, x), (Vector{0.0, 2.0, 0.0, 9984.0}));
}

INSTANTIATE_OP_TEST(SwiGluGate, NameOf, SwiGluShape{.rows = 1, .features = 2},
                    SwiGluShape{1, 2, GluGate::kGelu});

TEST(SwiGluRefusal, IsAnInvalidArgument) {
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  ExpectInvalid<SwiGluShape>({{.rows = 0}, {.features = -1}, {.rows = kHuge}, {.features = kHuge}});
}

}  // namespace
}  // namespace stagecoach::kernels::swiglu_test
