#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/parallel.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/data/data_test_util.h"
#include "tests/tools/child.h"

namespace stagecoach::tools {
namespace {

using engine::TestDirectory;
using engine::WriteTestFile;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

// A plan for the network of Trained.
constexpr char kPlan[] = R"({
  "format": "stagecoach-plan",
  "version": 1,
  "layers": 6,
  "micro_batches": 4,
  "micro_batch_rows": 8,
  "schedule": "zb-h1",
  "chunks": 1,
  "stages": [
    {"first_layer": 0, "last_layer": 0, "rank": 0},
    {"first_layer": 1, "last_layer": 4, "rank": 1},
    {"first_layer": 5, "last_layer": 5, "rank": 2}
  ]
}
)";

std::string PlanFile(const std::string& text) {
  return WriteTestFile(TestDirectory(), "plan.json", text);
}

Finished Trained(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"train",   "--data", "synthetic:100x16x4", "--layers", "6",
                                        "--width", "16",     "--epochs",           "1"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return RunStagecoach(arguments);
}

void ExpectFailure(const Finished& run, int exit_status, const std::string& part) {
  EXPECT_EQ(run.exit_status, exit_status) << run.err;
  EXPECT_THAT(run.out, IsEmpty());
  EXPECT_THAT(run.err, AllOf(StartsWith("stagecoach train: "), HasSubstr(part)));
}

TEST(TrainPlan, RunsThePlan) {
  const Finished run = Trained({"--json", "--plan", PlanFile(kPlan)});
  EXPECT_EQ(run.exit_status, 0) << run.err;
  const nlohmann::json plan = run.Events().front();
  EXPECT_EQ(plan["schedule"], "zb-h1");
  EXPECT_EQ(plan["micro_batches"], 4);
  EXPECT_EQ(plan["micro_batch_rows"], 8);
  ASSERT_THAT(plan["stages"], SizeIs(3));
  EXPECT_EQ(plan["stages"][1]["first_layer"], 1);
  EXPECT_EQ(plan["stages"][1]["last_layer"], 4);
  const nlohmann::json end = run.Events().back();
  EXPECT_EQ(end["steps"], 3);  // of 100 rows
  for (const nlohmann::json& device : end["devices"]) {
    EXPECT_EQ(device["predicted_peak_bytes"], device["measured_peak_bytes"]);
  }
}

// The check of rows comes before any of the memory or time needed to train.
TEST(TrainPlan, OfMoreRowsThanTheDataHasIsRefusedAsThat) {
  const std::string text =
      absl::StrReplaceAll(kPlan, {{"\"micro_batch_rows\": 8", "\"micro_batch_rows\": 250000000"}});
  ExpectFailure(Trained({"--device-memory", "1MB", "--plan", PlanFile(text)}), 78,
                "100 rows, less than one batch of 1000000000");
}

TEST(TrainPlan, GivesTheBitsOfEveryOtherPlanOfThatBatch) {
  const nlohmann::json by_plan = Trained({"--json", "--plan", PlanFile(kPlan)}).Events().back();
  const nlohmann::json by_flags =
      Trained({"--json", "--stages", "2", "--global-batch-size", "32"}).Events().back();
  EXPECT_EQ(by_plan["parameters_hash"], by_flags["parameters_hash"]);
  EXPECT_EQ(by_plan["step_losses_hash"], by_flags["step_losses_hash"]);
}

TEST(TrainPlan, OfAnotherModelIsSaid) {
  const std::string file = TestDirectory() + "/saved-plan.json";
  const std::vector<std::string> model = {"--data", "synthetic:100x16x4", "--layers", "6"};
  ASSERT_EQ(RunStagecoach(Joined(Joined({"plan", "--width", "16", "--devices", "2",
                                         "--global-batch-size", "32", "--save", file},
                                        model),
                                 {}))
                .exit_status,
            0);
  const Finished same = Trained({"--plan", file});
  EXPECT_EQ(same.exit_status, 0);
  EXPECT_THAT(same.err, IsEmpty());
  const Finished other = Trained({"--plan", file, "--width", "64"});
  EXPECT_EQ(other.exit_status, 0);
  ExpectOneLine(other.err,
                AllOf(HasSubstr(file + " was made for a model of "), HasSubstr("plan it anew")));
}

