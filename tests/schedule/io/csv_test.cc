#include "schedule/io/csv.h"

#include <gtest/gtest.h>

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "schedule/generators/generators.h"
#include "schedule/transforms/lowering.h"
#include "schedule/verify/validator.h"
#include "tests/schedule/mutate.h"
#include "tests/testing/refusals.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::schedule {
namespace {

using ::stagecoach::testing::ExpectRefusals;
using ::stagecoach::testing::IsRefused;
using ::stagecoach::testing::Refusal;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// 1F1B of two ranks and three micro-batches, as PyTorch prints it.
constexpr char kOneFOneBCsv[] =
    "0F0,0F1,,0B0,0F2,0B1,,0B2\n"
    ",1F0,1B0,1F1,1B1,1F2,1B2\n";

std::vector<std::string> CodesOf(const std::vector<Action>& list) {
  std::vector<std::string> codes;
  for (const Action& action : list) codes.push_back(ToCode(action));
  return codes;
}

std::string WithoutEmptyCells(const std::string& text) {
  std::vector<std::string> rows;
  for (const absl::string_view row : absl::StrSplit(text, '\n')) {
    rows.push_back(absl::StrJoin(absl::StrSplit(row, ',', absl::SkipEmpty()), ","));
  }
  return absl::StrJoin(rows, "\n");
}

std::string WithoutWaits(const std::string& text) {
  std::vector<std::string> rows;
  for (const absl::string_view row : absl::StrSplit(text, '\n')) {
    std::vector<absl::string_view> cells = absl::StrSplit(row, ',');
    std::erase_if(cells, [](absl::string_view cell) { return absl::StrContains(cell, "WAIT_"); });
    rows.push_back(absl::StrJoin(cells, ","));
  }
  return absl::StrJoin(rows, "\n");
}

TEST(ScheduleCsv, ReadsAComputeScheduleThatIsPaddedToShowTime) {
  ASSERT_OK_AND_ASSIGN(const Schedule schedule, ParseScheduleCsv(kOneFOneBCsv, "mine"));
  EXPECT_EQ(schedule.name, "mine");
  EXPECT_EQ(schedule.num_micro_batches, 3);
  EXPECT_EQ(schedule.rank_of_stage, (std::vector<Rank>{Rank(0), Rank(1)}));
  EXPECT_EQ(absl::StrJoin(CodesOf(schedule.actions[0]), " "), "F0.0 F0.1 BW0.0 F0.2 BW0.1 BW0.2");
  EXPECT_EQ(absl::StrJoin(CodesOf(schedule.actions[1]), " "), "F1.0 BW1.0 F1.1 BW1.1 F1.2 BW1.2");
  EXPECT_EQ(ToScheduleCsv(schedule), WithoutEmptyCells(kOneFOneBCsv));
}

TEST(ScheduleCsv, TakesIForTheInputGradientAndBForTheFullBackward) {
  ASSERT_OK_AND_ASSIGN(const Schedule schedule, ParseScheduleCsv("0F0,0F1,0I0,0W0,0B1", ""));
  EXPECT_EQ(absl::StrJoin(CodesOf(schedule.actions[0]), " "), "F0.0 F0.1 B0.0 W0.0 BW0.1");
}

TEST(ScheduleCsv, ReadsOverlappedPairs) {
  // Stages 0 and 3 on the first rank, 1 and 2 on the second.
  const std::string text =
      "0F0,0F1,3F0,(0F2;3B0)OVERLAP_F_B,(3F1;0I0)OVERLAP_F_B,0W0,3B1,0B1,3F2,3B2,0B2\n"
      "1F0,2F0,1F1,2F1,2B0,1B0,(1F2;2B1)OVERLAP_F_B,1B1,2F2,2B2,1B2\n";
  ASSERT_OK_AND_ASSIGN(const Schedule schedule, ParseScheduleCsv(text, ""));
  EXPECT_EQ(absl::StrJoin(CodesOf(schedule.actions[0]), " "),
            "F0.0 F0.1 F3.0 F0.2+ BW3.0 F3.1+ B0.0 W0.0 BW3.1 BW0.1 F3.2 BW3.2 BW0.2");
  EXPECT_EQ(schedule.rank_of_stage, (std::vector<Rank>{Rank(0), Rank(1), Rank(1), Rank(0)}));
  EXPECT_EQ(ToScheduleCsv(schedule), text);
}

TEST(ScheduleCsv, ReadsTransfersAndAddsTheStepsThatPyTorchLacks) {
  const std::string text =
      "0UNSHARD,2UNSHARD,0F0,0SEND_F0,2RECV_F0,2F0,2B0,2SEND_B0,2REDUCE_GRAD,2RESHARD,0RECV_B0,"
      "0B0,0REDUCE_GRAD,0RESHARD\n"
      "1RECV_F0,1F0,1SEND_F0,1RECV_B0,1B0,1SEND_B0\n";
  ASSERT_OK_AND_ASSIGN(const Schedule schedule, ParseScheduleCsv(text, ""));
  EXPECT_EQ(absl::StrJoin(CodesOf(schedule.actions[0]), " "),
            "UNSHARD0 UNSHARD2 F0.0 SEND_F0.0 RECV_F2.0 F2.0 BW2.0 SEND_B2.0 REDUCE2 RESHARD2 "
            "RECV_B0.0 BW0.0 REDUCE0 RESHARD0 STEP0 STEP2");
  EXPECT_EQ(absl::StrJoin(CodesOf(schedule.actions[1]), " "),
            "RECV_F1.0 F1.0 SEND_F1.0 RECV_B1.0 BW1.0 SEND_B1.0 STEP1");
  EXPECT_EQ(WithoutWaits(ToScheduleCsv(schedule)), text);
}

// PyTorch waits explicitly, and a run here by itself.
TEST(ScheduleCsv, ReadsAndWritesTheWaitsOfPyTorch) {
  // PyTorch 2.15 writes ZBV of two ranks this way, except for one micro-batch and without UNSHARD
  // and RESHARD.
  const std::string text =
      "0F0,0SEND_F0,3RECV_F0,3F0,3I0,3SEND_B0,3W0,3REDUCE_GRAD,0RECV_B0,3WAIT_REDUCE_GRAD,0I0,"
      "0WAIT_SEND_F0,0W0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD,3WAIT_SEND_B0\n"
      "1RECV_F0,1F0,2F0,2SEND_F0,2RECV_B0,2I0,2WAIT_SEND_F0,2W0,1I0,1SEND_B0,1W0,2REDUCE_GRAD,"
      "2WAIT_REDUCE_GRAD,1REDUCE_GRAD,1WAIT_REDUCE_GRAD,1WAIT_SEND_B0\n";
  ASSERT_OK_AND_ASSIGN(const Schedule schedule, ParseScheduleCsv(text, ""));
  EXPECT_EQ(absl::StrJoin(CodesOf(schedule.actions[0]), " "),
            "F0.0 SEND_F0.0 RECV_F3.0 F3.0 B3.0 SEND_B3.0 W3.0 REDUCE3 RECV_B0.0 B0.0 W0.0 REDUCE0 "
            "STEP0 STEP3");
  ASSERT_OK_AND_ASSIGN(const Schedule without, ParseScheduleCsv(WithoutWaits(text), ""));
  EXPECT_EQ(without, schedule);
  // A sum may continue until the next begins.
  EXPECT_EQ(
      ToScheduleCsv(schedule),
      "0F0,0SEND_F0,3RECV_F0,3F0,3I0,3SEND_B0,3W0,3REDUCE_GRAD,0RECV_B0,0I0,0WAIT_SEND_F0,0W0,"
      "3WAIT_REDUCE_GRAD,0REDUCE_GRAD,3WAIT_SEND_B0,0WAIT_REDUCE_GRAD\n"
      "1RECV_F0,1F0,2F0,2SEND_F0,2RECV_B0,2I0,2WAIT_SEND_F0,2W0,1I0,1SEND_B0,1W0,2REDUCE_GRAD,"
      "2WAIT_REDUCE_GRAD,1REDUCE_GRAD,1WAIT_SEND_B0,1WAIT_REDUCE_GRAD\n");
}

// PyTorch's GPipe has such sums. With one rank, which has no messages, they make a schedule
// lowered.
TEST(ScheduleCsv, LeavesOutSumsOfAComputeSchedule) {
  const Schedule read = ParseScheduleCsv(
                            "0F0,0B0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD\n"
                            "1F0,1B0,1REDUCE_GRAD,1WAIT_REDUCE_GRAD\n",
                            "gpipe")
                            .value();
  EXPECT_EQ(ToScheduleCsv(read), "0F0,0B0\n1F0,1B0\n");
  EXPECT_TRUE(ParseScheduleCsv("0F0,0B0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD", "one")->IsLowered());
  EXPECT_FALSE(ParseScheduleCsv("0F0,0B0,0REDUCE_GRAD\n1REDUCE_GRAD", "no rank").ok());
  EXPECT_THAT(
      ParseScheduleCsv("0F0,0REDUCE_GRAD,0B0\n1F0,1REDUCE_GRAD", "gpipe").status().message(),
      HasSubstr("2:17 (end of the row): stage 1"));
}

TEST(ScheduleCsv, RefusesWaitsForNothing) {
  const auto refused = [](const std::string& row, const std::string& error) {
    EXPECT_THAT(ParseScheduleCsv(absl::StrCat(row, "\n1RECV_F0,1F0,1B0,1SEND_B0"), ""),
                IsRefused(StartsWith(error)));
  };
  refused("0F0,0WAIT_SEND_F0,0SEND_F0,0RECV_B0,0B0",
          "1:5: \"0WAIT_SEND_F0\" has no 0SEND_F0 to wait for before it in the row");
  refused("0F0,0SEND_F0,0RECV_B0,0B0,0WAIT_SEND_F0,0WAIT_SEND_F0", "1:41: ");
  refused("0F0,0SEND_F0,0RECV_B0,0B0,1WAIT_SEND_B0", "1:27: \"1WAIT_SEND_B0\" has no 1SEND_B0");
  refused("0F0,0SEND_F0,0RECV_B0,0B0,0WAIT_REDUCE_GRAD", "1:27: ");
  refused("0F0,0SEND_F0,0RECV_B0,0B0,0WAIT_RECV_B0", "1:27: \"0WAIT_RECV_B0\" is not an action");
  refused("0F0,0SEND_F0,0RECV_B0,0B0,0WAIT_SEND_F", "1:27: \"0WAIT_SEND_F\" is not an action");
}

TEST(ScheduleCsv, AddsNoStepsToAForwardOnlySchedule) {
  const std::string text = "0F0,0SEND_F0,0F1,0SEND_F1\n1RECV_F0,1F0,1RECV_F1,1F1\n";
  ASSERT_OK_AND_ASSIGN(const Schedule schedule, ParseScheduleCsv(text, ""));
  EXPECT_EQ(CodesOf(schedule.actions[0]).back(), "SEND_F0.1");
  EXPECT_EQ(WithoutWaits(ToScheduleCsv(schedule)), text);
}

TEST(ScheduleCsv, ToleratesHowOthersWriteCsv) {
  ASSERT_OK_AND_ASSIGN(const Schedule plain, ParseScheduleCsv(kOneFOneBCsv, ""));
  const std::string crlf = absl::StrReplaceAll(kOneFOneBCsv, {{"\n", "\r\n"}});
  const std::string quoted =
      absl::StrReplaceAll(kOneFOneBCsv, {{",", "\",\""}, {"\n", "\"\n\""}});  // ends in a quote
  for (const std::string& text :
       {crlf, absl::StrCat("\xEF\xBB\xBF", kOneFOneBCsv), absl::StrCat(kOneFOneBCsv, "\n\r\n \n"),
        absl::StrReplaceAll(kOneFOneBCsv, {{",", " ,\t"}}),
        std::string(absl::StripTrailingAsciiWhitespace(kOneFOneBCsv)),
        absl::StrCat("\"", quoted.substr(0, quoted.size() - 1))}) {
    const auto schedule = ParseScheduleCsv(text, "");
    ASSERT_THAT(schedule, ::stagecoach::testing::IsOk()) << absl::CHexEscape(text);
    EXPECT_EQ(*schedule, plain) << absl::CHexEscape(text);
  }
  ASSERT_OK_AND_ASSIGN(const Schedule pair,
                       ParseScheduleCsv("0F0, \" ( 0F1 ; 0B0 ) OVERLAP_F_B\" ,000B0001", ""));
  EXPECT_EQ(ToScheduleCsv(pair), "0F0,(0F1;0B0)OVERLAP_F_B,0B1\n");
}

void ExpectRoundTrip(const Schedule& schedule) {
  const std::string text = ToScheduleCsv(schedule);
  ASSERT_OK_AND_ASSIGN(const Schedule read, ParseScheduleCsv(text, schedule.name));
  EXPECT_EQ(read, schedule);
  EXPECT_EQ(ToScheduleCsv(read), text);
}

TEST(ScheduleCsv, RoundTripIsTheIdentityForEveryGeneratedSchedule) {
  for (const Generator& generator : Generators()) {
    int generated = 0;
    for (const int ranks : {1, 2, 3, 4, 7}) {
      for (const int micro_batches : {1, 2, 5, 12, 14}) {
        for (const int chunks : {0, 3}) {
          const auto compute = generator.generate({ranks, micro_batches, chunks});
          if (!compute.ok()) continue;
          ++generated;
          SCOPED_TRACE(absl::StrCat(compute->name, " p=", ranks, " m=", micro_batches));
          ExpectRoundTrip(*compute);
          ASSERT_OK_AND_ASSIGN(const Schedule lowered, Lower(*compute));
          // A schedule without transfers cannot be told from a compute schedule.
          if (ranks > 1) ExpectRoundTrip(lowered);
        }
      }
    }
    EXPECT_GE(generated, 4) << generator.name;
  }
}

// Returns what parsing gives, for tables of refusals.
absl::Status ParseCsv(const std::string& text) { return ParseScheduleCsv(text, "").status(); }

TEST(ScheduleCsv, RefusesCellsThatAreNoAction) {
  EXPECT_THAT(
      ParseScheduleCsv("0F0,0B0\n1F0,,3X4", ""),
      IsRefused(::testing::Eq(
          "2:6: \"3X4\" is not an action; expected {stage}{F|I|W|B}{micro-batch}, "
          "{stage}{SEND_F|RECV_F|SEND_B|RECV_B}{micro-batch}, "
          "{stage}{UNSHARD|RESHARD|REDUCE_GRAD}, WAIT_ before SEND_F, SEND_B or REDUCE_GRAD, "
          "or a pair such as (0F1;0B0)OVERLAP_F_B")));
  constexpr char kCells[] =
      "F0|0F|0|00|0f0|0F-1|-0F0|+0F0|0F0x|0 F0|0F 0|0BW0|0STEP|0UNSHARD0|0SEND_F|0SENDF0|"
      "0F1.0|0x1F0|\"0F0|0F0\"|''|(0F1)|(0F1;0B0)|(0F1;0B0|0F1;0B0|"
      "(0F1;0B0;0W0)OVERLAP_F_B|((0F1;0B0)OVERLAP_F_B|(0F1;)OVERLAP_F_B|(;)OVERLAP_F_B|"
      "()OVERLAP_F_B|(0F1,0B0)OVERLAP_F_B|(0F1;0B0)OVERLAP|)(OVERLAP_F_B|\357\273\2770F0|"
      "\xC3\xA9";
  for (const absl::string_view cell : absl::StrSplit(kCells, '|')) {
    EXPECT_THAT(ParseScheduleCsv(absl::StrCat("0F0,", cell), ""),
                IsRefused(AllOf(StartsWith("1:5: \""), HasSubstr("is not an action"))))
        << cell;
  }
}

TEST(ScheduleCsv, RefusesRowsThatAreNoPlacement) {
  const Refusal<std::string> refusals[] = {
      {"", StartsWith("1:1: the row has no action")},
      {" \n\n", StartsWith("1:1: the row has no action")},
      {"0F0\n\n1F0", StartsWith("2:1: the row has no action")},
      {"0F0\n,,\n1F0", StartsWith("2:1: the row has no action")},
      {"0F0,0B0\n1F0,,0F1", StartsWith("2:6 (0F1): stage 0 is in row 1 already")},
      {"0F0,2F0", StartsWith("1:5 (2F0): no row has an action of stage 1; stages count from 0")},
      {"1F0", StartsWith("1:1 (1F0): no row has an action of stage 0")},
      {"0UNSHARD,0RESHARD", StartsWith("1:1: no action of the file has a micro-batch")},
  };
  ExpectRefusals(ParseCsv, refusals);
}

TEST(ScheduleCsv, NamesTheCellThatBreaksARule) {
  const Refusal<std::string> refusals[] = {
      {"0F0,0B0,,0F0", StartsWith("1:10 (0F0): stage 0 F micro-batch 0: ")},
      {"0F0,0B0,0W0", StartsWith("1:9 (0W0): stage 0 W micro-batch 0: ")},
      {"0B0,,0F0", StartsWith("1:1 (0B0): stage 0 BW micro-batch 0: ")},
      {"0F0,0F1,0B1,0B0", StartsWith("1:9 (0B1): stage 0 BW micro-batch 1: ")},
      {"0F0,(0F1;0B1)OVERLAP_F_B,0B0", StartsWith("1:5 (0F1): stage 0 F micro-batch 1: ")},
      {"0F0,0SEND_F0,0B0", StartsWith("1:5 (0SEND_F0): stage 0 SEND_F micro-batch 0: ")},
      {"0F0,0SEND_F0\n1F0,1RECV_F0", StartsWith("2:1 (1F0): stage 1 F micro-batch 0: ")},
      {"0F0,0B0,0REDUCE_GRAD,0REDUCE_GRAD", StartsWith("1:22 (0REDUCE_GRAD): stage 0 REDUCE: ")},
  };
  ExpectRefusals(ParseCsv, refusals);
}

// The order that it produces has the last rank's forward passes from 1 on.
TEST(ScheduleCsv, RefusesPyTorchsSchedule1F1BWithTheReason) {
  constexpr char kReason[] =
      "2:2 (1F1): the last rank skips micro-batch 0, as the order that PyTorch's";
  const Refusal<std::string> refusals[] = {
      {"0F0,,,0F1,0B0,0F2,0B1,,0B2,0REDUCE_GRAD,0WAIT_REDUCE_GRAD\n"
       ",1F1,1B0,1F2,1B1,1F3,1B2,1REDUCE_GRAD,1WAIT_REDUCE_GRAD",
       StartsWith(kReason)},
      {"0F0,,,0F1,0B0,,0B1\n,1F1,1B0,1F2,1B1", StartsWith(kReason)},
      {"0F0,0F1,0B0,0B1\n1F1,1B1",
       StartsWith("2:8 (end of the row): stage 1 F micro-batch 0 is missing")},
  };
  ExpectRefusals(ParseCsv, refusals);
}

TEST(ScheduleCsv, NamesTheEndOfTheRowThatLacksAnAction) {
  const Refusal<std::string> refusals[] = {
      {"0F0,0F1,0B0,0B1\n1F0,1B0,1B1", StartsWith("2:12 (end of the row): ")},
      {"0F0,0F1,0B0,0B1\n1F0,1F1,1B0,,", StartsWith("2:12 (end of the row): stage 1 B ")},
      {"0F0,0I0\n1F0,1B0", StartsWith("1:8 (end of the row): stage 0 W micro-batch 0 is missing")},
      {"0F0\n1F0,1B0", StartsWith("1:4 (end of the row): stage 0 B micro-batch 0 is missing")},
      {"0F0,0SEND_F0\n1F0", StartsWith("2:4 (end of the row): stage 1 RECV_F micro-batch 0 is ")},
  };
  ExpectRefusals(ParseCsv, refusals);
}

TEST(ScheduleCsv, DrawsADeadlockWithTheCellsOfAComputeSchedule) {
  EXPECT_THAT(ParseScheduleCsv("0F0,,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n", ""),
              IsRefused(AllOf(StartsWith("1:6 (0B0): stage 0 BW micro-batch 0: deadlock "),
                              HasSubstr("\n  1:6 (0B0): stage 0 BW micro-batch 0 waits "
                                        "for stage 1 SEND_B micro-batch 0 at 2:9 (1B0)"),
                              HasSubstr("\n  2:5 (1F1): stage 1 F micro-batch 1 waits "
                                        "for stage 0 SEND_F micro-batch 1 at 1:10 (0F1)"))));
}

TEST(ScheduleCsv, DrawsADeadlockWithTheCellsOfTransfers) {
  EXPECT_THAT(ParseScheduleCsv("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
                               "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n",
                               ""),
              IsRefused(AllOf(HasSubstr("deadlock"), HasSubstr("\n  1:18 (0SEND_F1): "),
                              HasSubstr("\n  2:18 (1SEND_B0): "))));
}

TEST(ScheduleCsv, RefusesHugeNumbersWithoutMakingRoomForThem) {
  const Refusal<std::string> refusals[] = {
      {"99999999999999999999999F0", StartsWith("1:1: the stage or micro-batch of \"999")},
      {"2147483647F0", StartsWith("1:1: the stage or micro-batch of \"2147483647F0\" is above")},
      {"0F4294967296", StartsWith("1:1: the stage or micro-batch of \"0F4294967296\" is above")},
      {"0F1000000000", StartsWith("1:1: the stage or micro-batch of ")},
      {"16777216F0", StartsWith("1:1: the stage or micro-batch of ")},
      {"16777215F0", StartsWith("1:1 (16777215F0): no row has an action of stage 0")},
      {"0F0,16777215F0", StartsWith("1:5 (16777215F0): no row has an action of stage 1")},
      {"0F16777215", StartsWith("1:11 (end of the row): ")},
      {"0F0\n1F16777215", StartsWith("2:1 (1F16777215): 2 stages times 16777216 micro-batches ")},
      {"(0F99999999999;0B0)OVERLAP_F_B", StartsWith("1:1: the stage or micro-batch of ")},
  };
  ExpectRefusals(ParseCsv, refusals);
}

TEST(ScheduleCsv, RefusesMoreRowsThanCanBeChecked) {
  std::string text;
  for (int row = 0; row < 4096; ++row) absl::StrAppend(&text, row, "F0\n");
  ASSERT_OK_AND_ASSIGN(const Schedule schedule, ParseScheduleCsv(text, ""));
  EXPECT_EQ(schedule.num_ranks(), 4096);
  const Refusal<std::string> refusals[] = {
      {absl::StrCat(text, "4096F0\n"), StartsWith("4097:1: there may be at most 4096")},
      {absl::StrCat("4096F0,", text), StartsWith("1:1 (4096F0): 4097 stages times 4096")},
  };
  ExpectRefusals(ParseCsv, refusals);
}

TEST(ScheduleCsv, ReadsAMillionEmptyCells) {
  const std::string commas(1'000'000, ',');
  ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                       ParseScheduleCsv(absl::StrCat("0F0", commas, "0B0", commas), ""));
  EXPECT_EQ(ToScheduleCsv(schedule), "0F0,0B0\n");
  const Refusal<std::string> refusals[] = {
      {absl::StrCat("0F0", commas, "?"), StartsWith("1:1000004: \"?\" is not an action")},
      {commas, StartsWith("1:1: the row has no action")},
  };
  ExpectRefusals(ParseCsv, refusals);
}

