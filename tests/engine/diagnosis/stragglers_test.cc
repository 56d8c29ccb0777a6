#include "engine/diagnosis/stragglers.h"

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
  // Returns the step time after `steps` steps of `step_ns`, of which `compute_ns` is computing.
  std::optional<StepTime> After(int steps, int64_t compute_ns, int64_t step_ns = kStepNs) {
    for (int i = 0; i < steps; ++i) meter_.Add(++step_, compute_ns, step_ns);
    return meter_.step_time();
  }

 private:
  StepTimeMeter meter_;
  int64_t step_ = 0;
};

TEST(StepTimeMeter, KnowsNothingBeforeItHasSamplesOfBeforeAndOfLate) {
  Meter meter;
  EXPECT_FALSE(meter.After(40, 100).has_value());
  EXPECT_TRUE(meter.After(1, 100).has_value());
}

TEST(StepTimeMeter, ComparesTheLast20WithThe20AfterTheFirst) {
  Meter meter;
  meter.After(1, 9000);
  meter.After(20, 100);
  meter.After(30, 400);
  meter.After(1, 150);
  const std::optional<StepTime> step_time = meter.After(19, 200);
  ASSERT_TRUE(step_time.has_value());
  EXPECT_EQ(
      *step_time,
      (StepTime{
          .before_ns = 100, .least_ns = 150, .median_ns = 200, .step_ns = kStepNs, .steps = 20}));
  EXPECT_EQ(meter.After(1, 200)->least_ns, 200);  // the step of 150 no longer counts as recent
}

TEST(StepTimeMeter, TakesShortStepsTogether) {
  Meter meter;
  const std::optional<StepTime> step_time =
      meter.After(41 * 5, 100, StepTimeMeter::kLeastSampleNs / 5);
  ASSERT_TRUE(step_time.has_value());
  EXPECT_EQ(step_time->steps, 100);
  EXPECT_EQ(step_time->before_ns, 100);
  EXPECT_EQ(step_time->step_ns, StepTimeMeter::kLeastSampleNs / 5);
}

TEST(StepTime, PassesAsText) {
  const StepTime step_time = {1, 2, 3, 4, 5};
  EXPECT_EQ(StepTimeFromText(ToText(step_time)), step_time);
  for (const char* text : {"", "1 2 3 4", "1 2 3 4 x", "1 2 3 4 -5", "1 2 3 4 5 6"}) {
    EXPECT_FALSE(StepTimeFromText(text).has_value()) << text;
  }
}

using Paces = std::vector<std::optional<StepTime>>;

// Returns a step time whose usual computing took 100 ms of a step of 400 ms, and now takes this
// long.
StepTime Now(int64_t least_ms, int64_t median_ms) {
  constexpr int64_t kMs = 1'000'000;
  return {.before_ns = 100 * kMs,
          .least_ns = least_ms * kMs,
          .median_ns = median_ms * kMs,
          .step_ns = 400 * kMs,
          .steps = 20};
}
StepTime Now(int64_t ms) { return Now(ms, ms); }

StragglerDetector FourStages() {
  return StragglerDetector({"rank 0", "rank 1", "rank 2", "rank 3"}, 1);
}

TEST(StragglerDetector, AreNamedFrom1AndAHalfTimesOn) {
  StragglerDetector slow = FourStages();
  EXPECT_THAT(slow.Judge(Paces{Now(100), Now(149, 200), Now(100), Now(100)}), IsEmpty());
  EXPECT_THAT(slow.Judge(Paces{Now(100), Now(150, 180), Now(100), Now(100)}),
              ElementsAre("rank 1 is slow: its computing has taken 1.8 times as long as before, "
                          "against the other ranks, for 20 steps"));
}

TEST(StragglerDetector, AreNamedAgainOnlyAfterTheyHaveRecovered) {
  StragglerDetector slow = FourStages();
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

TEST(StragglerDetector, AreNoneWhereAllHaveBecomeSlow) {
  EXPECT_THAT(FourStages().Judge(Paces{Now(200), Now(210), Now(220), Now(190)}), IsEmpty());
  EXPECT_EQ(FourStages().Judge(Paces{Now(200), Now(210), Now(330), Now(190)}).size(), 1U);
}

TEST(StragglerDetector, AreNoneWhereTheOthersHaveBecomeFaster) {
  EXPECT_THAT(FourStages().Judge(Paces{Now(50), Now(50), Now(100), Now(50)}), IsEmpty());
}

TEST(StragglerDetector, AreNoneWhoseComputingIsLittleOfAStep) {
  StepTime tiny = Now(200);
  tiny.step_ns = 2'000'000'001;  // 100 ms more is just less than a twentieth of it
  EXPECT_THAT(FourStages().Judge(Paces{Now(100), tiny, Now(100), Now(100)}), IsEmpty());
  tiny.step_ns = 2'000'000'000;
  EXPECT_EQ(FourStages().Judge(Paces{Now(100), tiny, Now(100), Now(100)}).size(), 1U);
}

TEST(StragglerDetector, AreNoneThatDidNotComputeBefore) {
  StepTime idle = Now(100);
  idle.before_ns = 0;
  EXPECT_THAT(FourStages().Judge(Paces{Now(100), idle, Now(100), Now(100)}), IsEmpty());
}

TEST(StragglerDetector, AreNoneAsLongAsNoOtherIsKnown) {
  EXPECT_THAT(FourStages().Judge(Paces{std::nullopt, Now(300), std::nullopt, std::nullopt}),
              IsEmpty());
  EXPECT_EQ(FourStages().Judge(Paces{std::nullopt, Now(300), Now(100), std::nullopt}).size(), 1U);
  StragglerDetector alone({"rank 0"}, 1);
  EXPECT_THAT(alone.Judge(Paces{Now(300)}), IsEmpty());
}

// The rank has never been faster itself.
TEST(StragglerDetector, AreFoundByTheOtherReplicasOfTheirStage) {
  const auto replica = [](int64_t ms) {
    StepTime step_time = Now(ms);
    step_time.before_ns = step_time.median_ns;
    return step_time;
  };
  StragglerDetector slow({"rank 0", "rank 1", "rank 2", "rank 3"}, 2);
  EXPECT_THAT(slow.Judge(Paces{replica(50), replica(50), replica(100), replica(149)}), IsEmpty());
  EXPECT_THAT(slow.Judge(Paces{replica(50), replica(50), replica(100), replica(150)}),
              ElementsAre("rank 3 is slow: its computing has taken 1.5 times as long as that of "
                          "the other replicas, for 20 steps"));
}

}  // namespace
}  // namespace stagecoach::engine