TEST(TrainPlan, ExcludesTheFlagsThatItSettles) {
  const std::vector<std::vector<std::string>> excluded = {
      {"--stages", "3"},         {"--devices", "3"},       {"--schedule", "1f1b"},
      {"--chunks", "1"},         {"--micro-batches", "4"}, {"--global-batch-size", "32"},
      {"--profile", "measured"}, {"--replicas", "2"},      {"--gradient-blocks", "2"}};
  for (std::vector<std::string> arguments : excluded) {
    arguments.insert(arguments.end(), {"--plan", PlanFile(kPlan)});
    ExpectFailure(Trained(arguments), 2, "--plan");
  }
}

TEST(TrainPlan, RefusesWhatTheEngineCannotDo) {
  const auto with = [](const std::string& field) {
    return PlanFile(absl::StrReplaceAll(kPlan, {{"\"layers\": 6,", "\"layers\": 6, " + field}}));
  };
  ExpectFailure(Trained({"--plan", with("\"recomputed_layers\": [5],")}), 78,
                "recomputes layer 5 (linear 16 -> 4), which has nothing to save");
  ExpectFailure(Trained({"--plan", with("\"order\": [0, 1, 3, 2, 4, 5],")}), 78, "order");
}

// The bits are the same whichever flag or plan repeats the forward pass.
TEST(TrainPlan, RecomputesAsThePlanSaysOrTheFlag) {
  const nlohmann::json hash =
      Trained({"--json", "--plan", PlanFile(kPlan)}).Events().back()["parameters_hash"];
  const std::string path = PlanFile(absl::StrReplaceAll(
      kPlan, {{"\"layers\": 6,", "\"layers\": 6, \"recomputed_layers\": [2],"}}));
  const auto expect_recomputed = [&](std::vector<std::string> arguments,
                                     const nlohmann::json& layers) {
    arguments.insert(arguments.end(), {"--json", "--plan", path});
    const Finished run = Trained(arguments);
    ASSERT_EQ(run.exit_status, 0) << run.err;
    EXPECT_EQ(run.Events().front()["recomputed_layers"], layers);
    EXPECT_EQ(run.Events().back()["parameters_hash"], hash);
    const nlohmann::json end = run.Events().back();
    for (const nlohmann::json& device : end["devices"]) {
      EXPECT_EQ(device["predicted_peak_bytes"], device["measured_peak_bytes"]);
    }
  };
  expect_recomputed({}, {2});
  expect_recomputed({"--recompute", "plan"}, {2});
  expect_recomputed({"--recompute", "none"}, nlohmann::json::array());
  expect_recomputed({"--recompute", "attention"}, nlohmann::json::array());
  expect_recomputed({"--recompute", "full"}, {0, 1, 2, 3, 4});
  ExpectFailure(Trained({"--recompute", "some"}), 2, "--recompute");
}

// Under this budget only recomputation fits.
TEST(TrainPlan, RunsAPlanThatRecomputesToFit) {
  const std::vector<std::string> request = {"plan",
                                            "--data",
                                            "synthetic:200x16x4",
                                            "--layers",
                                            "6",
                                            "--width",
                                            "16",
                                            "--devices",
                                            "1",
                                            "--schedule",
                                            "gpipe",
                                            "--global-batch-size",
                                            "128",
                                            "--micro-batches",
                                            "16",
                                            "--chunks",
                                            "1",
                                            "--json"};
  const auto planned = [&](std::vector<std::string> more) {
    more.insert(more.begin(), request.begin(), request.end());
    return RunStagecoach(more);
  };
  const nlohmann::json free = planned({}).Events().at(0);
  const int64_t free_bytes = free["stages"][0]["memory_bytes"]["peak"];
  const std::string budget = std::to_string(free_bytes * 9 / 10);
  EXPECT_EQ(planned({"--device-memory", budget, "--recompute", "none"}).exit_status, 78);
  const std::string path = PlanFile("");
  const Finished tight = planned({"--device-memory", budget, "--save", path});
  ASSERT_EQ(tight.exit_status, 0) << tight.err;
  EXPECT_THAT(tight.Events().at(0)["recomputed_layers"], Not(IsEmpty()));
  const Finished run =
      RunStagecoach({"train", "--data", "synthetic:200x16x4", "--layers", "6", "--width", "16",
                     "--epochs", "1", "--plan", path, "--device-memory", budget, "--json"});
  ASSERT_EQ(run.exit_status, 0) << run.err;
  EXPECT_EQ(run.Events().front()["recomputed_layers"], tight.Events().at(0)["recomputed_layers"]);
  EXPECT_EQ(run.Events().back()["devices"][0]["measured_peak_bytes"],
            tight.Events().at(0)["stages"][0]["memory_bytes"]["peak"]);
}

