#include "schedule/io/schedule_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/system/file.h"
#include "schedule/generators/generators.h"
#include "schedule/io/csv.h"
#include "schedule/transforms/lowering.h"
#include "schedule/verify/validator.h"
#include "tests/schedule/mutate.h"
#include "tests/testing/refusals.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"

namespace stagecoach::schedule {
namespace {

using ::stagecoach::testing::Edited;
using ::stagecoach::testing::IsRefused;
using ::stagecoach::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kOneFOneB[] = R"({
  "format": "stagecoach-schedule",
  "version": 1,
  "name": "1f1b",
  "micro_batches": 2,
  "rank_of_stage": [0, 1],
  "ranks": [
    ["F0.0", "F0.1", "BW0.0", "BW0.1"],
    ["F1.0", "BW1.0", "F1.1", "BW1.1"]
  ]
}
)";

std::string With(absl::string_view piece, absl::string_view replacement) {
  return Edited(kOneFOneB, piece, replacement);
}

TEST(ScheduleJson, HasTheDocumentedForm) {
  ASSERT_OK_AND_ASSIGN(const Schedule generated, Generate("1f1b", {2, 2}));
  EXPECT_EQ(ToScheduleJson(generated), kOneFOneB);
  ASSERT_OK_AND_ASSIGN(const Schedule read, ParseScheduleJson(kOneFOneB));
  EXPECT_EQ(read, generated);
}

TEST(ScheduleJson, RoundTripIsTheIdentityForEveryGeneratedSchedule) {
  for (const Generator& generator : Generators()) {
    int generated = 0;
    for (const int ranks : {1, 2, 3, 4, 7}) {
      for (const int micro_batches : {1, 5, 12, 14}) {
        const auto compute = generator.generate({ranks, micro_batches});
        if (!compute.ok()) continue;
        ++generated;
        SCOPED_TRACE(absl::StrCat(compute->name, " p=", ranks, " m=", micro_batches));
        ASSERT_OK_AND_ASSIGN(const Schedule lowered, Lower(*compute));
        for (const Schedule& schedule : {*compute, lowered}) {
          ASSERT_OK_AND_ASSIGN(const Schedule read, ParseScheduleJson(ToScheduleJson(schedule)));
          EXPECT_EQ(read, schedule);
        }
      }
    }
    EXPECT_GE(generated, 4) << generator.name;
  }
}

TEST(ScheduleJson, KeepsNames) {
  ASSERT_OK_AND_ASSIGN(Schedule schedule, Generate("1f1b", {2, 2}));
  schedule.name = "a \"quoted\"\n\t\\ name, \xC3\xA9";
  ASSERT_OK_AND_ASSIGN(const Schedule read, ParseScheduleJson(ToScheduleJson(schedule)));
  EXPECT_EQ(read, schedule);
}

TEST(ScheduleJson, WrapsLongLists) {
  ASSERT_OK_AND_ASSIGN(const Schedule compute, Generate("dualpipe-v", {8, 32}));
  ASSERT_OK_AND_ASSIGN(const Schedule lowered, Lower(compute));
  size_t widest = 0;
  for (const absl::string_view line : absl::StrSplit(ToScheduleJson(lowered), '\n')) {
    widest = std::max(widest, line.size());
  }
  EXPECT_LE(widest, 100U);
  EXPECT_GT(widest, 90U);
}

// If the text is JSON, the line of the place comes first.
::testing::Matcher<std::string> StartsAt(const std::string& error) {
  if (error.front() != '$') return StartsWith(error);
  return AllOf(ContainsRegex("^[0-9]+:[0-9]+: "), HasSubstr(absl::StrCat(": ", error)));
}

