#include "partition/io/exports.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/text/json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schedule/generators/generators.h"
#include "schedule/io/csv.h"
#include "schedule/transforms/lowering.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::partition {
namespace {

using ::stagecoach::testing::IsRefused;
using ::testing::ElementsAre;

Plan PlanOf(absl::string_view schedule, int ranks, int micro_batches, std::vector<int> first_layer,
            int layers, int chunks = 0) {
  return {
      .first_layer = std::move(first_layer),
      .num_layers = layers,
      .micro_batch_rows = 16,
      .schedule = schedule::Generate(
                      schedule, {.ranks = ranks, .micro_batches = micro_batches, .chunks = chunks})
                      .value()};
}

// Returns "embedding", "block.0", ..., "head".
std::vector<std::string> Names(int layers) {
  std::vector<std::string> names = {"embedding"};
  for (int i = 0; i + 2 < layers; ++i) names.push_back(absl::StrCat("block.", i));
  names.emplace_back("head");
  return names;
}

// Unrolls a layout as Megatron-LM documents it: groups, then single characters; a stage per entry.
std::vector<std::string> Unrolled(std::string layout) {
  layout = absl::StrReplaceAll(layout, {{",", ""}});
  // Takes the first "*" each time: what stands in front of it has none.
  for (size_t star = layout.find('*'); star != std::string::npos; star = layout.find('*')) {
    const bool is_group = layout[star - 1] == ')';
    const size_t begin = is_group ? layout.rfind('(', star) : star - 1;
    const std::string one =
        is_group ? layout.substr(begin + 1, star - begin - 2) : layout.substr(begin, 1);
    const size_t end = std::min(layout.find_first_not_of("0123456789", star + 1), layout.size());
    std::string repeated;
    for (int i = 0; i < std::stoi(layout.substr(star + 1, end - star - 1)); ++i) repeated += one;
    layout = layout.substr(0, begin) + repeated + layout.substr(end);
  }
  return absl::StrSplit(layout, '|');
}

TEST(Exports, AreWhatTheDocumentationShows) {
  const Plan plan = PlanOf("1f1b", 4, 4, {0, 6, 11, 16}, 20);
  std::vector<std::string> names = {"embedding"};
  for (int i = 0; i < 18; ++i) names.push_back(absl::StrCat("layers.", i));
  names.emplace_back("head");
  EXPECT_EQ(ToTorchPlanJson(plan, names).value(), R"({
  "split_points": ["layers.5","layers.10","layers.15"],
  "stages": 4,
  "microbatches": 4,
  "microbatch_rows": 16,
  "schedule": "1f1b",
  "rank_of_stage": [0,1,2,3]
}
)");
  EXPECT_EQ(ToTorchScheduleCsv(plan).value(),
            "0F0,0F1,0F2,0F3,0B0,0B1,0B2,0B3\n1F0,1F1,1F2,1B0,1F3,1B1,1B2,1B3\n"
            "2F0,2F1,2B0,2F2,2B1,2F3,2B2,2B3\n3F0,3B0,3F1,3B1,3F2,3B2,3F3,3B3\n");
  EXPECT_EQ(ToDeepSpeedParts(plan).value(), "[0, 6, 11, 16, 20]");
  EXPECT_EQ(ToMegatronLayout(plan, names).value(), "Et*5|(t*5|)*2,t*3L");
}

TEST(Exports, TorchPlanNamesTheModulesWithWhichStagesBegin) {
  Plan plan = PlanOf("zb-v", 2, 4, {0, 2, 3, 5}, 7);
  const nlohmann::json json = base::ParseJson(ToTorchPlanJson(plan, Names(7)).value()).value();
  EXPECT_EQ(json, base::ParseJson(R"({"split_points": ["block.1", "block.2", "block.4"],
      "stages": 4, "microbatches": 4, "microbatch_rows": 16, "schedule": "zb-v",
      "rank_of_stage": [0, 1, 1, 0]})")
                      .value());
  plan.replication = {2, 4};
  plan.recomputed = {1, 6};
  const nlohmann::json more = base::ParseJson(ToTorchPlanJson(plan, Names(7)).value()).value();
  EXPECT_EQ(more["replicas"], 2);
  EXPECT_EQ(more["microbatches"], 4);  // per replica
  EXPECT_THAT(more["recomputed_layers"], ElementsAre("block.0", "head"));
}

TEST(Exports, TorchPlanIsJsonWhateverTheNames) {
  const Plan plan = PlanOf("1f1b", 2, 2, {0, 1}, 2);
  const absl::StatusOr<std::string> text = ToTorchPlanJson(plan, {"a", "\\\xFF"});
  EXPECT_THAT(base::ParseJson(text.value()).status(), ::stagecoach::testing::IsOk()) << *text;
}

