#include <memory>
#include <string>
#include <vector>

#include "engine/nn/layers/layer_norm.h"
#include "engine/nn/layers/linear.h"
#include "engine/train/trainer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/train/runs/grouped_runs.h"
#include "tests/engine/train/runs/small_run.h"
#include "tests/testing/precision.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::IsRefused;
using ::stagecoach::testing::StatusIs;
using ::stagecoach::testing::TestFolder;
using ::testing::HasSubstr;

constexpr int64_t kBatchOfGroups = 12;

Model HalfFrozen(const std::string& rules) {
  Model model = {.input = Shape{kSmallFeatures},
                 .layers = {Linear(8, Activation::kRelu), LayerNorm(), Linear(kSmallClasses)}};
  if (!rules.empty()) model.parameter_rules = ParseParameterRules(rules).value();
  return model;
}

std::unique_ptr<Trainer> HalfTrained(const std::string& rules) {
  const Model model = HalfFrozen(rules);
  auto trainer = MakeTrainer(model, EvenPlan(model, 2, "1f1b", 4, 3), {});
  EXPECT_OK(trainer->Step(*SmallData(kBatchOfGroups), Rows(0, kBatchOfGroups)));
  return trainer;
}

TEST(ParameterGroups, MatchThoseOfPyTorch) { ExpectGroupsToMatchPyTorch({}); }

TEST(ParameterGroups, HaveTheSameBitsEverywhere) {
  ExpectGroupsToHaveTheSameBitsEverywhere({}, /*devices=*/4);
}

TEST(ParameterGroups, HaveTheSameBitsEverywhereInBf16) {
  const absl::Status has = stagecoach::testing::HasOnCpu(Precision::kBfloat16);
  if (!has.ok()) GTEST_SKIP() << has.message();
  ExpectGroupsToHaveTheSameBitsEverywhere({.precision = Precision::kBfloat16}, /*devices=*/2);
}

TEST(ParameterGroups, LeaveOutWhatFrozenParametersDoNotNeed) {
  const auto bytes_of = [](const std::string& rules) {
    return AnalyzeModel(HalfFrozen(rules), {.optimizer = Optimizer::AdamW()}).value().layers;
  };
  const auto all = bytes_of(""), some = bytes_of("layer 0: *:frozen");
  EXPECT_EQ(some[0].memory.optimizer_bytes, 0);
  EXPECT_EQ(some[0].memory.parameter_bytes, 0);
  EXPECT_GE(some[0].memory.frozen_bytes, 4 * 8 * kSmallFeatures);
  EXPECT_EQ(some[0].parameters, 0);
  EXPECT_EQ(some[2].memory.optimizer_bytes, all[2].memory.optimizer_bytes);
  EXPECT_GT(all[0].memory.optimizer_bytes, 0);
}

TEST(ParameterGroups, RunNoBackwardPassBelowTheFirstTrainedLayer) {
  int calls = 0;
  const ProbeHooks hooks = {.before = [&](schedule::Op op, int) {
    if (op != schedule::Op::kForward) ++calls;
    return absl::OkStatus();
  }};
  for (const bool is_frozen : {true, false}) {
    Model model = {.input = Shape{kSmallFeatures},
                   .layers = {Linear(8), Probe(&hooks), Linear(kSmallClasses)}};
    model.parameter_rules =
        ParseParameterRules(is_frozen ? "layer 0: *:frozen" : "layer 0: *:lr-factor=0").value();
    const auto trainer = MakeTrainer(model, EvenPlan(model, 1, "gpipe", 4, 3), {});
    ASSERT_OK(trainer->Step(*SmallData(kBatchOfGroups), Rows(0, kBatchOfGroups)));
    EXPECT_EQ(calls > 0, !is_frozen);
  }
}

TEST(ParameterGroups, AreRefusedIfTheyFreezeAll) {
  const Model model = HalfFrozen("*:frozen");
  EXPECT_THAT(Trainer::Create(model, EvenPlan(model, 1, "gpipe", 4, 3), {}),
              IsRefused("the groups of parameters freeze all: leave some to be trained"));
}

TEST(ParameterGroups, OfACheckpointNeedNotBeKnownToPredict) {
  const TestFolder folder;
  const auto trainer = HalfTrained("layer 0: weight:frozen;layer 2: *:frozen");
  ASSERT_OK_AND_ASSIGN(const std::string path, trainer->Save(folder.path().string()));
  const auto data = SmallData(kBatchOfGroups);
  const Model model = HalfFrozen("");
  ASSERT_OK_AND_ASSIGN(
      const auto predictor,
      Trainer::Create(
          PrepareRun(model,
                     {.devices = 2, .predicts = true, .micro_batches = 4, .micro_batch_rows = 3})
              .value(),
          {}));
  ASSERT_OK(predictor->Restore(path));
  EXPECT_EQ(predictor->Predict(*data).value(), trainer->Predict(*data).value());
}

TEST(ParameterGroups, AreThoseOfTheRunThatIsResumed) {
  const TestFolder folder;
  const std::string rules = "layer 0: *:frozen;*bias:lr-factor=2";
  const auto trainer = HalfTrained(rules);
  ASSERT_OK_AND_ASSIGN(const std::string path, trainer->Save(folder.path().string()));
  const auto data = SmallData(kBatchOfGroups);
  const auto resumed = HalfTrained(rules);
  ASSERT_OK(resumed->Step(*data, Rows(0, kBatchOfGroups)));
  ASSERT_OK(resumed->Restore(path));
  for (Trainer* const each : {trainer.get(), resumed.get()}) {
    ASSERT_OK(each->Step(*data, Rows(0, kBatchOfGroups)));
  }
  EXPECT_EQ(resumed->ParametersHash().value(), trainer->ParametersHash().value());
  EXPECT_THAT(HalfTrained("")->Restore(path),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("layer 0 has other trained parameters in it")));
}

}  // namespace
}  // namespace stagecoach::engine
