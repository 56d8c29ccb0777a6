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

  static constexpr int kRows = 200;
  const std::string folder_ = engine::TestDirectory();
  std::string table_;
};

TEST_F(Numbers, ArePredictedInTheirOwnUnits) {
  const std::string run = folder_ + "/run", outputs = folder_ + "/outputs.csv";
  const Finished trained = RunStagecoach({"train",
                                          "--data",
                                          table_,
                                          "--label",
                                          "price",
                                          "--layers",
                                          "3",
                                          "--width",
                                          "32",
                                          "--stages",
                                          "2",
                                          "--global-batch-size",
                                          "16",
                                          "--micro-batches",
                                          "4",
                                          "--learning-rate",
                                          "0.01",
                                          "--loss",
                                          "mse",
                                          "--epochs",
                                          "10",
                                          "--json",
                                          "--checkpoint",
                                          run});
  ASSERT_EQ(trained.exit_status, 0) << trained.err;
  const nlohmann::json epoch = trained.Events().at(10);
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
  const Finished refused = RunStagecoach({"predict", "--checkpoint", run, "--classes", outputs});
  EXPECT_EQ(refused.exit_status, kStatusUsage);
  ExpectOneLine(refused.err,
                HasSubstr("--classes: the model predicts numbers, which --outputs writes"));
}

}  // namespace
}  // namespace stagecoach::tools