TEST(Exports, TorchRefusesToSplitAtWhatIsNoModule) {
  Plan plan = PlanOf("1f1b", 2, 2, {0, 1}, 2);
  const std::string described = "node16 BatchNorm2d(64, eps=1e-05)";
  EXPECT_THAT(ToTorchPlanJson(plan, {"a", described}), IsRefused("layer 1, \"node16 Batch"));
  for (const std::string name : {"a b", "a()", "", "a..b", "a."}) {
    EXPECT_THAT(ToTorchPlanJson(plan, {"a", name}), IsRefused("named_modules()")) << name;
  }
  EXPECT_OK(ToTorchPlanJson(plan, {described, "block-1.conv"})) << "no stage begins with it";
  plan.recomputed = {0};
  EXPECT_THAT(ToTorchPlanJson(plan, {described, "b"}), IsRefused("layer 0"));
}

TEST(Exports, TorchCsvIsTheOrderOfThePlan) {
  for (const schedule::Generator& generator : schedule::Generators()) {
    const schedule::Schedule made = generator.generate({.ranks = 3, .micro_batches = 6}).value();
    Plan plan = {.schedule = made};
    for (int stage = 0; stage < made.num_stages(); ++stage) plan.first_layer.push_back(stage);
    plan.num_layers = made.num_stages();
    const std::string csv = ToTorchScheduleCsv(plan).value();
    EXPECT_EQ(schedule::ParseScheduleCsv(csv, made.name).value(), made);
    // PyTorch adds the messages itself.
    plan.schedule = schedule::Lower(made).value();
    EXPECT_EQ(ToTorchScheduleCsv(plan).value(), csv);
  }
}

TEST(Exports, TorchLoweredCsvIsTheRunOfThePlanWithSumsOverReplicas) {
  for (const schedule::Generator& generator : schedule::Generators()) {
    const schedule::Schedule made = generator.generate({.ranks = 3, .micro_batches = 6}).value();
    Plan plan = {.schedule = made};
    for (int stage = 0; stage < made.num_stages(); ++stage) plan.first_layer.push_back(stage);
    plan.num_layers = made.num_stages();
    const schedule::Schedule expected = schedule::Lower(made, {.reduce_gradients = true}).value();
    for (const bool is_lowered : {false, true}) {
      if (is_lowered) plan.schedule = schedule::Lower(made).value();
      EXPECT_EQ(schedule::ParseScheduleCsv(ToTorchLoweredCsv(plan).value(), made.name).value(),
                expected);
    }
  }
}

TEST(Exports, DeepSpeedPartsAreTheBoundsOfTheStages) {
  EXPECT_EQ(ToDeepSpeedParts(PlanOf("1f1b", 4, 8, {0, 5, 10, 15}, 20)).value(),
            "[0, 5, 10, 15, 20]");
  EXPECT_EQ(ToDeepSpeedParts(PlanOf("1f1b", 1, 8, {0}, 3)).value(), "[0, 3]");
}

TEST(Exports, DeepSpeedRefusesStagesElsewhereThanInOrder) {
  EXPECT_THAT(ToDeepSpeedParts(PlanOf("interleaved", 2, 4, {0, 1, 2, 3}, 4)),
              IsRefused("stage 2 on rank 0"));
  Plan reversed = PlanOf("1f1b", 2, 4, {0, 1}, 2);
  std::swap(reversed.schedule.rank_of_stage[0], reversed.schedule.rank_of_stage[1]);
  std::swap(reversed.schedule.actions[0], reversed.schedule.actions[1]);
  EXPECT_THAT(ToDeepSpeedParts(reversed), IsRefused("stage 0 on rank 1"));
}

TEST(Exports, MegatronLayoutHasRunsOfLayersAndStages) {
  EXPECT_EQ(ToMegatronLayout(PlanOf("1f1b", 4, 8, {0, 6, 12, 18}, 24), Names(24)).value(),
            "Et*5|(t*6|)*2,t*5L");
  EXPECT_EQ(ToMegatronLayout(PlanOf("1f1b", 1, 8, {0}, 5), Names(5)).value(), "Et*3L");
  EXPECT_EQ(ToMegatronLayout(PlanOf("1f1b", 3, 8, {0, 1, 3}, 4), Names(4)).value(), "E|tt|L");
  EXPECT_EQ(ToMegatronLayout(PlanOf("interleaved", 2, 4, {0, 2, 4, 6}, 8, 2), Names(8)).value(),
            "Et|(tt|)*2,tL");
}

