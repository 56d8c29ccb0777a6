// This is a program of its own, since other tests' devices would be counted too.
#include <memory>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "engine/train/trainer.h"
#include "gtest/gtest.h"
#include "tests/engine/train/runs/small_run.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/thread_count.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::ThreadsOnceReaped;

class TrainerThreads : public ::testing::TestWithParam<std::tuple<int, int>> {
 protected:
  static void SetUpTestSuite() { before_ = testing::ThreadsOfAnIdleProcess(); }

  // Returns a trainer that has trained and evaluated.
  static std::unique_ptr<Trainer> UsedTrainer() {
    const auto& [stages, threads] = GetParam();
    constexpr int64_t kBatchRows = 64;
    const Model model = SmallModel();
    auto trainer = MakeTrainer(model, EvenPlan(model, stages, "1f1b", 2, kBatchRows / 2),
                               {.device = {.threads = threads}});
    const auto data = SmallData(kBatchRows);
    EXPECT_OK(trainer->Step(*data, Rows(0, kBatchRows)));
    EXPECT_OK(trainer->Evaluate(*data));
    return trainer;
  }

  static int before_;
};

int TrainerThreads::before_ = 0;

TEST_P(TrainerThreads, AreThoseOfItsDevicesAlone) {
  const auto& [stages, threads] = GetParam();
  const std::unique_ptr<Trainer> trainer = UsedTrainer();
  const int expected = before_ + stages * threads;
  EXPECT_EQ(ThreadsOnceReaped(expected), expected);
}

TEST_P(TrainerThreads, EndWithTheTrainer) {
  UsedTrainer();
  EXPECT_EQ(ThreadsOnceReaped(before_), before_);
}

std::string NameOf(const ::testing::TestParamInfo<std::tuple<int, int>>& test) {
  const auto& [stages, threads] = test.param;
  return absl::StrCat("Stages", stages, "_Threads", threads);
}

INSTANTIATE_TEST_SUITE_P(StagesAndThreads, TrainerThreads,
                         ::testing::Combine(::testing::Values(1, 2, 4), ::testing::Values(1, 2, 3)),
                         NameOf);

}  // namespace
}  // namespace stagecoach::engine
