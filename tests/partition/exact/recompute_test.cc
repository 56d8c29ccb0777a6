#include "partition/exact/recompute.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace stagecoach::partition {
namespace {

LayerCost LayerOf(double forward_ns, int64_t stash_bytes, bool can) {
  LayerCost layer = {.name = "layer", .forward_ns = forward_ns};
  layer.memory.stash_bytes = stash_bytes;
  if (can) layer.recompute_stash_bytes = 0;
  return layer;
}

int64_t KeptBytes(const std::vector<LayerCost>& layers, absl::Span<const int> recomputed) {
  int64_t bytes = 0;
  for (const LayerCost& layer : layers) bytes += layer.memory.stash_bytes;
  for (const int layer : recomputed) bytes -= layers[static_cast<size_t>(layer)].memory.stash_bytes;
  return bytes;
}

TEST(LeastRecomputation, EqualsBruteForce) {
  std::mt19937 random(1);
  int recomputing = 0;
  for (int trial = 0; trial < 10'000; ++trial) {
    std::vector<LayerCost> layers;
    const int count = 1 + static_cast<int>(random() % 8);
    for (int i = 0; i < count; ++i) {
      layers.push_back(LayerOf(1 + random() % 9, random() % 100, random() % 4 != 0));
    }
    const auto limit_bytes = static_cast<int64_t>(random() % 400);
    const auto fits = [&](absl::Span<const int> recomputed) {
      return KeptBytes(layers, recomputed) <= limit_bytes;
    };
    // Everything that is known, or half of it, or nothing.
    const int64_t least_saved_bytes =
        (KeptBytes(layers, {}) - limit_bytes) * static_cast<int64_t>(random() % 3) / 2;
    double least_ns = std::numeric_limits<double>::infinity();
    for (unsigned set = 0; set < 1U << count; ++set) {
      std::vector<int> chosen;
      double again_ns = 0;
      bool is_able = true;
      for (int i = 0; i < count; ++i) {
        if ((set >> i & 1U) == 0) continue;
        chosen.push_back(i);
        again_ns += layers[static_cast<size_t>(i)].forward_ns;
        is_able = is_able && layers[static_cast<size_t>(i)].recompute_stash_bytes.has_value();
      }
      if (is_able && fits(chosen) && again_ns < least_ns) least_ns = again_ns;
    }
    const FitOfRange fit = LeastRecomputation(layers, {{0, count - 1, 0}}, least_saved_bytes, fits);
    ASSERT_EQ(fit.fits, least_ns < std::numeric_limits<double>::infinity());
    if (!fit.fits) continue;
    ASSERT_TRUE(fits(fit.recomputed));
    ASSERT_EQ(fit.again_ns, least_ns);
    ASSERT_TRUE(fit.is_exact);
    recomputing += !fit.recomputed.empty();
  }
  EXPECT_GT(recomputing, 1000);
}

// Random numbers decide whether a set fits, so that only asking about all of them tells which is
// best.
TEST(LeastRecomputation, IsExactOnlyWhereNoOtherChoiceIsBetter) {
  std::mt19937 random(3);
  int exact = 0, inexact = 0, misses = 0;
  for (int trial = 0; trial < 400; ++trial) {
    const int able = 1 + static_cast<int>(random() % 10);
    std::vector<LayerCost> layers;
    for (int i = 0; i < able; ++i) {
      layers.push_back(LayerOf(1 + random() % 3, 10 + random() % 3, true));
    }
    const bool has_two_stages = able > 1 && random() % 4 == 0;
    std::vector<StageRange> ranges = {{0, able - 1, 0}};
    if (has_two_stages) ranges = {{0, 0, 0}, {1, able - 1, 1}};
    std::vector<bool> does_fit(size_t{1} << able);
    for (size_t set = 0; set < does_fit.size(); ++set) does_fit[set] = random() % 8 == 0;
    double least_ns = std::numeric_limits<double>::infinity();
    for (size_t set = 0; set < does_fit.size(); ++set) {
      double again_ns = 0;
      for (int i = 0; i < able; ++i) again_ns += (set >> i & 1U) * layers[i].forward_ns;
      if (does_fit[set]) least_ns = std::min(least_ns, again_ns);
    }
    const FitOfRange fit =
        LeastRecomputation(layers, ranges, 0, [&](absl::Span<const int> recomputed) {
          size_t set = 0;
          for (const int layer : recomputed) set |= size_t{1} << layer;
          return does_fit[set];
        });
    const double found_ns = fit.fits ? fit.again_ns : std::numeric_limits<double>::infinity();
    if (fit.is_exact) {
      ASSERT_EQ(found_ns, least_ns) << trial;
    } else {
      misses += found_ns > least_ns;
    }
    const bool none_is_needed = does_fit[0];
    EXPECT_EQ(fit.is_exact, none_is_needed || (able <= kMaxRecomputedOneByOne && !has_two_stages))
        << trial;
    ++(fit.is_exact ? exact : inexact);
  }
  EXPECT_GT(exact, 100);
  EXPECT_GT(inexact, 50);
  EXPECT_GT(misses, 10);  // the others would not show it
}

TEST(LeastRecomputation, TakesTheLastOfEqualLayersAndNoMoreThanNeeded) {
  const std::vector<LayerCost> layers(40, LayerOf(5, 10, true));
  const FitOfRange fit = LeastRecomputation(
      layers, {{8, 39, 0}}, 0,
      [&](absl::Span<const int> recomputed) { return KeptBytes(layers, recomputed) <= 370; });
  EXPECT_TRUE(fit.fits);
  EXPECT_EQ(fit.recomputed, (std::vector<int>{37, 38, 39}));
  EXPECT_EQ(fit.again_ns, 15);
}

// The same layers are worth more with more micro-batches in flight.
TEST(LeastRecomputation, TellsTheStagesOfARankApart) {
  const std::vector<LayerCost> layers(30, LayerOf(5, 10, true));
  const auto fits = [](absl::Span<const int> recomputed) {
    int64_t kept_bytes = 15 * 10 * 4 + 15 * 10;
    for (const int layer : recomputed) kept_bytes -= layer < 15 ? 40 : 10;
    return kept_bytes <= 650;
  };
  const FitOfRange fit = LeastRecomputation(layers, {{0, 14, 0}, {15, 29, 1}}, 0, fits);
  EXPECT_EQ(fit.recomputed, (std::vector<int>{12, 13, 14}));
}

TEST(LeastRecomputation, OfManyKindsLeavesNoLayerThatCouldBeSpared) {
  std::mt19937 random(2);
  std::vector<LayerCost> layers;
  for (int i = 0; i < 60; ++i)
    layers.push_back(LayerOf(1 + random() % 1000, 1 + random() % 1000, true));
  const int64_t limit_bytes = KeptBytes(layers, {}) / 2;
  const auto fits = [&](absl::Span<const int> recomputed) {
    return KeptBytes(layers, recomputed) <= limit_bytes;
  };
  const FitOfRange fit = LeastRecomputation(layers, {{0, 59, 0}}, 0, fits);
  ASSERT_TRUE(fit.fits);
  ASSERT_TRUE(fits(fit.recomputed));
  for (size_t left_out = 0; left_out < fit.recomputed.size(); ++left_out) {
    std::vector<int> fewer = fit.recomputed;
    fewer.erase(fewer.begin() + static_cast<ptrdiff_t>(left_out));
    EXPECT_FALSE(fits(fewer)) << fit.recomputed[left_out];
  }
}

TEST(LeastRecomputation, DoesNotFitWhereNothingHelps) {
  const std::vector<LayerCost> layers(3, LayerOf(1, 10, false));
  EXPECT_FALSE(
      LeastRecomputation(layers, {{0, 2, 0}}, 0, [](absl::Span<const int>) { return false; }).fits);
}

TEST(Recomputed, KeepsItsInputAndTakesTheForwardPassAgain) {
  LayerCost layer = LayerOf(100, 640, true);
  layer.backward_input_ns = 50;
  layer.recompute_stash_bytes = 64;
  layer.memory.weight_stash_bytes = 128;
  layer.memory.workspace_bytes = 32;
  layer.memory.input_last_use = schedule::LastUse::kForward;
  const LayerCost again = Recomputed(layer);
  EXPECT_EQ(again.backward_input_ns, 150);
  EXPECT_EQ(again.memory.stash_bytes, 64);
  EXPECT_EQ(again.memory.weight_stash_bytes, 0);
  EXPECT_EQ(again.memory.gradient_stash_bytes, 128);
  EXPECT_EQ(again.memory.workspace_bytes, 672);
  EXPECT_EQ(again.memory.input_last_use, schedule::LastUse::kBackwardInput);
  EXPECT_FALSE(again.recompute_stash_bytes.has_value());
}

}  // namespace
}  // namespace stagecoach::partition