TEST(Exports, MegatronLayoutUnrollsToThePlan) {
  std::mt19937 random(3);
  for (int i = 0; i < 300; ++i) {
    const int ranks = 1 + static_cast<int>(random() % 8);
    const int chunks = 1 + static_cast<int>(random() % 3);
    std::vector<int> first_layer = {0};
    while (static_cast<int>(first_layer.size()) < ranks * chunks) {
      first_layer.push_back(first_layer.back() + 1 + static_cast<int>(random() % 4));
    }
    const int layers = std::max(3, first_layer.back() + 1 + static_cast<int>(random() % 30));
    const Plan plan =
        PlanOf(chunks > 1 ? "interleaved" : "1f1b", ranks, ranks, first_layer, layers, chunks);
    const std::string layout = ToMegatronLayout(plan, Names(layers)).value();
    const std::vector<std::string> stages = Unrolled(layout);
    ASSERT_EQ(static_cast<int>(stages.size()), plan.num_stages()) << layout;
    std::string all = "E" + std::string(static_cast<size_t>(layers - 2), 't') + "L";
    for (int stage = 0; stage < plan.num_stages(); ++stage) {
      EXPECT_EQ(stages[static_cast<size_t>(stage)],
                all.substr(static_cast<size_t>(plan.first(stage)),
                           static_cast<size_t>(plan.last(stage) - plan.first(stage) + 1)))
          << layout;
    }
  }
}

TEST(Exports, MegatronRefusesWhatIsNoTransformer) {
  const Plan plan = PlanOf("1f1b", 2, 4, {0, 2}, 4);
  const auto layout = [&plan](std::vector<std::string> names) {
    return ToMegatronLayout(plan, names);
  };
  EXPECT_EQ(layout({"model.Embed_tokens", "h.0", "h.1", "LM_Head"}).value(), "Et|tL");
  EXPECT_THAT(layout({"conv", "h.0", "h.1", "head"}), IsRefused("the first layer, \"conv\""));
  EXPECT_THAT(layout({"wte", "h.0", "h.1", "norm"}), IsRefused("the last layer, \"norm\""));
  EXPECT_THAT(layout({"wte", "h.0", "norm", "head"}), IsRefused("layer 2, \"norm\""));
  EXPECT_THAT(ToMegatronLayout(PlanOf("1f1b", 1, 4, {0}, 2), {"wte", "head"}),
              IsRefused("2 layers"));
}

TEST(Exports, MegatronRefusesStagesInAV) {
  EXPECT_THAT(ToMegatronLayout(PlanOf("zb-v", 2, 4, {0, 1, 2, 3}, 4), Names(4)),
              IsRefused("zb-v, places them differently"));
}

TEST(Exports, MegatronAndDeepSpeedRefuseOrdersThatTheyDoNotPerform) {
  for (const absl::string_view schedule : {"gpipe", "zb-h1", "zb-h2"}) {
    const Plan plan = PlanOf(schedule, 2, 4, {0, 2}, 4);
    EXPECT_THAT(ToMegatronLayout(plan, Names(4)), IsRefused("plan with --schedule 1f1b"));
    EXPECT_THAT(ToDeepSpeedParts(plan), IsRefused("DeepSpeed performs 1f1b"));
  }
  EXPECT_THAT(ToMegatronLayout(PlanOf("looped-bfs", 2, 4, {0, 1, 2, 3}, 4, 2), Names(4)),
              IsRefused("plan with --schedule interleaved"));
  // A searched order that equals 1F1B is accepted, and so are its messages.
  Plan same = PlanOf("1f1b", 2, 4, {0, 2}, 4);
  same.schedule.name = "auto";
  same.schedule = schedule::Lower(same.schedule).value();
  EXPECT_OK(ToMegatronLayout(same, Names(4)));
  EXPECT_OK(ToDeepSpeedParts(same));
}

TEST(Exports, WhatNoProgramFollowsIsRefusedByAll) {
  Plan order = PlanOf("1f1b", 2, 4, {0, 2}, 4);
  order.order = {0, 2, 1, 3};
  Plan broken = PlanOf("1f1b", 2, 4, {0, 2}, 4);
  broken.first_layer = {0, 4};
  const auto expect_refused = [](const Plan& plan, const std::string& reason) {
    EXPECT_THAT(ToTorchPlanJson(plan, Names(4)), IsRefused(reason));
    EXPECT_THAT(ToTorchScheduleCsv(plan), IsRefused(reason));
    EXPECT_THAT(ToTorchLoweredCsv(plan), IsRefused(reason));
    EXPECT_THAT(ToDeepSpeedParts(plan), IsRefused(reason));
    EXPECT_THAT(ToMegatronLayout(plan, Names(4)), IsRefused(reason));
  };
  expect_refused(order, "in another order");
  expect_refused(broken, "stage 1 of the plan");
  order.order = {0, 1, 2, 3};
  EXPECT_EQ(ToDeepSpeedParts(order).value(), "[0, 2, 4]");
  EXPECT_THAT(ToTorchPlanJson(order, Names(3)), IsRefused("names of 3 layers"));
  EXPECT_THAT(ToMegatronLayout(order, Names(3)), IsRefused("names of 3 layers"));
}

}  // namespace
}  // namespace stagecoach::partition
