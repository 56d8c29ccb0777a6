#include "base/nearest.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace stagecoach::base {
namespace {

const std::vector<std::string> kKnown = {"latency", "bandwidth", "memory", "lr", "stages", "stage"};

TEST(Nearest, FindsTransposedLetters) { EXPECT_EQ(Nearest("latnecy", kKnown), "latency"); }

TEST(Nearest, FindsMissingLetters) { EXPECT_EQ(Nearest("bandwith", kKnown), "bandwidth"); }

TEST(Nearest, FindsSurplusLetters) { EXPECT_EQ(Nearest("memmory", kKnown), "memory"); }

TEST(Nearest, IgnoresLetterCase) { EXPECT_EQ(Nearest("LATENCY", kKnown), "latency"); }

TEST(Nearest, ServesShortWords) { EXPECT_EQ(Nearest("lt", kKnown), "lr"); }

TEST(Nearest, PrefersTheSmallestDistance) { EXPECT_EQ(Nearest("stage", kKnown), "stage"); }

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
