#include "partition/io/plan_file.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schedule/generators/generators.h"
#include "schedule/transforms/lowering.h"
#include "tests/testing/refusals.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"

namespace stagecoach::partition {
namespace {

using ::stagecoach::testing::IsOk;
using ::stagecoach::testing::IsRefused;
using ::stagecoach::testing::StatusIs;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

PlanFile FileOf(const schedule::Schedule& schedule, int layers_per_stage = 2) {
  PlanFile file = {.model = "default", .plan = {.micro_batch_rows = 16, .schedule = schedule}};
  for (int stage = 0; stage < schedule.num_stages(); ++stage) {
    file.plan.first_layer.push_back(stage * layers_per_stage);
  }
  file.plan.num_layers = schedule.num_stages() * layers_per_stage;
  return file;
}

PlanFile FileOf(absl::string_view name, int ranks, int micro_batches, int chunks = 0) {
  return FileOf(
      schedule::Generate(name, {.ranks = ranks, .micro_batches = micro_batches, .chunks = chunks})
          .value());
}

// The example of the documentation.
constexpr char kTwoStages[] = R"({
  "format": "stagecoach-plan",
  "version": 1,
  "model": "default",
  "layers": 20,
  "micro_batches": 8,
  "micro_batch_rows": 16,
  "schedule": "zb-h1",
  "chunks": 1,
  "stages": [
    {"first_layer": 0, "last_layer": 9, "rank": 0},
    {"first_layer": 10, "last_layer": 19, "rank": 1}
  ],
  "replicas": 2,
  "gradient_blocks": 4,
  "shard_optimizer": true,
  "reduction_part_bytes": 33554432,
  "recomputed_layers": [3, 4]
}
)";

// Returns kTwoStages with one piece of it replaced.
std::string With(absl::string_view piece, absl::string_view replacement) {
  const std::string text = absl::StrReplaceAll(kTwoStages, {{piece, replacement}});
  EXPECT_NE(text, kTwoStages) << piece;
  return text;
}

TEST(PlanFile, ReadsWhatTheDocumentationShows) {
  const absl::StatusOr<PlanFile> file = ParsePlanJson(kTwoStages);
  ASSERT_THAT(file, IsOk());
  EXPECT_EQ(file->model, "default");
  const Plan& plan = file->plan;
  EXPECT_THAT(plan.first_layer, ::testing::ElementsAre(0, 10));
  EXPECT_EQ(plan.num_layers, 20);
  EXPECT_EQ(plan.micro_batch_rows, 16);
  EXPECT_EQ(plan.micro_batches(), 8);
  EXPECT_EQ(plan.schedule, schedule::Generate("zb-h1", {.ranks = 2, .micro_batches = 4}).value());
  EXPECT_EQ(
      plan.replication,
      (Replication{
          .replicas = 2, .gradient_blocks = 4, .shards_optimizer = true, .part_bytes = 33554432}));
  EXPECT_THAT(plan.recomputed, ::testing::ElementsAre(3, 4));
  EXPECT_EQ(ToPlanJson(*file), kTwoStages);
}

TEST(PlanFile, RoundTripIsTheIdentityForEveryGenerator) {
  for (const schedule::Generator& generator : schedule::Generators()) {
    for (const int ranks : {1, 2, 4}) {
      for (const int chunks : {0, 1, 3}) {
        const absl::StatusOr<schedule::Schedule> made = generator.generate(
            {.ranks = ranks, .micro_batches = 2 * ranks + ranks, .chunks = chunks});
        if (!made.ok()) continue;
        const PlanFile file = FileOf(*made);
        const std::string text = ToPlanJson(file);
        EXPECT_THAT(text, HasSubstr(absl::StrCat("\"schedule\": \"", made->name, "\"")));
        const absl::StatusOr<PlanFile> read = ParsePlanJson(text);
        ASSERT_THAT(read, IsOk()) << text;
        EXPECT_EQ(*read, file) << text;
      }
    }
  }
}

