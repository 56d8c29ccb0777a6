#include "partition/io/profile_file.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/system/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/partition/random_layers.h"
#include "tests/testing/refusals.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"

namespace stagecoach::partition {
namespace {

using schedule::LastUse;
using ::stagecoach::testing::ExpectRefusals;
using ::stagecoach::testing::IsRefused;
using ::stagecoach::testing::Refusal;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Returns a profile whose entries of "layers" start on line 2.
std::string File(const std::vector<std::string>& layers, const std::string& more = "") {
  return absl::StrCat(R"({"format": "stagecoach-profile", "version": 1, )", more, "\"layers\": [\n",
                      absl::StrJoin(layers, ",\n"), "]}");
}

TEST(ProfileFile, ALayerNeedsANameAndTimes) {
  ASSERT_OK_AND_ASSIGN(
      const Profile profile,
      ParseProfileJson(File({R"({"name": "a", "forward_ms": 1.5, "backward_ms": 4})",
                             R"({"name": "b", "forward_ms": 2, "backward_ms": 3,
                                 "parameters": 10, "output_bytes": 70})",
                             R"({"name": "c", "forward_ms": 0, "backward_input_ms": 1,
                                 "backward_weight_ms": 2, "parameter_bytes": 41})"})));
  EXPECT_OK(CheckProfile(profile));
  EXPECT_EQ(profile.model, "");
  EXPECT_TRUE(profile.is_chain());
  ASSERT_EQ(profile.sizes.size(), 1u);
  EXPECT_EQ(profile.sizes[0].micro_batch_rows, 1);
  const std::vector<LayerCost>& layers = profile.sizes[0].layers;
  ASSERT_EQ(layers.size(), 3u);

  EXPECT_EQ(layers[0].forward_ns, 1.5e6);
  EXPECT_EQ(layers[0].backward_input_ns, 4e6) << "no parameters: all of it";
  EXPECT_EQ(layers[0].backward_weight_ns, 0);
  EXPECT_EQ(layers[0].memory.input_last_use, LastUse::kBackwardInput);
  EXPECT_EQ(layers[0].memory.output_last_use, LastUse::kForward);
  EXPECT_EQ(layers[0].memory.output_gradient_last_use, LastUse::kBackwardInput);
  EXPECT_FALSE(layers[0].recompute_stash_bytes.has_value());

  EXPECT_EQ(layers[1].backward_input_ns, 1.5e6) << "parameters: half of it";
  EXPECT_EQ(layers[1].backward_weight_ns, 1.5e6);
  EXPECT_EQ(layers[1].memory.parameter_bytes, 40);
  EXPECT_EQ(layers[1].memory.optimizer_bytes, 80);
  EXPECT_EQ(layers[1].memory.input_bytes, 0);
  EXPECT_EQ(layers[1].memory.input_last_use, LastUse::kBackwardWeight);
  EXPECT_EQ(layers[1].memory.output_gradient_last_use, LastUse::kBackwardWeight);

  EXPECT_EQ(layers[2].backward_input_ns, 1e6);
  EXPECT_EQ(layers[2].backward_weight_ns, 2e6);
  EXPECT_EQ(layers[2].parameters, 10);
  EXPECT_EQ(layers[2].memory.input_bytes, 70) << "the output of the one before";
}

TEST(ProfileFile, NumbersAreForAllSizesOrOneForEach) {
  ASSERT_OK_AND_ASSIGN(
      const Profile profile,
      ParseProfileJson(
          File({R"({"name": "a", "forward_ms": [1, 2.5], "backward_ms": 4, "step_ms": 0.5,
                    "output_bytes": [10, 20], "stash_bytes": 64, "spread": [0.1, 0.2]})"},
               R"("micro_batch_rows": [16, 32],
                  "loss": {"workspace_bytes": [1, 2], "bytes_per_micro_batch": 3}, )")));
  ASSERT_EQ(profile.sizes.size(), 2u);
  EXPECT_EQ(profile.sizes[1].micro_batch_rows, 32);
  EXPECT_EQ(profile.sizes[0].loss_workspace_bytes, 1);
  EXPECT_EQ(profile.sizes[1].loss_workspace_bytes, 2);
  EXPECT_EQ(profile.sizes[1].loss_bytes_per_micro_batch, 3);
  const LayerCost& small = profile.sizes[0].layers[0];
  const LayerCost& large = profile.sizes[1].layers[0];
  EXPECT_EQ(small.forward_ns, 1e6);
  EXPECT_EQ(large.forward_ns, 2.5e6);
  EXPECT_EQ(large.backward_input_ns, 4e6);
  EXPECT_EQ(large.step_ns, 5e5);
  EXPECT_EQ(small.memory.output_bytes, 10);
  EXPECT_EQ(large.memory.output_bytes, 20);
  EXPECT_EQ(large.memory.stash_bytes, 64);
  EXPECT_EQ(large.spread, 0.2);
}

std::string Named(const std::string& name, const std::string& more = "") {
  return absl::StrCat(R"({"name": ")", name,
                      R"(", "forward_ms": 1, "backward_ms": 2, "output_bytes": 8)", more, "}");
}

std::vector<std::string> Names(const Profile& profile) {
  std::vector<std::string> names;
  for (const LayerCost& layer : profile.sizes[0].layers) names.push_back(layer.name);
  return names;
}

TEST(ProfileFile, LayersOfAGraphComeInAnyOrder) {
  ASSERT_OK_AND_ASSIGN(const Profile profile,
                       ParseProfileJson(File({Named("sum", R"(, "after": ["left", "right"])"),
                                              Named("in", R"(, "after": [])"), Named("left"),
                                              Named("right", R"(, "after": ["in"])")})));
  EXPECT_THAT(Names(profile), ElementsAre("in", "left", "right", "sum"));
  EXPECT_THAT(profile.edges, ElementsAre(Edge{0, 1}, Edge{0, 2}, Edge{1, 3}, Edge{2, 3}));
  EXPECT_EQ(profile.sizes[0].layers[3].memory.input_bytes, 16) << "both outputs";
  EXPECT_OK(CheckProfile(profile));
}

TEST(ProfileFile, AGraphThatIsAChainIsOne) {
  ASSERT_OK_AND_ASSIGN(
      const Profile profile,
      ParseProfileJson(File({Named("b", R"(, "after": ["a"])"), Named("a", R"(, "after": [])")})));
  EXPECT_THAT(Names(profile), ElementsAre("a", "b"));
  EXPECT_TRUE(profile.is_chain());
}

TEST(ProfileFile, TiesNameLayersInOrder) {
  const auto with = [](const std::string& first, const std::string& second) {
    std::string text = File({Named("a", ""), Named("b", "")});
    text.insert(text.rfind('}'),
                absl::StrCat(R"(, "ties": [{"layer": ")", first, R"(", "other_layer": ")", second,
                             R"(", "bytes": 8}])"));
    return ParseProfileJson(text);
  };
  ASSERT_OK_AND_ASSIGN(const Profile profile, with("a", "b"));
  EXPECT_THAT(profile.ties, ElementsAre(Tie{.layer = 0, .other_layer = 1, .bytes = 8}));
  EXPECT_EQ(profile.collectives.ties, 1);
  EXPECT_THAT(with("a", "c"), IsRefused("\"c\" is not the name of a layer"));
  EXPECT_THAT(with("b", "a"), IsRefused("must come after the first layer"));
}

