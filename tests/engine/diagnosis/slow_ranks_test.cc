#include "engine/diagnosis/slow_ranks.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace stagecoach::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kStepNs = 300'000'000;  // a sample each

class Meter {
 public:
  // Steps of so long, with so much computing.
  std::optional<Pace> After(int steps, int64_t compute_ns, int64_t step_ns = kStepNs) {
    for (int i = 0; i < steps; ++i) meter_.Add(++step_, compute_ns, step_ns);
    return meter_.pace();
  }

 private:
  PaceMeter meter_;
  int64_t step_ = 0;
};

TEST(PaceMeter, KnowsNothingBeforeItHasSamplesOfBeforeAndOfLate) {
  Meter meter;
  EXPECT_FALSE(meter.After(40, 100).has_value());
  EXPECT_TRUE(meter.After(1, 100).has_value());
}

TEST(PaceMeter, ComparesTheLast20WithThe20AfterTheFirst) {
  Meter meter;
  meter.After(1, 9000);
  meter.After(20, 100);
  meter.After(30, 400);
  meter.After(1, 150);
  const std::optional<Pace> pace = meter.After(19, 200);
  ASSERT_TRUE(pace.has_value());
  EXPECT_EQ(
      *pace,
      (Pace{.before_ns = 100, .least_ns = 150, .median_ns = 200, .step_ns = kStepNs, .steps = 20}));
  EXPECT_EQ(meter.After(1, 200)->least_ns, 200);  // the step of 150 is no longer of late
}

TEST(PaceMeter, TakesShortStepsTogether) {
  Meter meter;
  const std::optional<Pace> pace = meter.After(41 * 5, 100, PaceMeter::kLeastSampleNs / 5);
  ASSERT_TRUE(pace.has_value());
  EXPECT_EQ(pace->steps, 100);
  EXPECT_EQ(pace->before_ns, 100);
  EXPECT_EQ(pace->step_ns, PaceMeter::kLeastSampleNs / 5);
}

TEST(Pace, PassesAsText) {
  const Pace pace = {1, 2, 3, 4, 5};
  EXPECT_EQ(PaceFromText(ToText(pace)), pace);
  for (const char* text : {"", "1 2 3 4", "1 2 3 4 x", "1 2 3 4 -5", "1 2 3 4 5 6"}) {
    EXPECT_FALSE(PaceFromText(text).has_value()) << text;
  }
}

using Paces = std::vector<std::optional<Pace>>;

// Has computed for 100 ms of a step of 400 ms, and now does for so long.
Pace Now(int64_t least_ms, int64_t median_ms) {
  constexpr int64_t kMs = 1'000'000;
  return {.before_ns = 100 * kMs,
          .least_ns = least_ms * kMs,
          .median_ns = median_ms * kMs,
          .step_ns = 400 * kMs,
          .steps = 20};
}
Pace Now(int64_t ms) { return Now(ms, ms); }

SlowRanks FourStages() { return SlowRanks({"rank 0", "rank 1", "rank 2", "rank 3"}, 1); }

TEST(SlowRanks, AreNamedFrom1AndAHalfTimesOn) {
  SlowRanks slow = FourStages();
  EXPECT_THAT(slow.Judge(Paces{Now(100), Now(149, 200), Now(100), Now(100)}), IsEmpty());
  EXPECT_THAT(slow.Judge(Paces{Now(100), Now(150, 180), Now(100), Now(100)}),
              ElementsAre("rank 1 is slow: its computing has taken 1.8 times as long as before, "
                          "against the other ranks, for 20 steps"));
}

TEST(SlowRanks, AreNamedAgainOnlyAfterTheyHaveRecovered) {
  SlowRanks slow = FourStages();
  const Paces bad = {Now(100), Now(100), Now(200), Now(100)};
  const Paces better = {Now(100), Now(100), Now(100, 130), Now(100)};
  const Paces good = {Now(100), Now(100), Now(100, 110), Now(100)};
  EXPECT_EQ(slow.Judge(bad).size(), 1U);
  EXPECT_THAT(slow.Judge(bad), IsEmpty());
  EXPECT_THAT(slow.Judge(better), IsEmpty());
  EXPECT_THAT(slow.Judge(bad), IsEmpty());
  EXPECT_THAT(slow.Judge(good), IsEmpty());
  EXPECT_EQ(slow.Judge(bad).size(), 1U);
}

TEST(SlowRanks, AreNoneWhereAllHaveBecomeSlow) {
  EXPECT_THAT(FourStages().Judge(Paces{Now(200), Now(210), Now(220), Now(190)}), IsEmpty());
  EXPECT_EQ(FourStages().Judge(Paces{Now(200), Now(210), Now(330), Now(190)}).size(), 1U);
}

TEST(SlowRanks, AreNoneWhereTheOthersHaveBecomeFaster) {
  EXPECT_THAT(FourStages().Judge(Paces{Now(50), Now(50), Now(100), Now(50)}), IsEmpty());
}

TEST(SlowRanks, AreNoneWhoseComputingIsLittleOfAStep) {
  Pace tiny = Now(200);
  tiny.step_ns = 2'000'000'001;  // of which 100 ms more are just less than a twentieth
  EXPECT_THAT(FourStages().Judge(Paces{Now(100), tiny, Now(100), Now(100)}), IsEmpty());
  tiny.step_ns = 2'000'000'000;
  EXPECT_EQ(FourStages().Judge(Paces{Now(100), tiny, Now(100), Now(100)}).size(), 1U);
}

TEST(SlowRanks, AreNoneThatDidNotComputeBefore) {
  Pace idle = Now(100);
  idle.before_ns = 0;
  EXPECT_THAT(FourStages().Judge(Paces{Now(100), idle, Now(100), Now(100)}), IsEmpty());
}

TEST(SlowRanks, AreNoneAsLongAsNoOtherIsKnown) {
  EXPECT_THAT(FourStages().Judge(Paces{std::nullopt, Now(300), std::nullopt, std::nullopt}),
              IsEmpty());
  EXPECT_EQ(FourStages().Judge(Paces{std::nullopt, Now(300), Now(100), std::nullopt}).size(), 1U);
  SlowRanks alone({"rank 0"}, 1);
  EXPECT_THAT(alone.Judge(Paces{Now(300)}), IsEmpty());
}

// It has never been faster.
TEST(SlowRanks, AreFoundByTheOtherReplicasOfTheirStage) {
  const auto replica = [](int64_t ms) {
    Pace pace = Now(ms);
    pace.before_ns = pace.median_ns;
    return pace;
  };
  SlowRanks slow({"rank 0", "rank 1", "rank 2", "rank 3"}, 2);
  EXPECT_THAT(slow.Judge(Paces{replica(50), replica(50), replica(100), replica(149)}), IsEmpty());
  EXPECT_THAT(slow.Judge(Paces{replica(50), replica(50), replica(100), replica(150)}),
              ElementsAre("rank 3 is slow: its computing has taken 1.5 times as long as that of "
                          "the other replicas, for 20 steps"));
}

}  // namespace
}  // namespace stagecoach::engine
