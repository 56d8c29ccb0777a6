#include "partition/cost/analytic.h"

#include "gtest/gtest.h"

namespace stagecoach::partition {
namespace {

constexpr DeviceSpeed kDevice = {
    .flops_per_second = 1e9, .bytes_per_second = 1e8, .overhead_ns = 100};

TEST(EstimateNs, IsTheTimeToComputeWhereThatIsLonger) {
  EXPECT_DOUBLE_EQ(EstimateNs({.flops = 5000, .bytes = 400}, kDevice), 5000 + 100);
}

TEST(EstimateNs, IsTheTimeToMoveWhereThatIsLonger) {
  EXPECT_DOUBLE_EQ(EstimateNs({.flops = 5000, .bytes = 600}, kDevice), 6000 + 100);
}

TEST(EstimateNs, IsZeroWithoutWork) { EXPECT_EQ(EstimateNs({}, kDevice), 0); }

TEST(EstimateTimes, FillsEachTimeFromItsOwnWork) {
  const LayerWork work = {.forward = {.flops = 1000},
                          .backward_input = {.flops = 2000},
                          .backward_weight = {.flops = 3000},
                          .step = {.bytes = 400}};
  LayerCost cost;
  EstimateTimes(work, kDevice, cost);
  EXPECT_DOUBLE_EQ(cost.forward_ns, 1100);
  EXPECT_DOUBLE_EQ(cost.backward_input_ns, 2100);
  EXPECT_DOUBLE_EQ(cost.backward_weight_ns, 3100);
  EXPECT_DOUBLE_EQ(cost.step_ns, 4100);
}

}  // namespace
}  // namespace stagecoach::partition