TEST(TrainPlan, TakesTheOrderThatTheModelHas) {
  const std::string ordered = absl::StrReplaceAll(
      kPlan, {{"\"layers\": 6,", "\"layers\": 6, \"order\": [0, 1, 2, 3, 4, 5],"}});
  const Finished run = Trained({"--json", "--plan", PlanFile(ordered)});
  ASSERT_EQ(run.exit_status, 0) << run.err;
  EXPECT_EQ(run.Events().back()["parameters_hash"],
            Trained({"--json", "--plan", PlanFile(kPlan)}).Events().back()["parameters_hash"]);
}

TEST(TrainPlan, RefusesAPlanForAnotherNumberOfLayers) {
  ExpectFailure(Trained({"--layers", "7", "--plan", PlanFile(kPlan)}), 78,
                "the plan is for 6 layers, the model has 7");
}

TEST(TrainPlan, RefusesABudgetBelowThePrediction) {
  ExpectFailure(Trained({"--device-memory", "1kB", "--plan", PlanFile(kPlan)}), 78,
                "the plan does not fit: device 1 needs");  // most layers are on stage 1
}

TEST(TrainPlan, ABudgetOfWhatItIsSaidToNeedSuffices) {
  const std::string err = Trained({"--device-memory", "1kB", "--plan", PlanFile(kPlan)}).err;
  EXPECT_THAT(err, HasSubstr("more than its memory of 1.0 kB"));
  const size_t start = err.find(" needs ") + 7;
  const double kilobytes = std::stod(err.substr(start)) + 0.1;  // it was rounded
  ASSERT_THAT(err.substr(start), ContainsRegex("^[0-9.]+ kB,"));
  EXPECT_EQ(Trained({"--device-memory", absl::StrCat(kilobytes, "kB"), "--plan", PlanFile(kPlan)})
                .exit_status,
            0);
}

TEST(TrainPlan, BadFilesAreBadData) {
  ExpectFailure(Trained({"--plan", "/no/such.json"}), 65, "/no/such.json");
  ExpectFailure(Trained({"--plan", PlanFile("{")}), 65, "plan.json");
  ExpectFailure(Trained({"--plan", PlanFile(absl::StrReplaceAll(kPlan, {{"zb-h1", "zb-h3"}}))}), 65,
                "zb-h");
}

TEST(Train, TakesTheDefaultNetworkByName) {
  const nlohmann::json named =
      Trained({"--json", "--global-batch-size", "32", "--model", "default"}).Events().back();
  EXPECT_EQ(named["parameters_hash"],
            Trained({"--json", "--global-batch-size", "32"}).Events().back()["parameters_hash"]);
}

TEST(Train, DevicesAreStages) {
  EXPECT_THAT(Trained({"--json", "--global-batch-size", "32", "--devices", "3"})
                  .Events()
                  .front()["devices"],
              SizeIs(3));
}

// A single core has no idle time to save.
TEST(Train, ChoosesTheFastestScheduleAndSaysWhy) {
  if (base::AvailableCpus() < 2) GTEST_SKIP() << "one core";
  const Finished chosen = Trained({"--devices", "4", "--global-batch-size", "32"});
  EXPECT_THAT(chosen.out, HasSubstr(" % faster than 1f1b"));
  const std::vector<nlohmann::json> events =
      Trained({"--json", "--devices", "4", "--global-batch-size", "32"}).Events();
  EXPECT_THAT(events.front()["choice"].get<std::string>(), HasSubstr("predicted to be "));
  EXPECT_NE(events.front()["schedule"], "1f1b");
  // Nothing is chosen if a schedule is specified, or for one device; the bits are the same.
  const std::vector<Arguments> others = {{"--devices", "4", "--schedule", "1f1b"},
                                         {"--devices", "4", "--device-memory", "1GB"},
                                         {"--devices", "1"}};
  for (const Arguments& other : others) {
    const std::vector<nlohmann::json> plain =
        Trained(Joined({"--json", "--global-batch-size", "32"}, other)).Events();
    EXPECT_EQ(plain.front()["schedule"], "1f1b");
    EXPECT_FALSE(plain.front().contains("choice"));
    EXPECT_EQ(plain.back()["step_losses_hash"], events.back()["step_losses_hash"]);
    EXPECT_EQ(plain.back()["parameters_hash"], events.back()["parameters_hash"]);
  }
}

}  // namespace
}  // namespace stagecoach::tools
