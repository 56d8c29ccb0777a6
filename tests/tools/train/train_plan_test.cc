#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/parallel.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/data/data_test_util.h"
#include "tests/tools/child.h"

namespace stagecoach::tools {
namespace {

using engine::TestDirectory;
using engine::WriteTestFile;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

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

// Under this budget only recomputation fits.
TEST(TrainPlan, RunsAPlanThatRecomputesToFit) {
  const Arguments request = {"plan",
                             "--json",
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
                             "1"};
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