TEST(ScheduleCsv, ShowsLittleOfACellThatIsNoAction) {
  const auto status = ParseScheduleCsv(std::string(1'000'000, 'x'), "").status();
  EXPECT_THAT(status, IsRefused(StartsWith(absl::StrCat("1:1: \"", std::string(40, 'x'),
                                                        "...\" is not an action"))));
  EXPECT_THAT(ParseScheduleCsv(absl::string_view("0F0,0\0Z", 7), ""),
              IsRefused(StartsWith("1:5: \"0\\x00Z\" is not an action")));
}

TEST(ScheduleCsvFuzz, MutantsAreRefusedWithTheirPlaceOrAreProved) {
  std::vector<std::string> seeds = {
      kOneFOneBCsv, "0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD\n1RECV_F0,1F0,1B0,1SEND_B0,1RESHARD\n"};
  for (const absl::string_view name : {"dualpipe-v", "zb-v", "interleaved"}) {
    ASSERT_OK_AND_ASSIGN(const Schedule compute, Generate(name, {2, 4}));
    ASSERT_OK_AND_ASSIGN(const Schedule lowered, Lower(compute));
    seeds.push_back(ToScheduleCsv(compute));
    seeds.push_back(ToScheduleCsv(lowered));
  }
  constexpr uint64_t kMutants = 20'000;
  uint64_t accepted = 0;
  for (uint64_t i = 0; i < kMutants; ++i) {
    const std::string text =
        Mutate(seeds[i % seeds.size()], i, ",,;()\n\n\"\r 0123456789FIWBSENDRECV_UNSHARDOLP");
    const auto schedule = ParseScheduleCsv(text, "");
    if (!schedule.ok()) {
      EXPECT_THAT(schedule, IsRefused(::testing::ContainsRegex("^[0-9]+:[0-9]+( \\(|: )")))
          << absl::CHexEscape(text);
      continue;
    }
    ++accepted;
    ASSERT_OK_AND_ASSIGN(const Schedule lowered,
                         schedule->IsLowered() ? schedule : Lower(*schedule));
    EXPECT_FALSE(FindViolation(lowered).has_value()) << absl::CHexEscape(text);
    ExpectRoundTrip(*schedule);
  }
  EXPECT_GT(accepted, kMutants / 100);
}