TEST(ScheduleJson, RefusesWhatIsNotOfTheForm) {
  const std::vector<std::pair<std::string, std::string>> refusals = {
      {"", "1:1: "},
      {"[]", "$: "},
      {"{}", "$: the key \"format\" is missing"},
      {With("stagecoach-schedule", "something"), "$.format: must be \"stagecoach-schedule\""},
      {With("'version': 1", "'version': 2"), "$.version: "},
      {With("'version': 1", "'version': '1'"), "$.version: "},
      {With("'name'", "'names'"), "$: the key \"name\" is missing"},
      {With("'name'", "'nam': 0, 'name'"), "$: unknown key \"nam\""},
      {With("'micro_batches': 2", "'micro_batches': 0"), "$.micro_batches: "},
      {With("'micro_batches': 2", "'micro_batches': 16777217"), "$.micro_batches: "},
      {With("'micro_batches': 2", "'micro_batches': 2.0"), "$.micro_batches: "},
      {With("[0, 1]", "[]"), "$.rank_of_stage: must have at least one stage"},
      {With("[0, 1]", "[0, 2]"), "$.rank_of_stage[1]: "},
      {With("[0, 1]", "[-1, 1]"), "$.rank_of_stage[0]: "},
      {With("[0, 1]", "01"), "6:"},
      {With("'BW1.0'", "'BX1.0'"), "$.ranks[1][1]: \"BX1.0\" is not an action"},
      {With("'BW1.0'", "7"), "$.ranks[1][1]: "},
      {With("'BW1.0'", "'BW99999999999.0'"), "$.ranks[1][1]: "},
      {With("['F1.0', 'BW1.0', 'F1.1', 'BW1.1']", "null"), "$.ranks[1]: "},
      {absl::StrCat(kOneFOneB, "x"), "12:1: "},
  };
  for (const auto& [text, error] : refusals) {
    EXPECT_THAT(ParseScheduleJson(text), IsRefused(StartsAt(error))) << text;
  }
}

TEST(ScheduleJson, NamesTheActionThatBreaksARule) {
  const std::vector<std::pair<std::string, std::string>> refusals = {
      {With("'BW1.0'", "'BW0.0'"), "$.ranks[1][1]: stage 0 BW micro-batch 0: "},
      {With("'BW1.0'", "'BW2.0'"), "$.ranks[1][1]: stage 2 BW micro-batch 0: "},
      {With("'BW1.0'", "'BW1.2'"), "$.ranks[1][1]: stage 1 BW micro-batch 2: "},
      {With("'BW1.0'", "'BW1.1'"), "$.ranks[1][3]: stage 1 BW micro-batch 1: "},
      {With("'F1.1'", "'F1.1+'"), "$.ranks[1][2]: stage 1 F micro-batch 1: "},
      {With("'BW1.0', ", ""), "$.ranks[1]: "},
      {With("'BW1.1'", "'BW1.1', 'STEP1'"), "$.ranks[0]: stage 0 has no STEP"},
      {With("[0, 1]", "[1, 0]"), "$.ranks[0][0]: stage 0 F micro-batch 0: that stage is on rank 1"},
      {With("'micro_batches': 2", "'micro_batches': 3"), "$.ranks[0]: "},
      {With("'micro_batches': 2", "'micro_batches': 16777216"), "$: 2 stages times 16777216"},
  };
  for (const auto& [text, error] : refusals) {
    EXPECT_THAT(ParseScheduleJson(text), IsRefused(StartsAt(error))) << text;
  }
}

TEST(ScheduleJson, DrawsADeadlockWithThePlacesOfAComputeSchedule) {
  EXPECT_THAT(ParseScheduleJson(
                  absl::StrReplaceAll(kOneFOneB, {{"\"F0.1\", \"BW0.0\"", "\"BW0.0\", \"F0.1\""},
                                                  {"\"BW1.0\", \"F1.1\"", "\"F1.1\", \"BW1.0\""}})),
              IsRefused(AllOf(
                  StartsWith("8:14: $.ranks[0][1]: stage 0 BW micro-batch 0: deadlock of 2 ranks"),
                  HasSubstr("\n  $.ranks[0][1]: stage 0 BW micro-batch 0 waits for stage 1 "
                            "SEND_B micro-batch 0 at $.ranks[1][2]"))));
}

TEST(ScheduleJsonFuzz, MutantsAreRefusedWithAPlaceOrAreProved) {
  std::vector<std::string> seeds = {kOneFOneB};
  for (const absl::string_view name : {"dualpipe-v", "zb-h1"}) {
    ASSERT_OK_AND_ASSIGN(const Schedule compute, Generate(name, {2, 4}));
    ASSERT_OK_AND_ASSIGN(const Schedule lowered, Lower(compute));
    seeds.push_back(ToScheduleJson(compute));
    seeds.push_back(ToScheduleJson(lowered));
  }
  constexpr uint64_t kMutants = 10'000;
  uint64_t accepted = 0;
  for (uint64_t i = 0; i < kMutants; ++i) {
    const std::string text =
        Mutate(seeds[i % seeds.size()], i, "{}[]\",:.\\+- 0123456789FBWSENDRCV_TP");
    const auto schedule = ParseScheduleJson(text);
    if (!schedule.ok()) {
      EXPECT_THAT(schedule, IsRefused(ContainsRegex("^([0-9]+:[0-9]+|line [0-9]+: \\$[^ ]*): ")))
          << absl::CHexEscape(text);
      continue;
    }
    ++accepted;
    ASSERT_OK_AND_ASSIGN(const Schedule lowered,
                         schedule->IsLowered() ? schedule : Lower(*schedule));
    EXPECT_FALSE(FindViolation(lowered).has_value()) << absl::CHexEscape(text);
  }
  EXPECT_GT(accepted, kMutants / 100);
}