TEST(PlanFile, RoundTripIsTheIdentityForSchedulesThatNoGeneratorMakes) {
  PlanFile automatic = FileOf("zb-v", 2, 4);
  automatic.plan.schedule.name = "auto";
  PlanFile lowered = FileOf("1f1b", 3, 4);
  lowered.plan.schedule = schedule::Lower(lowered.plan.schedule).value();
  PlanFile reversed = FileOf("1f1b", 2, 4);
  std::reverse(reversed.plan.schedule.rank_of_stage.begin(),
               reversed.plan.schedule.rank_of_stage.end());
  std::reverse(reversed.plan.schedule.actions.begin(), reversed.plan.schedule.actions.end());
  // One rank with two stages, another with one.
  PlanFile uneven = FileOf(schedule::Schedule{
      .name = "mine",
      .num_micro_batches = 1,
      .rank_of_stage = {schedule::Rank(0), schedule::Rank(0), schedule::Rank(1)},
      .actions = {{*schedule::ParseCode("F0.0"), *schedule::ParseCode("F1.0"),
                   *schedule::ParseCode("BW1.0"), *schedule::ParseCode("BW0.0")},
                  {*schedule::ParseCode("F2.0"), *schedule::ParseCode("BW2.0")}}});
  for (const PlanFile& file : {automatic, lowered, reversed, uneven}) {
    const std::string text = ToPlanJson(file);
    EXPECT_THAT(text, HasSubstr("\"ranks\": ["));
    EXPECT_THAT(text, Not(HasSubstr("chunks")));
    const absl::StatusOr<PlanFile> read = ParsePlanJson(text);
    ASSERT_THAT(read, IsOk()) << text;
    EXPECT_EQ(*read, file) << text;
  }
}

TEST(PlanFile, RoundTripKeepsEveryFieldOfRandomPlans) {
  std::mt19937 random(7);
  for (int i = 0; i < 300; ++i) {
    const absl::Span<const schedule::Generator> generators = schedule::Generators();
    const schedule::Generator& generator = generators[random() % generators.size()];
    const int ranks = 1 + static_cast<int>(random() % 4);
    PlanFile file = FileOf(generator.name, ranks, 8 * ranks);
    Plan& plan = file.plan;
    file.model = i % 5 == 0 ? "" : "a \"model\"\n\xC3\xA9";
    for (int& first : plan.first_layer)
      first = first == 0 ? 0 : first - static_cast<int>(random() % 2);
    plan.num_layers += static_cast<int>(random() % 3);
    plan.micro_batch_rows = 4 + random() % 100;
    plan.replication.replicas = 1 << random() % 3;
    plan.replication.gradient_blocks = plan.replicas() << random() % 4;
    plan.replication.shards_optimizer = plan.replicas() > 1 && random() % 2 == 0;
    if (plan.replicas() > 1 && !plan.replication.shards_optimizer && random() % 2 == 0) {
      plan.replication.reduction = ReductionKind::kRing;
    }
    for (int layer = 0; layer < plan.num_layers; ++layer) {
      if (random() % 3 == 0) plan.recomputed.push_back(layer);
    }
    if (random() % 2 == 0) {
      plan.order.resize(static_cast<size_t>(plan.num_layers));
      std::iota(plan.order.begin(), plan.order.end(), 0);
      std::shuffle(plan.order.begin(), plan.order.end(), random);
    }
    ASSERT_THAT(CheckPlan(plan), IsOk());
    const absl::StatusOr<PlanFile> read = ParsePlanJson(ToPlanJson(file));
    ASSERT_THAT(read, IsOk()) << ToPlanJson(file);
    EXPECT_EQ(*read, file);
  }
}

struct Refusal {
  const char* piece;
  const char* replacement;
  const char* place;
  const char* reason;
};

