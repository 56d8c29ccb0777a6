#include "base/text/nearest.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace stagecoach::base {
namespace {

const std::vector<std::string> kKnown = {"latency", "bandwidth", "memory", "lr", "stages", "stage"};

TEST(Nearest, IsTheNameThatWasMeant) {
  EXPECT_EQ(Nearest("latnecy", kKnown), "latency");     // transposed letters
  EXPECT_EQ(Nearest("bandwith", kKnown), "bandwidth");  // a missing letter
  EXPECT_EQ(Nearest("memmory", kKnown), "memory");      // a surplus letter
  EXPECT_EQ(Nearest("LATENCY", kKnown), "latency");
  EXPECT_EQ(Nearest("lt", kKnown), "lr");
  EXPECT_EQ(Nearest("stage", kKnown), "stage");  // and not "stages"
}

TEST(Nearest, TakesTheFirstAmongEquals) {
  EXPECT_EQ(Nearest("cart", std::vector<std::string>{"card", "care"}), "card");
  EXPECT_EQ(Nearest("cart", std::vector<std::string>{"care", "card"}), "care");
}

TEST(Nearest, IsEmptyWhenNothingIsNear) {
  EXPECT_EQ(Nearest("optimizer", kKnown), "");
  EXPECT_EQ(Nearest("x", std::vector<std::string>{"y"}), "");
  EXPECT_EQ(Nearest("", kKnown), "");
  EXPECT_EQ(Nearest("latency", {}), "");
}

}  // namespace
}  // namespace stagecoach::base
