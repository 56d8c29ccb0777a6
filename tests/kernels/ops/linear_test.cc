#include "kernels/ops/linear.h"

#include <cstdint>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kernels/ops/linear_fixture.h"
#include "tests/kernels/ops/op_harness.h"

namespace stagecoach::kernels::linear_test {
namespace {

using ::stagecoach::testing::ExpectInvalid;
using ::stagecoach::testing::HasTheBitsOf;
using ::stagecoach::testing::LinearTest;
using ::stagecoach::testing::NameOfLinear;
using ::stagecoach::testing::ProductBackends;

using Linear = LinearTest;

TEST_P(Linear, ForwardMatchesReference) { ExpectForward(); }

TEST_P(Linear, BackwardMatchesReferenceApartAtOnceAndAside) { ExpectBackward(/*adds=*/false); }

TEST_P(Linear, BackwardAddsToWhatIsThere) { ExpectBackward(/*adds=*/true); }

// One row, one input, one output; odd extents, multiples of 8 and 16, and mixtures of them; sizes
// around those of tiles and vectors; many rows, so that sums of columns are divided into blocks.
std::vector<LinearShape> Cases() {
  std::vector<LinearShape> cases;
  for (const Activation activation : kAllActivations) {
    cases.insert(cases.end(), {{3, 1, 5, activation},
                               {17, 33, 65, activation},
                               {64, 48, 32, activation},
                               {17, 24, 41, activation, /*has_bias=*/false}});
  }
  // Variants of what follows products, for all types or for some.
  for (const Activation activation : {Activation::kRelu, Activation::kGelu}) {
    cases.insert(cases.end(), {{1, 1, 1, activation},
                               {1, 7, 1, activation},
                               {5, 4, 1, activation},
                               {1, 16, 8, activation},
                               {16, 24, 37, activation},
                               {9, 13, 40, activation},
                               {8, 8, 8, activation},
                               {33, 784, 10, activation},
                               {700, 8, 24, activation},
                               {700, 5, 3, activation},
                               {300, 24, 40, activation, /*has_bias=*/false}});
  }
  return cases;
}
INSTANTIATE_OP_TEST_ON(ProductBackends(), Linear, NameOfLinear, ::testing::ValuesIn(Cases()));

using LinearInputGradient = LinearTest;

TEST_P(LinearInputGradient, HasTheSameDzWithoutDx) {
  EXPECT_THAT(BackwardInput(/*wants_dx=*/false)[0],
              HasTheBitsOf(BackwardInput(/*wants_dx=*/true)[0]));
}

INSTANTIATE_OP_TEST_ON(ProductBackends(), LinearInputGradient, NameOfLinear,
                       ::testing::Values(LinearShape{19, 30, 41}, /* nothing to do */
                                         LinearShape{19, 30, 41, Activation::kRelu},
                                         LinearShape{24, 32, 40, Activation::kGelu},
                                         LinearShape{19, 30, 41, Activation::kGeluExact}));

// Runs as CUDA graphs, the first of which is recorded in the second round.
using LinearReplayed = LinearTest;

TEST_P(LinearReplayed, HasTheSameBits) {
  const auto expected = ReplayBackwardWeight(/*rounds=*/1);
  const auto actual = ReplayBackwardWeight(/*rounds=*/3);
  EXPECT_THAT(actual[0], HasTheBitsOf(expected[0]));
  EXPECT_THAT(actual[1], HasTheBitsOf(expected[1]));
}

INSTANTIATE_OP_TEST_ON(ProductBackends(), LinearReplayed, NameOfLinear,
                       ::testing::Values(LinearShape{24, 32, 40, Activation::kGelu}));

TEST(LinearRefusal, IsAnInvalidArgument) {
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  ExpectInvalid<LinearShape>({{.rows = 0},
                              {.rows = -1},
                              {.inputs = 0},
                              {.inputs = -1},
                              {.outputs = 0},
                              {.outputs = -1},
                              {.rows = kHuge},
                              {.inputs = kHuge},
                              {.outputs = kHuge}});
}

}  // namespace
}  // namespace stagecoach::kernels::linear_test