TEST(PlanFile, SaysWhereAndWhatIsWrong) {
  const Refusal refusals[] = {
      {"stagecoach-plan", "stagecoach-profile", "$.format: ", "must be \"stagecoach-plan\""},
      {"\"version\": 1", "\"version\": 2", "$.version: ", "must be 1, found 2"},
      {"\"layers\": 20,", "", "$: ", "the key \"layers\" is missing"},
      {"\"layers\": 20", "\"layers\": 0", "$.layers: ", "must be from 1 to 100000, found 0"},
      {"\"layers\": 20", "\"layers\": 21",
       "$.stages[1].last_layer: ", "must be 20, the last layer, found 19"},
      {"\"layers\": 20", "\"layers\": 15", "$.stages[1].last_layer: ", "from 10 to 14, found 19"},
      {"\"layers\": 20", "\"layers\": \"20\"", "$.layers: ", "expected an integer"},
      {"\"micro_batches\": 8", "\"micro_batches\": 0", "$.micro_batches: ", "from 1 to 16777216"},
      {"\"micro_batches\": 8", "\"micro_batches\": 1e3", "$.micro_batches: ", "an integer"},
      {"\"micro_batch_rows\": 16", "\"micro_batch_rows\": -1", "$.micro_batch_rows: ", "from 1 to"},
      {"\"micro_batch_rows\"", "\"micro_batch_row\"", "$: ", "\"micro_batch_rows\" is missing"},
      {"\"zb-h1\"", "\"zb-h3\"", "$.schedule: ", "did you mean zb-h1?"},
      {"\"zb-h1\"", "\"auto\"", "$.schedule: ", "is written in full, as an object"},
      {"\"zb-h1\"", "7", "$.schedule: ", "expected a string"},
      {"\"zb-h1\"", "\"zb-v\"", "$.schedule: ", "2"},
      {"\"chunks\": 1", "\"chunks\": 3", "$.chunks: ", "from 1 to 2, found 3"},
      {"\"chunks\": 1,", "", "$: ", "the key \"chunks\" is missing"},
      {"\"first_layer\": 0,", "\"first_layer\": 1,",
       "$.stages[0].first_layer: ", "must be 0, found 1"},
      {"\"first_layer\": 10", "\"first_layer\": 11", "$.stages[1].first_layer: ",
       "must be 10, the layer after the last one of the stage before, found 11"},
      {"\"last_layer\": 9", "\"last_layer\": 20", "$.stages[0].last_layer: ", "from 0 to 19"},
      {"\"rank\": 1", "\"rank\": 0",
       "$.stages[1].rank: ", "must be 1, where zb-h1 has this stage, found 0"},
      {"\"rank\": 1", "\"rank\": 2", "$.stages[1].rank: ", "must be from 0 to 1, found 2"},
      {"\"rank\": 1", "\"ranks\": 1", "$.stages[1]: ", "the key \"rank\" is missing"},
      {"\"rank\": 1", "\"rank\": 1, \"devices\": 2", "$.stages[1]", "devices"},
      {"\"replicas\": 2", "\"replicas\": [2, 2]",
       "$.replicas: ", "must be one number: all ranks have the same now"},
      {"\"replicas\": 2", "\"replicas\": 0", "$.replicas: ", "must be from 1 to 4096, found 0"},
      {"\"replicas\": 2", "\"replicas\": 3", "$.replicas: ", "3 replicas: must be a power of two"},
      {"\"replicas\": 2", "\"replicas\": 8", "$.gradient_blocks: ", "4 gradient blocks for 8"},
      {"\"gradient_blocks\": 4", "\"gradient_blocks\": 6", "$.gradient_blocks: ", "power of two"},
      {"\"replicas\": 2", "\"replicas\": 1",
       "$.shard_optimizer: ", "a sharded optimizer for 1 replica"},
      {"\"replicas\": 2", "\"replicas\": 2, \"reduction\": \"ring\"",
       "$.reduction: ", "a ring gives every replica all sums"},
      {"\"replicas\": 2", "\"replicas\": 2, \"reduction\": \"star\"",
       "$.reduction: ", "\"star\": expected \"tree\" or \"ring\""},
      {"33554432", "33554433", "$.reduction_part_bytes: ", "expected a multiple of 64"},
      {"33554432", "0", "$.reduction_part_bytes: ", "must be from 64 to 1073741824, found 0"},
      {"\"gradient_blocks\": 4", "\"gradient_blocks\": 16",
       "$.micro_batches: ", "8 micro-batches cannot be divided evenly into 16"},
      {"\"micro_batches\": 8", "\"micro_batches\": 6",
       "$.micro_batches: ", "6 micro-batches cannot be divided evenly into 4"},
      {"[3, 4]", "[3, 20]", "$.recomputed_layers[1]: ", "must be from 0 to 19, found 20"},
      {"[3, 4]", "[4, 4]", "$.recomputed_layers[1]: ", "must be above the 4 before it, found 4"},
      {"\"recomputed_layers\"", "\"recompute_layers\"", "$", "recomputed_layers"},
      {"\"recomputed_layers\"", "\"order\"", "$.order: ", "must be all 20 layers, found 2"},
  };
  for (const Refusal& refusal : refusals) {
    const absl::StatusOr<PlanFile> file = ParsePlanJson(With(refusal.piece, refusal.replacement));
    EXPECT_THAT(file, IsRefused(AllOf(::testing::ContainsRegex("^[0-9]+:[0-9]+: "),
                                      HasSubstr(refusal.place), HasSubstr(refusal.reason))))
        << refusal.replacement;
  }
}