class ScheduleFile : public ::testing::Test {
 protected:
  std::string PathOf(absl::string_view name) const { return folder_.path() / std::string(name); }

 private:
  const testing::TestFolder folder_;
};

TEST_F(ScheduleFile, IsReadAsItWasWrittenInBothForms) {
  ASSERT_OK_AND_ASSIGN(const Schedule compute, Generate("zb-v", {2, 4}));
  ASSERT_OK_AND_ASSIGN(const Schedule lowered, Lower(compute));
  for (const Schedule& schedule : {compute, lowered}) {
    for (const absl::string_view name : {"zb-v.csv", "zb-v.json", "zb-v.CSV"}) {
      ASSERT_OK(WriteScheduleFile(PathOf(name), schedule));
      ASSERT_OK_AND_ASSIGN(const Schedule read, ReadScheduleFile(PathOf(name)));
      EXPECT_EQ(read, schedule) << name;
    }
  }
  EXPECT_EQ(*base::ReadFile(PathOf("zb-v.CSV"), 1 << 20), ToScheduleCsv(lowered));
}

TEST_F(ScheduleFile, ErrorsStartWithThePath) {
  const std::string csv = PathOf("a.csv");
  ASSERT_OK(base::WriteFileAtomically(csv, "0F0,0B0,0X0"));
  EXPECT_THAT(ReadScheduleFile(csv), IsRefused(StartsWith(csv + ":1:9: ")));
  const std::string json = PathOf("a.json");
  ASSERT_OK(base::WriteFileAtomically(json, "{\"format\": 1}"));
  EXPECT_THAT(ReadScheduleFile(json), IsRefused(StartsWith(json + ":1:2: $.format: ")));
  EXPECT_THAT(ReadScheduleFile(PathOf("missing.csv")),
              StatusIs(absl::StatusCode::kNotFound, "missing.csv"));
}

TEST_F(ScheduleFile, HasAFormThatItsNameSays) {
  ASSERT_OK_AND_ASSIGN(const Schedule schedule, Generate("gpipe", {2, 2}));
  for (const absl::string_view name : {"schedule", "schedule.toml", "csv", "schedule.csv.gz"}) {
    const auto refused = IsRefused(AllOf(StartsWith(PathOf(name)), HasSubstr(".csv or .json")));
    EXPECT_THAT(WriteScheduleFile(PathOf(name), schedule), refused);
    EXPECT_THAT(ReadScheduleFile(PathOf(name)), refused);
  }
}

TEST_F(ScheduleFile, IsNotReadIfItIsHuge) {
  const std::string path = PathOf("huge.csv");
  ASSERT_OK(base::WriteFileAtomically(path, "0F0"));
  std::filesystem::resize_file(path, (uintmax_t{256} << 20) + 1);  // sparse
  EXPECT_THAT(ReadScheduleFile(path), StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST(ScheduleJson, RefusesARankWithoutStages) {
  const absl::Status status =
      ParseScheduleJson(R"({"format": "stagecoach-schedule", "version": 1, "name": "idle",
                            "micro_batches": 1, "rank_of_stage": [0],
                            "ranks": [["F0.0", "BW0.0"], []]})")
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("$.ranks[1]: no stage is on this rank"), std::string::npos)
      << status;
}

// PyTorch has no STEP: reading puts it at the end.
TEST(WriteScheduleFile, RefusesWhatACsvWouldChange) {
  Schedule lowered = Lower(OneFOneB({2, 2}).value()).value();
  lowered.actions[0].insert(lowered.actions[0].begin(), {.op = Op::kUnshard, .stage = StageId(0)});
  const testing::TestFolder folder;
  const std::string path = folder.path() / "written.csv";
  EXPECT_TRUE(WriteScheduleFile(path, lowered).ok());
  const Schedule one_rank = Lower(OneFOneB({1, 2}).value()).value();
  EXPECT_EQ(WriteScheduleFile(path, one_rank).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace stagecoach::schedule