Profile RandomProfile(std::mt19937& random) {
  const int count = 1 + static_cast<int>(random() % 8);
  Profile profile = {.model = "a \"model\"\n\xC3\xA9"};
  profile.collectives.norm_bytes = static_cast<int64_t>(random() % 3) * 80;
  profile.overheads = {.message_ns = static_cast<double>(random() % 3) * 1500,
                       .step_ns = static_cast<double>(random() % 3) * 20'000};
  const double gigabytes = static_cast<double>(random() % 3) * 12.5;
  if (gigabytes > 0) {
    profile.overheads.host_link = {.link = {.bytes_per_second = 1e9 * gigabytes},
                                   .occupies_rank = random() % 2 == 0};
  }
  if (count > 1 && random() % 2 == 0) {
    profile.ties = {
        {.layer = 0, .other_layer = count - 1, .bytes = 1 + static_cast<int64_t>(random() % 99)}};
    profile.collectives.ties = 1;
  }
  int64_t rows = 0;
  const std::vector<LayerCost> like = RandomLayers(random, count);
  for (int sizes = 1 + static_cast<int>(random() % 3); sizes > 0; --sizes) {
    rows += 1 + static_cast<int64_t>(random() % 20);
    SizedLayers size = {.micro_batch_rows = rows,
                        .layers = RandomLayers(random, count),
                        .feed_bytes_per_micro_batch = static_cast<int64_t>(random() % 2 * 60),
                        .loss_workspace_bytes = static_cast<int64_t>(random() % 100),
                        .loss_bytes_per_micro_batch = static_cast<int64_t>(random() % 100),
                        .stage_bytes_per_micro_batch = static_cast<int64_t>(random() % 2 * 44)};
    for (int i = 0; i < count; ++i) {
      LayerCost& layer = size.layers[i];
      layer.name = absl::StrCat("layer \"", i, "\"");
      layer.parameters = like[i].parameters;
      // Whole picoseconds, from less than a nanosecond to a quarter of an hour.
      layer.forward_ns = static_cast<double>((uint64_t{random()} << 8 | 1) >> random() % 40) / 1e3;
      layer.flops = static_cast<double>(random()) / 7;
      layer.spread = static_cast<double>(random()) / 7e9;
      layer.memory.passing_bytes = random() % 10;
      layer.memory.input_last_use = like[i].memory.input_last_use;
      layer.memory.output_last_use = like[i].memory.output_last_use;
      layer.memory.output_gradient_last_use = like[i].memory.output_gradient_last_use;
      if (i % 4 == 1) layer.recompute_stash_bytes = random() % 100;
      if (i % 4 == 3) {
        SetRepeated({.forward_ns = std::floor(layer.forward_ns / 2 * 1e3) / 1e3,
                     .flops = 12.5,
                     .stash_bytes = layer.memory.stash_bytes / 2,
                     .weight_stash_bytes = layer.memory.weight_stash_bytes / 3},
                    layer);
      }
    }
    profile.sizes.push_back(std::move(size));
  }
  if (count > 2 && random() % 2 == 0) {
    for (int to = 1; to < count; ++to) {
      for (int from = 0; from < to; ++from) {
        if (from == 0 || random() % 3 == 0) profile.edges.push_back({from, to});
      }
    }
  }
  return profile;
}

TEST(ProfileFile, WhatIsWrittenReadsBackTheSame) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 500; ++trial) {
    const Profile profile = RandomProfile(random);
    ASSERT_OK(CheckProfile(profile));
    ASSERT_OK_AND_ASSIGN(const Profile read, ParseProfileJson(ToProfileJson(profile)));
    ASSERT_EQ(read, profile) << ToProfileJson(profile);
  }
}