// Lowers like PyTorch: in rounds, in each of which a rank performs its next action if its input
// has been sent. The send follows at once, and the receive goes to the end of the reader's list.
Schedule LowerInRounds(const Schedule& compute) {
  Schedule lowered = compute;
  for (std::vector<Action>& list : lowered.actions) list.clear();
  std::set<Action> received;
  std::vector<size_t> next(compute.actions.size(), 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t r = 0; r < next.size(); ++r) {
      if (next[r] == compute.actions[r].size()) continue;
      const Action& action = compute.actions[r][next[r]];
      const std::optional<Action> receive = ReceiveBefore(compute, action);
      if (receive.has_value() && !received.contains(*receive)) continue;
      lowered.actions[r].push_back(action);
      ++next[r];
      moved = true;
      const std::optional<Action> send = SendAfter(compute, action);
      if (!send.has_value()) continue;
      lowered.actions[r].push_back(*send);
      const Rank reader = PeerOf(compute, *send);
      lowered.actions[static_cast<size_t>(reader.value())].push_back(OtherEnd(*send));
      received.insert(OtherEnd(*send));
    }
  }
  return lowered;
}

TEST(ScheduleCsv, AcceptsWhatPyTorchLowers) {
  int accepted = 0;
  for (const Generator& generator : Generators()) {
    if (generator.name == "dualpipe-v") continue;  // its pairs are written in a different form
    for (int p = 2; p <= 8; ++p) {
      for (int m = p; m <= 4 * p; m += p) {
        const absl::StatusOr<Schedule> compute = generator.generate({p, m});
        ASSERT_TRUE(compute.ok());
        const Schedule lowered = LowerInRounds(*compute);
        const absl::StatusOr<Schedule> read = ParseScheduleCsv(ToScheduleCsv(lowered), "torch");
        EXPECT_TRUE(read.ok()) << generator.name << " " << p << " " << m << ": " << read.status();
        accepted += read.ok();
      }
    }
  }
  EXPECT_EQ(accepted, 9 * 7 * 4);
}

}  // namespace
}  // namespace stagecoach::schedule