TEST(PlanFile, NamesTheLine) {
  EXPECT_THAT(ParsePlanJson(With("\"rank\": 1", "\"rank\": 0")),
              IsRefused(StartsWith("12:43: $.stages[1].rank")));
  EXPECT_THAT(ParsePlanJson(With("[3, 4]", "[3, 4")), IsRefused(StartsWith("19:1")));
}

TEST(PlanFile, WritesReplicationOnlyWhereItIsNotTheUsual) {
  PlanFile file = FileOf("1f1b", 2, 4);
  EXPECT_THAT(ToPlanJson(file), AllOf(Not(HasSubstr("replicas")), Not(HasSubstr("gradient"))));
  file.plan.replication = {2, 2};
  EXPECT_THAT(ToPlanJson(file), AllOf(HasSubstr("\"replicas\": 2"), Not(HasSubstr("gradient")),
                                      HasSubstr("\"micro_batches\": 8")));
  file.plan.replication = {1, 4};
  EXPECT_THAT(ToPlanJson(file),
              AllOf(Not(HasSubstr("replicas")), HasSubstr("\"gradient_blocks\": 4")));
  file.plan.schedule.name = "mine";  // written in full
  file.plan.replication = {2, 8};
  ASSERT_OK_AND_ASSIGN(const PlanFile read, ParsePlanJson(ToPlanJson(file)));
  EXPECT_EQ(read, file);
}

TEST(PlanFile, KeepsTheBytesOfTheModel) {
  PlanFile file = FileOf("1f1b", 2, 2);
  EXPECT_THAT(ToPlanJson(file), Not(HasSubstr("parameter_bytes")));
  file.parameter_bytes = int64_t{1} << 40;
  ASSERT_OK_AND_ASSIGN(const PlanFile read, ParsePlanJson(ToPlanJson(file)));
  EXPECT_EQ(read, file);
}

TEST(PlanFile, RefusesAnOrderWithALayerTwice) {
  PlanFile file = FileOf("1f1b", 2, 2);
  file.plan.order = {0, 2, 1, 3};
  const std::string text =
      absl::StrReplaceAll(ToPlanJson(file), {{"[0, 2, 1, 3]", "[0, 2, 2, 3]"}});
  EXPECT_THAT(ParsePlanJson(text), IsRefused(EndsWith("$.order[2]: layer 2 appears twice")));
}

