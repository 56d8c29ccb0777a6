// `train --test-data` and `--test-fraction`, as a user sees them.
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/data/data_test_util.h"
#include "tests/tools/child.h"

namespace stagecoach::tools {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class TestSet : public ::testing::Test {
 protected:
  TestSet() : csv_(Table("a.csv", 50)), other_(Table("b.csv", 7)) {}

  std::string Table(const std::string& name, int rows) const {
    std::string table = "x,y,label\n";
    for (int row = 0; row < rows; ++row) {
      absl::StrAppend(&table, row % 7, ",", row % 5, ",", row % 2, "\n");
    }
    return engine::WriteTestFile(folder_, name, table);
  }
  Arguments Train(const Arguments& more) const {
    return Joined({"train", "--layers", "2", "--width", "4", "--stages", "1", "--global-batch-size",
                   "8", "--epochs", "1"},
                  more);
  }
  static nlohmann::json RowsOf(const Finished& run) {
    EXPECT_EQ(run.exit_status, 0) << run.err;
    return run.Events().front()["rows"];
  }
  void ExpectRefused(const Arguments& more, int status, const std::string& line) const {
    const Finished run = RunStagecoach(Train(more));
    EXPECT_EQ(run.exit_status, status);
    ExpectOneLine(run.err, HasSubstr(line));
  }

  const std::string folder_ = engine::TestDirectory();
  const std::string csv_, other_;
};

TEST_F(TestSet, IsAShareOfAFileOrAnother) {
  const auto rows = [&](const Arguments& more) {
    return RowsOf(RunStagecoach(Train(Joined({"--json", "--data", csv_}, more))));
  };
  using Json = nlohmann::json;
  EXPECT_EQ(rows({}), Json({{"train", 40}, {"left_over", 0}, {"test", 10}}));
  EXPECT_EQ(rows({"--test-fraction", "0.5"}),
            Json({{"train", 25}, {"left_over", 1}, {"test", 25}}));
  EXPECT_EQ(rows({"--test-data", other_}), Json({{"train", 50}, {"left_over", 2}, {"test", 7}}));
}

TEST_F(TestSet, RowsThatMakeNoBatchAreTold) {
  const std::string line = "each epoch leaves out 2 rows, which make no whole batch";
  const Finished some = RunStagecoach(Train({"--data", csv_, "--test-data", other_}));
  EXPECT_THAT(some.out, AllOf(HasSubstr("50 rows to train on, 7 to test"), HasSubstr(line)));
  EXPECT_THAT(RunStagecoach(Train({"--data", csv_, "--test-fraction", "0.5"})).out,
              HasSubstr("leaves out 1 row, which makes no batch"));
  EXPECT_THAT(RunStagecoach(Train({"--data", csv_})).out, Not(HasSubstr("leaves out")));
}

TEST_F(TestSet, ClassesThatAreOnlyInItAreTold) {
  const std::string train =
      engine::WriteTestFile(folder_, "c.csv", "x,y,label\n1,2,a\n3,4,b\n5,6,c\n");
  const std::string test = engine::WriteTestFile(folder_, "d.csv", "x,y,label\n5,6,c\n");
  const auto errors = [&](const Arguments& more) {
    return RunStagecoach(Train(Joined({"--global-batch-size", "2", "--micro-batches", "1", "--data",
                                       train, "--test-data", test},
                                      more)))
        .err;
  };
  EXPECT_THAT(errors({}), IsEmpty());
  ExpectOneLine(errors({"--train-samples", "2"}),
                HasSubstr("no row is trained on of the class \"c\", which the test set has"));
}

TEST_F(TestSet, OfDataThatDoNotHaveOneToBeDividedIsRefused) {
  for (const char* data : {"synthetic:40x4x2", "/usr"}) {
    ExpectRefused({"--data", data, "--test-fraction", "0.5"}, kStatusUsage,
                  absl::StrCat("--test-fraction is for a single file, and ", data));
  }
  for (const char* fraction : {"0", "1", "1.5", "-0.1", "x", "nan"}) {
    ExpectRefused({"--data", csv_, "--test-fraction", fraction}, kStatusUsage,
                  absl::StrCat("--test-fraction: \"", fraction, "\""));
  }
  ExpectRefused({"--data", csv_, "--test-fraction", "0.5", "--test-data", other_}, kStatusUsage,
                "--test-data");
}

TEST_F(TestSet, ThatDoesNotFitIsRefusedBeforeTheRunStarts) {
  ExpectRefused({"--data", csv_, "--test-data", folder_ + "/none.csv"}, kStatusBadData,
                "/none.csv");
  ExpectRefused({"--data", csv_, "--test-data", "synthetic:40x2x2"}, kStatusBadData,
                "not trained on synthetic data");
  for (const char* test : {"synthetic:40x3x2", "synthetic:40x4x3"}) {
    ExpectRefused({"--data", "synthetic:40x4x2", "--test-data", test}, kStatusBadData,
                  absl::StrCat(test, ": the data has "));
  }
}

// The run is resumed, and predicts the data that it was tested with.
TEST_F(TestSet, IsKeptByCheckpoints) {
  const std::string saved = folder_ + "/run";
  const Arguments train = {"train", "--json", "--checkpoint", saved};
  const Finished first =
      RunStagecoach(Train({"--json", "--checkpoint", saved, "--checkpoint-every", "1",
                           "--keep-checkpoints", "9", "--data", csv_, "--test-data", other_}));
  ASSERT_EQ(first.exit_status, 0) << first.err;
  std::filesystem::remove_all(saved + "/step-00000006");
  const Finished rest = RunStagecoach(Joined(train, {"--resume"}));
  EXPECT_THAT(rest.err, IsEmpty());
  EXPECT_EQ(RowsOf(rest), RowsOf(first));
  EXPECT_EQ(rest.Events().back()["parameters_hash"], first.Events().back()["parameters_hash"]);
  const Finished predicted = RunStagecoach({"predict", "--json", "--checkpoint", saved});
  ASSERT_EQ(predicted.exit_status, 0) << predicted.err;
  EXPECT_EQ(predicted.Events().back()["rows"], 7);

  const Finished divided =
      RunStagecoach(Joined(train, {"--resume", "--epochs", "2", "--test-fraction", "0.25"}));
  EXPECT_EQ(RowsOf(divided)["train"], 37);
  EXPECT_THAT(divided.err, AllOf(HasSubstr("--train-samples was 50 and is 37"),
                                 HasSubstr(absl::StrCat("--test-data was ", other_,
                                                        ", and now --test-fraction is 0.25"))));
}

}  // namespace
}  // namespace stagecoach::tools
