#include "schedule/search/local_search.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "schedule/search/automatic.h"
#include "schedule/search/order_problem.h"
#include "schedule/search/order_timer.h"
#include "schedule/search/policy_search.h"
#include "tests/schedule/handwritten.h"

namespace stagecoach::schedule {
namespace {

constexpr LocalSearchOptions kOptions = {.max_moves = 2000, .seed = 1};

class ImproveOrderTest : public ::testing::Test {
 protected:
  static AutomaticRequest Request() {
    AutomaticRequest request{.ranks = 4, .micro_batches = 8};
    request.costs = LoopCosts(4, 1, {1000, 1000, 1000}, /*latency_ns=*/100);
    return request;
  }
  // Returns an order with one micro-batch after another.
  Order Slow() const {
    const auto any = [](const Order&) { return true; };
    return SearchPolicies(problem_, /*max_runs=*/1, /*max_orders=*/1, any).front().order;
  }
  int64_t ObjectiveNs(const Order& order) const {
    OrderTimer timer(problem_);
    EXPECT_TRUE(timer.Run(order));
    return timer.score().objective_ns;
  }

  const AutomaticRequest request_ = Request();
  const OrderProblem problem_{request_};
};

TEST_F(ImproveOrderTest, ImprovesWhatAcceptsEverything) {
  const Order slow = Slow();
  const Order found = ImproveOrder(
      problem_, slow, [](const Order&) { return true; }, kOptions);
  EXPECT_LT(ObjectiveNs(found), ObjectiveNs(slow) / 2);
}

TEST_F(ImproveOrderTest, GoesAsFarAsItIsAccepted) {
  const Order slow = Slow();
  const int64_t slow_ns = ObjectiveNs(slow);
  for (const double share : {0.9, 0.7, 0.5}) {
    const auto least_ns = static_cast<int64_t>(share * static_cast<double>(slow_ns));
    const auto accepts = [&](const Order& order) { return ObjectiveNs(order) >= least_ns; };
    const int64_t found_ns = ObjectiveNs(ImproveOrder(problem_, slow, accepts, kOptions));
    EXPECT_GE(found_ns, least_ns) << share;
    EXPECT_LT(found_ns, (slow_ns + least_ns) / 2) << share;
  }
}

TEST_F(ImproveOrderTest, KeepsTheStartWhereAllIsRefused) {
  const Order slow = Slow();
  const Order found = ImproveOrder(
      problem_, slow, [](const Order&) { return false; }, kOptions);
  EXPECT_EQ(found.lists, slow.lists);
}

}  // namespace
}  // namespace stagecoach::schedule
