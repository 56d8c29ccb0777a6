// `train --loss mse` and `predict` on a table whose labels are numbers, as a user sees them.
#include "absl/strings/numbers.h"

#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/data/data_test_util.h"
#include "tests/tools/child.h"

namespace stagecoach::tools {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class Numbers : public ::testing::Test {
 protected:
  // The labels are prices, which are far from 0.
  Numbers() {
    std::string table = "size,age,price\n";
    for (int row = 0; row < kRows; ++row) {
      absl::StrAppendFormat(&table, "%d,%d,%.1f\n", SizeOf(row), AgeOf(row), PriceOf(row));
    }
    table_ = engine::WriteTestFile(folder_, "houses.csv", table);
  }
  static int SizeOf(int row) { return 40 + row * 37 % 101; }
  static int AgeOf(int row) { return row * 13 % 29; }
  static double PriceOf(int row) { return 150000.5 + 3000.0 * SizeOf(row) - 2000.0 * AgeOf(row); }

  Arguments Train(const Arguments& more) const {
    return Joined({"train", "--data", table_, "--label", "price", "--layers", "3", "--width", "32",
                   "--stages", "2", "--global-batch-size", "16", "--micro-batches", "4",
                   "--learning-rate", "0.01"},
                  more);
  }
  static nlohmann::json LastEpoch(const Finished& run) {
    EXPECT_EQ(run.exit_status, 0) << run.err;
    nlohmann::json last;
    for (const nlohmann::json& event : run.Events()) {
      if (event["event"] == "epoch") last = event;
    }
    return last;
  }
  void ExpectRefused(const Arguments& arguments, int status, const std::string& line) const {
    const Finished run = RunStagecoach(arguments);
    EXPECT_EQ(run.exit_status, status);
    ExpectOneLine(run.err, HasSubstr(line));
  }

  static constexpr int kRows = 200;
  const std::string folder_ = engine::TestDirectory();
  std::string table_;
};

TEST_F(Numbers, AreNoClasses) {
  ExpectRefused(Train({}), 65,
                "the labels in column \"price\" are numbers that are not whole, such as \"");
  ExpectRefused(Train({}), 65, "numbers are predicted with --loss mse");
  ExpectRefused({"train", "--data", "synthetic:200x2x3", "--loss", "mse"}, 65, "has classes");
}

TEST_F(Numbers, ArePredictedInTheirOwnUnits) {
  const std::string run = folder_ + "/run", outputs = folder_ + "/outputs.csv";
  const nlohmann::json epoch = LastEpoch(
      RunStagecoach(Train({"--loss", "mse", "--epochs", "10", "--json", "--checkpoint", run})));
  EXPECT_FALSE(epoch.contains("test_accuracy"));
  const double rmse = epoch["test_rmse"];
  EXPECT_LT(rmse, 20000.0);  // the standard deviation of the prices is 90,000
  EXPECT_GT(rmse, 0.0);

  const Finished tested = RunStagecoach({"predict", "--json", "--checkpoint", run});
  EXPECT_EQ(tested.exit_status, 0) << tested.err;
  EXPECT_NEAR(tested.Events().back()["rmse"], rmse, 1e-6 * rmse);
  EXPECT_FALSE(tested.Events().back().contains("accuracy"));

  const Finished predicted =
      RunStagecoach({"predict", "--checkpoint", run, "--data", table_, "--outputs", outputs});
  EXPECT_EQ(predicted.exit_status, 0) << predicted.err;
  EXPECT_THAT(predicted.out, AllOf(HasSubstr(", rmse "), Not(HasSubstr("accuracy"))));
  std::ifstream file(outputs);
  std::string line;
  std::getline(file, line);
  EXPECT_EQ(line, "row,prediction");
  double squares = 0.0;
  for (int row = 0; row < kRows; ++row) {
    ASSERT_TRUE(std::getline(file, line));
    const std::vector<std::string> fields = absl::StrSplit(line, ',');
    double price = 0.0;
    ASSERT_TRUE(absl::SimpleAtod(fields.at(1), &price));
    squares += std::pow(price - PriceOf(row), 2) / kRows;
  }
  EXPECT_LT(std::sqrt(squares), 20000.0);
  ExpectRefused({"predict", "--checkpoint", run, "--classes", outputs}, 2,
                "--classes: the model predicts numbers, which --outputs writes");
}

TEST_F(Numbers, HaveARowOfErrorsRatherThanAccuracies) {
  const std::string metrics = folder_ + "/metrics.jsonl";
  const Finished run = RunStagecoach(Train(
      {"--loss", "mse", "--epochs", "1", "--stop-when", "test_loss<0.5", "--metrics", metrics}));
  EXPECT_EQ(run.exit_status, 0) << run.err;
  EXPECT_THAT(run.out, AllOf(HasSubstr("2 features, a number to predict"),
                             HasSubstr("train rmse   test rmse     time  samples/s"),
                             Not(HasSubstr("acc."))));
  std::ifstream file(metrics);
  std::string line, last;
  while (std::getline(file, line)) last = line;
  EXPECT_THAT(last, AllOf(HasSubstr("\"train_rmse\":"), HasSubstr("\"test_rmse\":"),
                          Not(HasSubstr("accuracy"))));
  ExpectRefused(Train({"--loss", "mse", "--stop-when", "test_accuracy>0.5"}), 2,
                "numbers have no accuracy");
}

TEST_F(Numbers, GoOnFromACheckpointWithTheSameBits) {
  const std::string run = folder_ + "/run";
  const Finished whole = RunStagecoach(Train({"--loss", "mse", "--epochs", "4", "--json"}));
  const Arguments saves = {"--json", "--checkpoint", run};
  // The run stops after the first epoch.
  const Finished half = RunStagecoach(
      Train(Joined({"--loss", "mse", "--epochs", "4", "--stop-when", "train_loss<1e9"}, saves)));
  EXPECT_EQ(half.exit_status, 0) << half.err;
  const Finished rest =
      RunStagecoach(Joined({"train", "--resume", "--stages", "3", "--stop-when", "never"}, saves));
  EXPECT_EQ(rest.exit_status, 0) << rest.err;
  EXPECT_EQ(LastEpoch(rest)["test_rmse"], LastEpoch(whole)["test_rmse"]);
  EXPECT_EQ(rest.Events().back()["parameters_hash"], whole.Events().back()["parameters_hash"]);
}

}  // namespace
}  // namespace stagecoach::tools