TEST(ProfileFile, TimesAreKeptToThePicosecond) {
  Profile profile = {.sizes = {{.layers = {{.name = "a", .forward_ns = 1.0 / 3}}}}};
  ASSERT_OK_AND_ASSIGN(profile, ParseProfileJson(ToProfileJson(profile)));
  EXPECT_EQ(profile.sizes[0].layers[0].forward_ns, 0.333);
}

TEST(ProfileFile, FilesReadBack) {
  const testing::TestFolder folder;
  const std::string path = folder.path() / "profile.json";
  std::mt19937 random(2);
  const Profile profile = RandomProfile(random);
  ASSERT_OK(WriteProfileFile(path, profile));
  ASSERT_OK_AND_ASSIGN(const Profile read, ReadProfileFile(path));
  EXPECT_EQ(read, profile);
  std::filesystem::remove(path);
  EXPECT_THAT(ReadProfileFile(path), testing::StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(WriteProfileFile(path, {}), testing::IsRefused(path));
}

// ---- Refusals ----

TEST(ProfileFile, RefusesBadNumbersWithLineKeyAndRange) {
  const auto refused = [](const std::string& number, const std::string& message) {
    EXPECT_THAT(
        ParseProfileJson(File({Named("a"), Named("b"), Named("c", ",\n\"step_ms\": " + number)})),
        IsRefused(AllOf(StartsWith("5:"), HasSubstr(": $.layers[2].step_ms" + message))));
  };
  refused("-1", ": must be from 0.0 to 1125899906.842624, found -1");
  refused("1e10", ": must be from 0.0 to 1125899906.842624, found 1");
  refused("\"1\"", ": expected a number");
  refused("null", ": expected a number");
  refused("[1, 2]", ": has 2 values, expected one, or 1: one for each size of micro_batch_rows");
  refused("[-1]", "[0]: must be from 0.0");
  const auto refused_bytes = [](const std::string& number, const std::string& message) {
    EXPECT_THAT(ParseProfileJson(File({Named("a"), Named("c", ",\n\"stash_bytes\": " + number)})),
                IsRefused(StartsWith("4:1: $.layers[1].stash_bytes: " + message)));
  };
  refused_bytes("-1", "must be from 0 to 17592186044416, found -1");
  refused_bytes("17592186044417", "must be from 0 to 17592186044416, found");
  refused_bytes("1.5", "expected an integer of 64 bits, found 1.5");
  refused_bytes("99999999999999999999", "expected an integer of 64 bits");
}

TEST(ProfileFile, SaysWhereAndWhatIsWrong) {
  const Refusal<std::string> refusals[] = {
      {File({Named("a", R"(, "step_ms": NaN)")}), StartsWith("2:")},
      {File({Named("a", R"(, "step_ms": Infinity)")}), StartsWith("2:")},
      {File({Named("a", R"(, "step_ms": 1e999)")}), "does not fit in a double"},
      {File({Named("a", R"(, "name": "b")")}), "duplicate key"},
      {"", "1:1"},
      {"[]", "1:1: $: expected an object"},
      {File({Named("a")}, absl::StrCat("\"model\": ", std::string(1'000'000, '['), ", ")),
       "64 levels", absl::StatusCode::kResourceExhausted},
      {File({Named("a"), R"({"name": "b", "forward_ms": 1})"}),
       StartsWith("3:1: $.layers[1]: the key \"backward_ms\" is missing")},
      {File({R"({"name": "b", "forward_ms": 1, "backward_weight_ms": 1})"}),
       StartsWith("2:1: $.layers[0]: the key \"backward_input_ms\" is missing")},
      {File({Named("a"), Named("b", ",\n\"stash_byte\": 1")}),
       StartsWith("4:1: $.layers[1]: unknown key \"stash_byte\"; did you mean \"stash_bytes\"?")},
      {File({Named("a")}, "\"modle\": \"x\", "),
       StartsWith("1:48: $: unknown key \"modle\"; did you mean \"model\"?")},
      {File({Named("a")}, R"("loss": {"bytes": 1}, )"), "$.loss: unknown key"},
      {File({Named("a", R"(, "repeated_forward_ms": 0, "recompute_stash_bytes": 1)")}),
       "$.layers[0].recompute_stash_bytes: is of a layer that repeats all of F"},
      {File({Named("a", R"(, "repeated_forward_ms": 0, "repeated_stash_bytes": 1)")}),
       "$.layers[0].repeated_stash_bytes: is 1, expected at most stash_bytes, 0"},
      {File({Named("a", R"(, "repeated_forward_ms": 9)")}),
       "repeated_forward_ns is 9e+06, expected at most forward_ns"},
      {File({Named("a", R"(, "backward_input_ms": 1)")}),
       ".backward_ms: is the sum of backward_input_ms and backward_weight_ms"},
      {R"({"format": "stagecoach-plan"})",
       StartsWith("1:2: $.format: must be \"stagecoach-profile\"")},
      {"{\"format\": \"stagecoach-profile\",\n \"version\": 2, \"later\": 1}",
       StartsWith("2:2: $.version: version 2: this program reads version 1")},
      {File({Named("a")}, R"("micro_batch_rows": [8, 8], )"),
       StartsWith("1:72: $.micro_batch_rows[1]: must ascend: 8 follows 8")},
      {File({Named("a")}, R"("micro_batch_rows": [], )"), "has 0 sizes, expected 1 to 256"},
      {File({Named("a")}, R"("micro_batch_rows": 0, )"), "$.micro_batch_rows: must be from 1 to "},
      {File({}), "$.layers: has 0 layers, expected 1 to 100000"},
      {File({Named("a"), Named("")}), StartsWith("3:2: $.layers[1].name: must not be empty")},
      {File({Named("a"), Named("b"), Named("a")}),
       StartsWith("4:2: $.layers[2].name: an earlier layer is also called \"a\"")},
      {File({Named("conv1"), Named("b", R"(, "after": ["conv"])")}),
       StartsWith("3:79: $.layers[1].after[0]: \"conv\" is not the name of a layer; did you mean "
                  "\"conv1\"?")},
      {File({Named("a"), Named("b", R"(, "after": ["a", "a"])")}),
       StartsWith("3:84: $.layers[1].after[1]: \"a\" appears twice")},
      {File({Named("a"), Named("b", R"(, "after": ["b"])")}),
       StartsWith("3:69: $.layers[1].after: \"b\" is on a cycle")},
      {File({Named("a", R"(, "after": ["c"])"), Named("b"), Named("c"), Named("d")}),
       AllOf(::testing::ContainsRegex("^4:1: "), HasSubstr("is on a cycle"),
             ::testing::Not(HasSubstr("\"d\"")))},
      {File({Named("a"), Named("b", R"(, "after": [])")}),
       StartsWith("1:48: $.layers: no layer reads another")},
      {File({Named("a"), Named("b", R"(, "after": [3])")}),
       StartsWith("3:79: $.layers[1].after[0]: expected a string")},
      {File({Named("a", R"(, "input_last_use": "backward")")}),
       "must be \"forward\", \"backward_input\" or \"backward_weight\", found \"backward\""},
      {File({Named("a", R"(, "output_gradient_last_use": "forward")")}),
       "must be \"backward_input\" or \"backward_weight\""},
  };
  ExpectRefusals(ParseProfileJson, refusals);
}

TEST(ProfileFile, RefusesManyLayersForManySizes) {
  std::vector<int> rows;
  for (int i = 1; i <= 200; ++i) rows.push_back(i);
  EXPECT_THAT(
      ParseProfileJson(
          File(std::vector<std::string>(5001, "{}"),
               absl::StrCat("\"micro_batch_rows\": [", absl::StrJoin(rows, ","), "], "))),
      testing::IsRefused("5001 layers for 200 sizes, expected a product of at most 1000000"));
}

TEST(ProfileFile, RefusesAGigabyteBeforeReadingIt) {
  const testing::TestFolder folder;
  const std::string path = folder.path() / "sparse.json";
  std::ofstream(path) << "{";
  std::filesystem::resize_file(path, int64_t{1} << 30);
  EXPECT_THAT(ReadProfileFile(path),
              testing::StatusIs(absl::StatusCode::kResourceExhausted, "67108864"));
}

// Changing any byte yields a profile or an error.
TEST(ProfileFile, AnyByteMayBeWrong) {
  const std::string text =
      File({Named("a"), Named("b", R"(, "after": ["a"])"), Named("c", R"(, "after": ["a", "b"])")});
  std::mt19937 random(3);
  for (int trial = 0; trial < 5000; ++trial) {
    std::string changed = text;
    for (int edits = 1 + static_cast<int>(random() % 3); edits > 0; --edits) {
      changed[random() % changed.size()] = "{}[]\",:-0129eabcx\n\xFF"[random() % 18];
    }
    const absl::StatusOr<Profile> profile = ParseProfileJson(changed);
    if (profile.ok()) {
      ASSERT_OK(CheckProfile(*profile));
    } else {
      ASSERT_FALSE(profile.status().message().empty());
    }
  }
}

}  // namespace
}  // namespace stagecoach::partition
