#include "tools/stagecoach/values/flags.h"

#include <CLI/CLI.hpp>
#include <set>
#include <string>

#include "engine/session/saved_run.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tools/stagecoach/flags/run_flags.h"
#include "tools/stagecoach/flags/saved_options.h"

namespace stagecoach::tools {
namespace {

using stagecoach::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(ParseCount, ReadsDecimalNumbersOnly) {
  EXPECT_THAT(*ParseCount("010", 1, 100), 10);
  for (const char* text : {"", "x", "4x", "0x10", " 4", "4 ", "1.5", "1e3", "--4"}) {
    EXPECT_THAT(ParseCount(text, 1, 100), Not(stagecoach::testing::IsOk())) << text;
  }
}

TEST(ParseCount, HoldsTheRange) {
  EXPECT_OK(ParseCount("1", 1, 100));
  EXPECT_OK(ParseCount("100", 1, 100));
  for (const char* text : {"0", "101", "-1", "99999999999999999999"}) {
    EXPECT_THAT(ParseCount(text, 1, 100), StatusIs(absl::StatusCode::kInvalidArgument,
                                                   HasSubstr("a whole number from 1 to 100")))
        << text;
  }
}

TEST(ParseNumber, HoldsTheRange) {
  const NumberRange range = {.min = 0.0, .max = 1.0, .above_min = true};
  EXPECT_OK(ParseNumber("1", range));
  EXPECT_OK(ParseNumber("1e-30", range));
  for (const char* text : {"0", "1.01", "-1", "nan", "inf", "", "0.5x", " 0.5"}) {
    EXPECT_THAT(ParseNumber(text, range),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("above 0 and at most 1")))
        << text;
  }
}

TEST(ParseNumber, MayIncludeTheLowerEnd) {
  EXPECT_OK(ParseNumber("0", {.min = 0.0, .max = 1.0}));
  EXPECT_THAT(ParseNumber("-0.1", {.min = 0.0, .max = 1.0}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("of at least 0")));
}

TEST(ParseChoice, ListsTheKnownNamesAndTheNearest) {
  EXPECT_THAT(ParseChoice("1f1v", {"gpipe", "1f1b"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       ::testing::Eq("\"1f1v\" is not one of gpipe, 1f1b; did you mean 1f1b?")));
}

TEST(RunFlags, OfOneNameThatDecideTheResultsAreSaved) {
  std::set<std::string> names;
  for (const RunFlag& flag : RunFlags()) {
    EXPECT_TRUE(names.insert(flag.name).second) << flag.name;
    EXPECT_EQ(FindRunFlag(flag.name), &flag);
  }
  for (const engine::DecisiveOption& option : engine::DecisiveOptions()) {
    const RunFlag* const flag = FindRunFlag(option.name);
    ASSERT_NE(flag, nullptr) << option.name;
    EXPECT_NE(flag->rules.saving, FlagSaving::kNever) << option.name;
  }
  EXPECT_EQ(FindRunFlag("--stages"), nullptr);  // an alias
}

// The names of the previous release are still known.
TEST(RunFlags, AreKnownByTheirEarlierNames) {
  engine::RunConfig options;
  CLI::App train;
  AddTrainFlags(train, options);
  engine::Manifest manifest;
  manifest.options = {{"--batch", "16", true},
                      {"--rows", "9", true},
                      {"--microbatches", "2", true},
                      {"--deadline", "7", true}};
  ASSERT_THAT(TakeSavedOptions(train, manifest, options), stagecoach::testing::IsOk());
  EXPECT_EQ(options.batch, 16);
  EXPECT_EQ(options.rows, 9);
  EXPECT_EQ(options.micro_batches, 2);
  EXPECT_EQ(options.deadline_seconds, 7);
  EXPECT_THAT(options.taken, ::testing::ElementsAre("--global-batch-size", "--train-samples",
                                                    "--micro-batches", "--timeout"));
  EXPECT_EQ(PresentName("--keep"), "--keep-checkpoints");
  EXPECT_EQ(PresentName("--every"), "--checkpoint-every");
  EXPECT_EQ(PresentName("--unknown"), "--unknown");
}

}  // namespace
}  // namespace stagecoach::tools
