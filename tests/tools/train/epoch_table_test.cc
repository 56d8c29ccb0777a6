#include "tools/stagecoach/train/epoch_table.h"

#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "base/text/utf8.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace stagecoach::tools {
namespace {

using ::testing::EndsWith;
using ::testing::StartsWith;

constexpr Measures kNumbers = {.label_stddev = 2.0};
constexpr Measures kTokens = {.tokens = 4, .has_perplexity = true};

engine::EpochResult Result() {
  return {.loss = 1.0,
          .train_accuracy = 0.5,
          .test_accuracy = 1.0,
          .test_loss = 2.25,
          .training = absl::Seconds(80),
          .evaluation = absl::Seconds(5),
          .samples_per_second = 1234.4};
}

std::string Row(const Measures& measures, int columns) {
  return EpochTable(measures, 2.0, static_cast<int>(columns)).Row("1.25", Result());
}

TEST(EpochTable, NamesWhatItsRowsSay) {
  EXPECT_EQ(EpochTable({}, 2.302, 88).Header(),
            "epoch     loss  0    2.30  train acc.  test acc.  test loss     time     eval  "
            "samples/s\n"
            "-----  -------  ---------  ----------  ---------  ---------  -------  -------  "
            "---------\n");
  EXPECT_EQ(Row({}, 88),
            " 1.25   1.0000  ████▌         50.00 %   100.00 %     2.2500   1m 20s    5.0 s      "
            "1,234\n");
}

TEST(EpochTable, HasErrorsOfNumbers) {
  const EpochTable table(kNumbers, 2.0, 80);
  EXPECT_THAT(table.Header(),
              StartsWith("epoch     loss  0      2.00  train rmse   test rmse     time     eval  "
                         "samples/s\n"));
  EXPECT_THAT(table.Row("1", Result()),
              EndsWith("           2           3   1m 20s    5.0 s      1,234\n"));
}

TEST(EpochTable, HasPerplexityAndSpeedOfTokens) {
  const EpochTable table(kTokens, 2.0, 80);
  EXPECT_THAT(table.Header(),
              StartsWith("epoch     loss  train acc.  test acc.  perplexity     time     eval    "
                         "tokens/s\n"));
  EXPECT_THAT(table.Row("1", Result()),
              EndsWith("     50.00 %   100.00 %        9.49   1m 20s    5.0 s       4,938\n"));
}

TEST(EpochTable, HasNoPerplexityOfAnotherLoss) {
  EXPECT_THAT(EpochTable({.tokens = 4}, 2.0, 80).Row("1", Result()),
              EndsWith("     2.2500   1m 20s    5.0 s       4,938\n"));
}

// An epoch that a resumed run only had to evaluate has no times.
TEST(EpochTable, HasNoTimesWhereNothingWasTrained) {
  engine::EpochResult result = Result();
  result.training = absl::ZeroDuration();
  result.samples_per_second = 0;
  for (const Measures& measures : {Measures(), kTokens}) {
    const std::string row = EpochTable(measures, 2.0, 80).Row("1", result);
    EXPECT_THAT(row, EndsWith(measures.tokens > 0 ? "        -    5.0 s           -\n"
                                                  : "        -    5.0 s          -\n"));
  }
}

TEST(EpochTable, TakesTheColumnsThatItMay) {
  for (const Measures& measures : {Measures(), kNumbers, kTokens}) {
    for (const size_t columns : {90U, 92U}) {
      const std::vector<std::string> header =
          absl::StrSplit(EpochTable(measures, 2.0, static_cast<int>(columns)).Header(), '\n');
      EXPECT_EQ(base::Width(header[0]), columns) << header[0];
      EXPECT_EQ(base::Width(header[1]), columns) << header[1];
      EXPECT_EQ(base::Width(Row(measures, static_cast<int>(columns))), columns + 1)
          << Row(measures, static_cast<int>(columns));
    }
  }
}

TEST(EpochTable, HasABarOfUsefulSizeOrNone) {
  const size_t of_others = 77;
  EXPECT_EQ(base::Width(Row({}, 20)), of_others + 1);
  EXPECT_EQ(base::Width(Row({}, 86)), of_others + 1);
  EXPECT_EQ(base::Width(Row({}, 87)), of_others + 2 + 8 + 1);
  EXPECT_EQ(base::Width(Row({}, 300)), of_others + 2 + 24 + 1);
}

}  // namespace
}  // namespace stagecoach::tools
