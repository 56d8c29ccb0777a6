#include "partition/io/plan_file.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schedule/generators/generators.h"
#include "schedule/transforms/lowering.h"
#include "tests/testing/refusals.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"

namespace stagecoach::partition {
namespace {

using ::stagecoach::testing::Edited;
using ::stagecoach::testing::ExpectRefusals;
using ::stagecoach::testing::IsOk;
using ::stagecoach::testing::IsRefused;
using ::stagecoach::testing::Refusal;
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

std::string With(absl::string_view piece, absl::string_view replacement) {
  return Edited(kTwoStages, piece, replacement);
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

TEST(PlanFile, KeepsHowManyDevicesShareLayers) {
  PlanFile file = FileOf("1f1b", 2, 4);
  file.plan.tensor_parts = 4;
  const absl::StatusOr<PlanFile> read = ParsePlanJson(ToPlanJson(file));
  ASSERT_THAT(read, IsOk());
  EXPECT_EQ(*read, file);
  EXPECT_EQ(read->plan.num_devices(), 8);
}

TEST(PlanFile, NamesItsDevicesIfTheClusterHasOthers) {
  PlanFile file = FileOf("1f1b", 2, 4);
  file.devices = {"a.0", "b\"c\".1"};
  const absl::StatusOr<PlanFile> read = ParsePlanJson(ToPlanJson(file));
  ASSERT_THAT(read, IsOk());
  EXPECT_EQ(*read, file);
  const auto refused = [&](std::vector<std::string> names, const std::string& message) {
    file.devices = std::move(names);
    EXPECT_THAT(ParsePlanJson(ToPlanJson(file)), IsRefused(HasSubstr(message)));
  };
  refused({"a.0"}, "$.devices: must be the names of the 2 devices of the plan, found 1");
  refused({"a.0", "a.0"}, "$.devices[1]: appears twice");
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
    PlanFile file = FileOf(generator.name, ranks, 12 * ranks);
    Plan& plan = file.plan;
    file.model = i % 5 == 0 ? "" : "a \"model\"\n\xC3\xA9";
    for (int& first : plan.first_layer)
      first = first == 0 ? 0 : first - static_cast<int>(random() % 2);
    plan.num_layers += static_cast<int>(random() % 3);
    plan.micro_batch_rows = 4 + random() % 100;
    plan.replication.replicas = 1 + static_cast<int>(random() % 6);
    plan.replication.gradient_blocks =
        plan.replicas() * std::array{1, 2, 3, 4, 6, 12}[random() % 6];
    plan.replication.shards_optimizer = plan.replicas() > 1 && random() % 2 == 0;
    if (plan.replicas() > 1 && !plan.replication.shards_optimizer && random() % 2 == 0) {
      plan.replication.reduction = ReductionKind::kRing;
    }
    for (int layer = 0; layer < plan.num_layers; ++layer) {
      if (random() % 3 == 0) plan.recomputed.push_back(layer);
    }
    plan.replication.offloads_optimizer = random() % 3 == 0;
    plan.offload = std::array{0.0, 0.0, 1.0 / 3.0, 1.0}[random() % 4];
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

// Matches an error that begins with its line and column, and then names the place and the reason.
auto At(const char* place, const char* reason) {
  return AllOf(::testing::ContainsRegex("^[0-9]+:[0-9]+: "), HasSubstr(place), HasSubstr(reason));
}

TEST(PlanFile, SaysWhereAndWhatIsWrong) {
  const Refusal<std::string> refusals[] = {
      {With("stagecoach-plan", "stagecoach-profile"),
       At("$.format: ", "must be \"stagecoach-plan\"")},
      {With("'version': 1", "'version': 2"), At("$.version: ", "must be 1, found 2")},
      {With("'layers': 20,", ""), At("$: ", "the key \"layers\" is missing")},
      {With("'layers': 20", "'layers': 0"), At("$.layers: ", "must be from 1 to 100000, found 0")},
      {With("'layers': 20", "'layers': 21"),
       At("$.stages[1].last_layer: ", "must be 20, the last layer, found 19")},
      {With("'layers': 20", "'layers': 15"),
       At("$.stages[1].last_layer: ", "from 10 to 14, found 19")},
      {With("'layers': 20", "'layers': '20'"), At("$.layers: ", "expected an integer")},
      {With("'micro_batches': 8", "'micro_batches': 0"),
       At("$.micro_batches: ", "from 1 to 16777216")},
      {With("'micro_batches': 8", "'micro_batches': 1e3"), At("$.micro_batches: ", "an integer")},
      {With("'micro_batch_rows': 16", "'micro_batch_rows': -1"),
       At("$.micro_batch_rows: ", "from 1 to")},
      {With("'micro_batch_rows'", "'micro_batch_row'"),
       At("$: ", "\"micro_batch_rows\" is missing")},
      {With("'zb-h1'", "'zb-h3'"), At("$.schedule: ", "did you mean zb-h1?")},
      {With("'zb-h1'", "'auto'"), At("$.schedule: ", "is written in full, as an object")},
      {With("'zb-h1'", "7"), At("$.schedule: ", "expected a string")},
      {With("'zb-h1'", "'zb-v'"), At("$.schedule: ", "2")},
      {With("'chunks': 1", "'chunks': 3"), At("$.chunks: ", "from 1 to 2, found 3")},
      {With("'chunks': 1,", ""), At("$: ", "the key \"chunks\" is missing")},
      {With("'first_layer': 0,", "'first_layer': 1,"),
       At("$.stages[0].first_layer: ", "must be 0, found 1")},
      {With("'first_layer': 10", "'first_layer': 11"),
       At("$.stages[1].first_layer: ",
          "must be 10, the layer after the last one of the stage before, found 11")},
      {With("'last_layer': 9", "'last_layer': 20"), At("$.stages[0].last_layer: ", "from 0 to 19")},
      {With("'rank': 1", "'rank': 0"),
       At("$.stages[1].rank: ", "must be 1, where zb-h1 has this stage, found 0")},
      {With("'rank': 1", "'rank': 2"), At("$.stages[1].rank: ", "must be from 0 to 1, found 2")},
      {With("'rank': 1", "'ranks': 1"), At("$.stages[1]: ", "the key \"rank\" is missing")},
      {With("'rank': 1", "'rank': 1, 'devices': 2"), At("$.stages[1]", "devices")},
      {With("'replicas': 2", "'replicas': [2, 2]"),
       At("$.replicas: ", "must be one number: all ranks have the same now")},
      {With("'replicas': 2", "'replicas': 0"),
       At("$.replicas: ", "must be from 1 to 4096, found 0")},
      {With("'replicas': 2", "'replicas': 3"),
       At("$.gradient_blocks: ", "4 gradient blocks for 3 replicas: use a multiple")},
      {With("'replicas': 2", "'replicas': 8"),
       At("$.gradient_blocks: ", "4 gradient blocks for 8")},
      {With("'gradient_blocks': 4", "'gradient_blocks': 6"),
       At("$.micro_batches: ", "8 micro-batches cannot be divided evenly into 6")},
      {With("'replicas': 2", "'replicas': 1"),
       At("$.shard_optimizer: ", "a sharded optimizer for 1 replica")},
      {With("'replicas': 2", "'replicas': 2, 'tensor_parallel': 3"),
       At("$: ", "3 tensor parts: expected a power of two")},
      {With("'replicas': 2", "'replicas': 2, 'reduction': 'ring'"),
       At("$.reduction: ", "a ring gives every replica all sums")},
      {With("'replicas': 2", "'replicas': 2, 'reduction': 'star'"),
       At("$.reduction: ", "\"star\": expected \"tree\" or \"ring\"")},
      {With("33554432", "33554433"), At("$.reduction_part_bytes: ", "expected a multiple of 64")},
      {With("33554432", "0"),
       At("$.reduction_part_bytes: ", "must be from 64 to 1073741824, found 0")},
      {With("'gradient_blocks': 4", "'gradient_blocks': 16"),
       At("$.micro_batches: ", "8 micro-batches cannot be divided evenly into 16")},
      {With("'micro_batches': 8", "'micro_batches': 6"),
       At("$.micro_batches: ", "6 micro-batches cannot be divided evenly into 4")},
      {With("[3, 4]", "[3, 20]"), At("$.recomputed_layers[1]: ", "must be from 0 to 19, found 20")},
      {With("[3, 4]", "[4, 4]"),
       At("$.recomputed_layers[1]: ", "must be above the 4 before it, found 4")},
      {With("'recomputed_layers': [3, 4]", "'offload': 1.5"), At("$.offload: ", "found 1.5")},
      {With("'recomputed_layers'", "'recompute_layers'"), At("$", "recomputed_layers")},
      {With("'recomputed_layers'", "'order'"), At("$.order: ", "must be all 20 layers, found 2")},
      {With("'rank': 1", "'rank': 0"), StartsWith("12:43: $.stages[1].rank")},
      {With("[3, 4]", "[3, 4"), StartsWith("19:1")},
  };
  ExpectRefusals(ParsePlanJson, refusals);
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

TEST(PlanFile, SaysWhereAnOrderOrAScheduleInFullIsWrong) {
  PlanFile file = FileOf("1f1b", 2, 2);
  file.plan.order = {0, 2, 1, 3};
  const std::string ordered = ToPlanJson(file);
  file.plan.order.clear();
  file.plan.schedule.name = "mine";
  const std::string full = ToPlanJson(file);
  const auto with = [&](absl::string_view piece, absl::string_view replacement) {
    return ParsePlanJson(Edited(full, piece, replacement));
  };
  PlanFile forward = file;
  forward.plan.schedule = schedule::ForwardOnly(file.plan.schedule.rank_of_stage, 2, 2).value();
  EXPECT_THAT(with("'F0.0', 'F0.1', 'BW0.0'", "'F0.0', 'BW0.0', 'F0.1'"), IsOk());
  ExpectRefusals({
      {ParsePlanJson(Edited(ordered, "[0, 2, 1, 3]", "[0, 2, 2, 3]")),
       EndsWith("$.order[2]: layer 2 appears twice")},
      {with("'F0.1'", "'X0.1'"), "$.schedule.ranks[0][1]: "},
      {with("'F0.1', ", ""), "$.schedule.ranks[0]: "},
      // A deadlock: each rank waits for the other.
      {with("'F1.0', 'BW1.0', 'F1.1'", "'BW1.0', 'F1.0', 'F1.1'"), "$.schedule.ranks[1]"},
      {with("'micro_batch_rows'", "'chunks': 1, 'micro_batch_rows'"), "$.chunks: "},
      {with("  'micro_batches': 2,\n  'micro_batch_rows'",
            "  'micro_batches': 3,\n  'micro_batch_rows'"),
       EndsWith("$.micro_batches: must be 2, as in the schedule, found 3")},
      {with("'rank_of_stage': [0, 1]", "'rank_of_stage': [1, 0]"), "$.schedule.ranks["},
      // The count is per replica, and there are two.
      {with("  'micro_batch_rows'", "  'replicas': 2,\n  'micro_batch_rows'"),
       EndsWith("$.micro_batches: must be 4, as in the schedule, which each of 2 replicas "
                "performs, found 2")},
      {ParsePlanJson(ToPlanJson(forward)), "no backward action"},
  });
}

TEST(PlanFile, RefusesHostileTexts) {
  const Refusal<std::string> refusals[] = {
      {std::string(100'000, '['), "", absl::StatusCode::kResourceExhausted},
      {With("'zb-h1'", std::string(100, '[') + std::string(100, ']')), "",
       absl::StatusCode::kResourceExhausted},
      {With("'layers': 20", "'layers': 20, 'layers': 20"), ""},
      // A short text must not make a schedule of many gigabytes.
      {With("'micro_batches': 8", "'micro_batches': 16777216"),
       "$.micro_batches: must be at most 4194304 of 2 stages"},
  };
  ExpectRefusals(ParsePlanJson, refusals);
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
  EXPECT_THAT(ReadPlanFile(path + ".none"), StatusIs(absl::StatusCode::kNotFound, ".none"));
  PlanFile broken = file;
  broken.plan.num_layers = 1;
  EXPECT_THAT(WritePlanFile(path, broken), IsRefused(StartsWith(path)));
  EXPECT_EQ(ReadPlanFile(path).value(), file);
}

}  // namespace
}  // namespace stagecoach::partition
