#include "gtest/gtest.h"
#include "kernels/ops/linear.h"
#include "tests/kernels/ops/linear_fixture.h"
#include "tests/kernels/ops/op_harness.h"

// Layers of several of a CPU's tiles, in one extent or in all, for which an emulated GPU would be
// too slow.
namespace stagecoach::kernels::linear_test {
namespace {

using ::stagecoach::testing::LinearTest;
using ::stagecoach::testing::NameOfLinear;

using LargeLinear = LinearTest;

TEST_P(LargeLinear, MatchesReference) {
  ExpectForward();
  ExpectBackward(/*adds=*/true);
}

INSTANTIATE_OP_TEST(LargeLinear, NameOfLinear, LinearShape{16, 577, 609, Activation::kRelu},
                    LinearShape{130, 20, 1200, Activation::kTanh},
                    LinearShape{67, 1300, 1201, Activation::kGelu});

}  // namespace
}  // namespace stagecoach::kernels::linear_test