TEST(PlanFile, SaysWhereAScheduleInFullIsWrong) {
  PlanFile file = FileOf("1f1b", 2, 2);
  file.plan.schedule.name = "mine";
  const std::string text = ToPlanJson(file);
  const auto parse = [&](absl::string_view piece, absl::string_view replacement) {
    return ParsePlanJson(absl::StrReplaceAll(text, {{piece, replacement}}));
  };
  EXPECT_THAT(parse("\"F0.1\"", "\"X0.1\""), IsRefused("$.schedule.ranks[0][1]: "));
  EXPECT_THAT(parse("\"F0.1\", ", ""), IsRefused("$.schedule.ranks[0]: "));
  // A deadlock: each rank waits for the other.
  EXPECT_THAT(parse("\"F0.0\", \"F0.1\", \"BW0.0\"", "\"F0.0\", \"BW0.0\", \"F0.1\""), IsOk());
  EXPECT_THAT(parse("\"F1.0\", \"BW1.0\", \"F1.1\"", "\"BW1.0\", \"F1.0\", \"F1.1\""),
              IsRefused("$.schedule.ranks[1]"));
  EXPECT_THAT(parse("\"micro_batch_rows\"", "\"chunks\": 1, \"micro_batch_rows\""),
              IsRefused("$.chunks: "));
  EXPECT_THAT(parse("  \"micro_batches\": 2,\n  \"micro_batch_rows\"",
                    "  \"micro_batches\": 3,\n  \"micro_batch_rows\""),
              IsRefused(EndsWith("$.micro_batches: must be 2, as in the schedule, found 3")));
  EXPECT_THAT(parse("\"rank_of_stage\": [0, 1]", "\"rank_of_stage\": [1, 0]"),
              IsRefused("$.schedule.ranks["));
  // The count is per replica, and there are two.
  EXPECT_THAT(parse("  \"micro_batch_rows\"", "  \"replicas\": 2,\n  \"micro_batch_rows\""),
              IsRefused(EndsWith("$.micro_batches: must be 4, as in the schedule, which each of 2 "
                                 "replicas performs, found 2")));
  PlanFile forward = file;
  forward.plan.schedule = schedule::ForwardOnly(file.plan.schedule.rank_of_stage, 2, 2).value();
  EXPECT_THAT(ParsePlanJson(ToPlanJson(forward)), IsRefused("no backward action"));
}

TEST(PlanFile, RefusesHostileTexts) {
  EXPECT_THAT(ParsePlanJson(std::string(100'000, '[')),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(ParsePlanJson(With("\"zb-h1\"", std::string(100, '[') + std::string(100, ']'))),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(ParsePlanJson(With("\"layers\": 20", "\"layers\": 20, \"layers\": 20")),
              StatusIs(absl::StatusCode::kInvalidArgument));
  // A short text must not make a schedule of many gigabytes.
  EXPECT_THAT(ParsePlanJson(With("\"micro_batches\": 8", "\"micro_batches\": 16777216")),
              IsRefused("$.micro_batches: must be at most 4194304 of 2 stages"));
}

TEST(PlanFile, OfEveryPrefixIsRefused) {
  const std::string text = kTwoStages;
  for (size_t size = 0; size + 2 < text.size(); ++size) {
    EXPECT_FALSE(ParsePlanJson(text.substr(0, size)).ok()) << size;
  }
}

TEST(PlanFile, IsReadFromWhereItWasWritten) {
  const testing::TestFolder folder;
  const std::string path = folder.path() / "plan.json";
  const PlanFile file = FileOf("interleaved", 2, 4, 3);
  ASSERT_THAT(WritePlanFile(path, file), IsOk());
  const absl::StatusOr<PlanFile> read = ReadPlanFile(path);
  ASSERT_THAT(read, IsOk());
  EXPECT_EQ(*read, file);
  EXPECT_THAT(ReadPlanFile(path + ".none"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(".none")));
  PlanFile broken = file;
  broken.plan.num_layers = 1;
  EXPECT_THAT(WritePlanFile(path, broken), IsRefused(StartsWith(path)));
  EXPECT_EQ(ReadPlanFile(path).value(), file);
}

}  // namespace
}  // namespace stagecoach::partition
