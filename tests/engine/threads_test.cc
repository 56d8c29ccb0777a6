// A program of its own: other tests' devices would be counted too.
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "engine/trainer.h"
#include "gtest/gtest.h"
#include "tests/engine/small_run.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

int ThreadsOfThisProcess() {
  return static_cast<int>(std::distance(std::filesystem::directory_iterator("/proc/self/task"),
                                        std::filesystem::directory_iterator()));
}

class TrainerThreads : public ::testing::TestWithParam<std::tuple<int, int>> {
 protected:
  void SetUp() override {
    // A sanitizer starts a thread of its own with the first one of the program.
    std::string first;
    std::thread([&first] { first = absl::StrCat("/proc/self/task/", gettid()); }).join();
    // A joined thread is listed until the kernel has reaped it, a little later.
    while (std::filesystem::exists(first)) std::this_thread::yield();
    before_ = ThreadsOfThisProcess();
  }

  // Has trained and evaluated.
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

  int before_ = 0;
};

TEST_P(TrainerThreads, AreThoseOfItsDevicesAlone) {
  const auto& [stages, threads] = GetParam();
  const std::unique_ptr<Trainer> trainer = UsedTrainer();
  EXPECT_EQ(ThreadsOfThisProcess(), before_ + stages * threads);
}

TEST_P(TrainerThreads, EndWithTheTrainer) {
  UsedTrainer();
  // Threads are joined, but the kernel may still have to reap the last ones.
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (ThreadsOfThisProcess() > before_ && std::chrono::steady_clock::now() < give_up) {
    std::this_thread::yield();
  }
  EXPECT_EQ(ThreadsOfThisProcess(), before_);
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
