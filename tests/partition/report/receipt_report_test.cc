#include "partition/report/receipt_report.h"

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/json.h"
#include "base/units.h"
#include "base/utf8.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/partition/report/sample_receipt.h"
#include "tests/schedule/pictures/markup.h"

namespace stagecoach::partition {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kEvil[] = "</script><script>alert('\"&\")</script>";

const std::vector<SampleShape>& Shapes() {
  static const auto* const shapes = new std::vector<SampleShape>{
      {},
      {.devices = 1, .micro_batches = 1, .schedule = "1f1b"},
      {.devices = 4, .schedule = "zb-v", .memory_bytes = 0},
      {.devices = 8, .schedule = "interleaved", .replicas = 2, .memory_bytes = 3'000'000'000},
      {.devices = 64, .micro_batches = 64, .schedule = "1f1b", .layers_per_stage = 200}};
  return *shapes;
}

// The receipt of a plan that was given, not searched for, as ReceiptOf gives it.
Receipt Unsearched() {
  Receipt receipt = SampleReceipt();
  receipt.lower_bound_ns = receipt.objective_ns;
  receipt.runner_up.reset();
  receipt.runner_up_reason.clear();
  receipt.changes.clear();
  receipt.considered = receipt.simulated = 0;
  return receipt;
}

Receipt Evil() {
  Receipt receipt = SampleReceipt();
  receipt.model = receipt.runner_up_reason = kEvil;
  receipt.plan.schedule.name = receipt.choice.schedule = receipt.runner_up->schedule = kEvil;
  receipt.changes = {kEvil};
  for (ClusterDevice& device : receipt.cluster.devices) device.name += kEvil;
  for (std::string& name : receipt.layer_names) name += kEvil;
  return receipt;
}

// ---- Text ----

TEST(ReceiptText, IsEightyColumnsWideAndLittleMoreWithLongNumbers) {
  for (const SampleShape& shape : Shapes()) {
    Receipt receipt = SampleReceipt(shape);
    for (const bool is_long : {false, true}) {
      if (is_long) {
        receipt.model = std::string(250, 'm');
        receipt.runner_up_reason = absl::StrCat(std::string(90, 'r'), " because ", kEvil);
        for (int i = 0; i < 60; ++i) receipt.plan.recomputed.push_back(3 * i);
        for (ClusterDevice& device : receipt.cluster.devices) {
          device.name = absl::StrCat("\xC3\xA9\xC3\xA9", std::string(40, 'x'), device.name);
        }
      }
      for (const absl::string_view line : absl::StrSplit(ToText(receipt), '\n')) {
        EXPECT_LE(base::Width(line), 84U) << line;
      }
    }
  }
}

TEST(ReceiptText, HasARowPerStageAndPerRank) {
  const Receipt receipt = SampleReceipt({.devices = 2, .micro_batches = 4, .schedule = "zb-v"});
  std::vector<std::string> first_words;
  for (const absl::string_view line : absl::StrSplit(ToText(receipt), '\n')) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    first_words.push_back(words.empty() ? "" : words.front());
  }
  EXPECT_THAT(first_words,
              ElementsAre("model", "plan", "step", "", "times", "", "stage", "-----", "0", "1", "2",
                          "3", "", "device", "------", "gpu0", "gpu1", "", "runner-up", "(+6.1",
                          "every", "would", "with", "planned", ""));
}

TEST(ReceiptText, SaysWhatTheReceiptSays) {
  Receipt receipt = SampleReceipt();
  receipt.plan.recomputed = {1, 2, 3, 7};
  receipt.simulation.step_ns = 123'456'789;
  receipt.objective_ns = 123'456'789;
  receipt.lower_bound_ns = 0.9 * receipt.objective_ns;
  const std::string text = ToText(receipt);
  for (const absl::string_view piece :
       {"123.5 ms; lower bound 111.1 ms, gap 10.0 %", "layers 1-3, 7", "gpu3", "17.2 GB",
        "every device waits longer", "with links twice as fast: the same plan, -0.4 %",
        "96 combinations considered, 14 plans simulated"}) {
    EXPECT_THAT(text, HasSubstr(std::string(piece)));
  }
  EXPECT_THAT(text, HasSubstr(receipt.choice.ToString()));
  for (const RankReport& rank : receipt.report.ranks) {
    EXPECT_THAT(text, HasSubstr(base::FormatBytes(rank.peak_bytes())));
  }
}

TEST(ReceiptText, OfABottleneckSaysBoth) {
  Receipt receipt = SampleReceipt();
  receipt.objective = PlanObjective::kBottleneck;
  receipt.objective_ns = 2.5e6;
  EXPECT_THAT(ToText(receipt),
              HasSubstr("bottleneck    2.500 ms per step of the busiest rank; lower bound"));
  EXPECT_THAT(ToText(receipt), HasSubstr("\nstep          "));
}

TEST(ReceiptText, SaysHowTransfersArePerformedWhereTheyAreInGroups) {
  Receipt receipt = SampleReceipt();
  EXPECT_THAT(ToText(receipt), Not(HasSubstr("transfers")));
  receipt.cluster.transfers = schedule::Transfers::kGrouped;
  EXPECT_THAT(ToText(receipt), HasSubstr("\ntransfers     in groups, as by NCCL\n"));
}

TEST(ReceiptText, ClaimsNoBoundWhereNothingWasSearched) {
  for (const char* claim : {"bound", "gap", "runner-up", "change", "considered"}) {
    EXPECT_THAT(ToText(Unsearched()), Not(HasSubstr(claim)));
  }
}

TEST(ReceiptText, KeepsControlSequencesFromTheTerminal) {
  Receipt receipt = SampleReceipt();
  receipt.model = "a\x1b[31mb";
  receipt.cluster.devices.front().name = "gpu\x1b[2J";
  EXPECT_THAT(ToText(receipt), Not(HasSubstr("\x1b")));
}

TEST(ReceiptText, APercentSignWrapsWithItsNumber) {
  Receipt receipt = SampleReceipt();
  // 62 columns of words, and " 12.5" fills the line.
  receipt.runner_up_reason = absl::StrCat(std::string(61, 'r'), " 12.5 %, which is much");
  EXPECT_THAT(ToText(receipt), HasSubstr("\n              12.5 %, which is much\n"));
}

TEST(ReceiptReport, LongNamesOfDevicesKeepTheirNumbers) {
  Receipt receipt = SampleReceipt();
  for (size_t i = 0; i < receipt.cluster.devices.size(); ++i) {
    receipt.cluster.devices[i].name = absl::StrCat("nvidia-h100-80gb-hbm3-sxm.", i);
  }
  EXPECT_THAT(ToText(receipt), AllOf(HasSubstr("nvid…sxm.0"), HasSubstr("nvid…sxm.3")));
  EXPECT_THAT(ToHtml(receipt), HasSubstr("<span class=\"end\">m3-sxm.3</span>"));
}

TEST(ReceiptText, ComparesWithTheDigitsOfItsHeadline) {
  Receipt own = SampleReceipt();
  own.objective_ns = 84'000;
  own.simulation.step_ns = 84'000;
  ComparedPlan other = {"uniform", own, false};
  other.receipt.objective_ns = 15.19e9;
  EXPECT_THAT(ToText(own), HasSubstr("step          0.084 ms"));
  EXPECT_THAT(ComparisonTable(own, {other}),
              AllOf(HasSubstr("  0.084 ms  "), HasSubstr("  15.19 s  ")));
}

// ---- JSON ----

TEST(ReceiptJson, BeginsWithTheKeysThatProgramsRead) {
  const auto receipt = nlohmann::ordered_json::parse(ToJson(SampleReceipt()));
  std::vector<std::string> keys;
  for (const auto& [key, value] : receipt.items()) keys.push_back(key);
  keys.resize(7);
  EXPECT_THAT(keys, ElementsAre("objective_ms", "lower_bound_ms", "gap", "schedule", "microbatches",
                                "stages", "planning_ms"));
  std::vector<std::string> stage_keys;
  for (const auto& [key, value] : receipt["stages"][0].items()) stage_keys.push_back(key);
  EXPECT_THAT(stage_keys,
              ElementsAre("stage", "first_layer", "last_layer", "devices", "replicas", "forward_ms",
                          "backward_ms", "update_ms", "receive_ms", "send_ms", "memory_bytes",
                          "in_flight", "idle_share", "layers"));
}

TEST(ReceiptJson, SaysWhatTheReceiptSays) {
  Receipt receipt = SampleReceipt({.devices = 8, .schedule = "interleaved", .replicas = 2});
  receipt.plan.recomputed = {2, 5};
  const json read = base::ParseJson(ToJson(receipt)).value();
  EXPECT_DOUBLE_EQ(read["objective_ms"], receipt.objective_ns / 1e6);
  EXPECT_DOUBLE_EQ(read["lower_bound_ms"], receipt.lower_bound_ns / 1e6);
  EXPECT_DOUBLE_EQ(read["gap"], receipt.gap());
  EXPECT_EQ(read["schedule"], "interleaved");
  EXPECT_EQ(read["microbatches"], 8);
  EXPECT_EQ(read["micro_batch_rows"], 16);
  EXPECT_EQ(read["chunks"], 2);
  EXPECT_EQ(read["planning_ms"], 120.0);
  EXPECT_EQ(read["objective"], "step");
  EXPECT_EQ(read["model"], "gpt-small");
  EXPECT_THAT(read["recomputed_layers"], ElementsAre(2, 5));
  EXPECT_EQ(read["runner_up"]["schedule"], "1f1b");
  EXPECT_EQ(read["runner_up"]["replicas"], 2);
  EXPECT_EQ(read["runner_up"]["reason"], receipt.runner_up_reason);
  EXPECT_EQ(read["changes"].get<std::vector<std::string>>(), receipt.changes);
  EXPECT_EQ(read["considered"], 96);
  EXPECT_EQ(read["simulated"], 14);
  ASSERT_EQ(read["stages"].size(), 8U);
  const json& last = read["stages"][7];
  EXPECT_EQ(last["first_layer"], 35);
  EXPECT_EQ(last["last_layer"], 39);
  EXPECT_THAT(last["devices"], ElementsAre(6, 7));
  EXPECT_EQ(last["replicas"], 2);
  EXPECT_DOUBLE_EQ(last["forward_ms"], static_cast<double>(receipt.stages[7].forward_ns) / 1e6);
  EXPECT_EQ(last["in_flight"], receipt.stages[7].in_flight);
  EXPECT_EQ(last["layers"][4], "head");
}

TEST(ReceiptJson, SaysHowTransfersArePerformed) {
  Receipt receipt = SampleReceipt();
  EXPECT_EQ(json::parse(ToJson(receipt))["transfers"], "separate");
  receipt.cluster.transfers = schedule::Transfers::kGrouped;
  EXPECT_EQ(json::parse(ToJson(receipt))["transfers"], "grouped");
}

TEST(ReceiptJson, PartsOfTheMemorySumToThePeak) {
  for (const SampleShape& shape : Shapes()) {
    const Receipt receipt = SampleReceipt(shape);
    const json read = base::ParseJson(ToJson(receipt)).value();
    for (size_t stage = 0; stage < receipt.stages.size(); ++stage) {
      const json& memory = read["stages"][stage]["memory_bytes"];
      int64_t sum = 0;
      for (const char* part : {"parameters", "gradients", "optimizer", "stash", "buffers"}) {
        sum += memory[part].get<int64_t>();
      }
      EXPECT_EQ(memory["peak"], sum);
      const schedule::Rank rank = receipt.plan.schedule.rank_of_stage[stage];
      EXPECT_EQ(memory["peak"], receipt.report.of(rank).peak_bytes());
      EXPECT_EQ(memory["limit"], shape.memory_bytes > 0 ? json(shape.memory_bytes) : json());
    }
  }
}

TEST(ReceiptJson, LimitIsThatOfTheSmallestReplica) {
  Receipt receipt = SampleReceipt({.devices = 4, .replicas = 2});
  receipt.cluster.devices[1].memory_bytes = 5'000;
  receipt.cluster.devices[2].memory_bytes = 0;
  const json read = base::ParseJson(ToJson(receipt)).value();
  EXPECT_EQ(read["stages"][0]["memory_bytes"]["limit"], 5'000);
  EXPECT_EQ(read["stages"][1]["memory_bytes"]["limit"], int64_t{16} << 30);
}

TEST(ReceiptJson, ClaimsNoBoundWhereNothingWasSearched) {
  const json read = base::ParseJson(ToJson(Unsearched())).value();
  EXPECT_TRUE(read["lower_bound_ms"].is_null());
  EXPECT_TRUE(read["gap"].is_null());
  EXPECT_TRUE(read["runner_up"].is_null());
}

TEST(ReceiptJson, IsOneLineOfUtf8WhateverTheNames) {
  Receipt receipt = SampleReceipt();
  receipt.model = receipt.layer_names[0] = receipt.changes[0] = "\xFF\n\"";
  const std::string text = ToJson(receipt);
  EXPECT_THAT(text, Not(HasSubstr("\n")));
  EXPECT_TRUE(base::ParseJson(text).ok());
}

// ---- Page ----

std::vector<std::string> Texts(const std::vector<schedule::Element>& elements,
                               const std::string& tag) {
  std::vector<std::string> texts;
  for (const schedule::Element& element : elements) {
    if (element.tag == tag) texts.push_back(element.text);
  }
  return texts;
}

TEST(ReceiptPage, IsBalancedMarkupOfEveryShape) {
  for (const SampleShape& shape : Shapes()) {
    const Receipt receipt = SampleReceipt(shape);
    const std::vector<schedule::Element> elements = schedule::ParsePage(ToHtml(receipt));
    EXPECT_THAT(Texts(elements, "h1"), ElementsAre("Plan for gpt-small"));
    EXPECT_THAT(Texts(elements, "h2"), ElementsAre("Memory", "Why this plan", "One step", "Stages",
                                                   "Memory of each device"));
    size_t bars = 0;
    for (const schedule::Element& element : elements) {
      const auto name = element.attributes.find("class");
      if (name != element.attributes.end() && absl::StartsWith(name->second, "device")) ++bars;
    }
    EXPECT_EQ(bars, receipt.report.ranks.size());
    // Two header rows, one row per stage and one per rank.
    EXPECT_EQ(Texts(elements, "tr").size(),
              2 + receipt.stages.size() + receipt.report.ranks.size());
  }
}

TEST(ReceiptPage, HasTheHeadlineNumbers) {
  Receipt receipt = SampleReceipt();
  receipt.simulation.step_ns = 123'456'789;
  receipt.objective_ns = 123'456'789;
  receipt.lower_bound_ns = 0.9 * receipt.objective_ns;
  const std::vector<std::string> values = Texts(schedule::ParsePage(ToHtml(receipt)), "dd");
  for (const char* value : {"123.5 ms", "111.1 ms", "10.0&nbsp;%", "zb-h1", "8", "4"}) {
    EXPECT_THAT(values, Contains(value));
  }
}

TEST(ReceiptPage, HasTheComparisonThatItIsGiven) {
  Receipt own = SampleReceipt();
  own.objective_ns = 84'000;
  ComparedPlan other = {kEvil, own, false};
  other.receipt.objective_ns = 126'000;
  const std::string page = ToHtml(own, {other});
  EXPECT_THAT(page, Not(HasSubstr("alert('")));
  const std::vector<schedule::Element> elements = schedule::ParsePage(page);
  EXPECT_THAT(Texts(elements, "h2"), Contains("Compared with other plans"));
  EXPECT_THAT(Texts(elements, "td"),
              AllOf(Contains("this plan"), Contains("5 5 5 5"), Contains("0.084 ms"),
                    Contains("0.126 ms"), Contains("+50.0&nbsp;%"), Contains("no")));
  EXPECT_THAT(ToHtml(own), Not(HasSubstr("Compared")));
}

TEST(ReceiptPage, SaysHowTransfersArePerformedWhereTheyAreInGroups) {
  Receipt receipt = SampleReceipt();
  EXPECT_THAT(ToHtml(receipt), Not(HasSubstr("transfers")));
  receipt.cluster.transfers = schedule::Transfers::kGrouped;
  EXPECT_THAT(ToHtml(receipt), HasSubstr(", transfers in groups, as by NCCL</p>"));
}

TEST(ReceiptPage, ClaimsNoBoundWhereNothingWasSearched) {
  const std::vector<schedule::Element> elements = schedule::ParsePage(ToHtml(Unsearched()));
  EXPECT_THAT(Texts(elements, "dt"),
              ElementsAre("step", "schedule", "micro-batches", "devices", "fullest device"));
  EXPECT_THAT(Texts(elements, "h2"), Not(Contains("Why this plan")));
}

TEST(ReceiptPage, WidthsOfABarSumToItsShareOfTheLargest) {
  Receipt receipt = SampleReceipt({.memory_bytes = 0});
  std::vector<double> sums;
  for (const schedule::Element& element : schedule::ParsePage(ToHtml(receipt))) {
    const auto name = element.attributes.find("class");
    if (name != element.attributes.end() && name->second == "meter") sums.push_back(0);
    const auto style = element.attributes.find("style");
    if (element.tag != "i" || style == element.attributes.end()) continue;
    const std::string prefix = "width:";
    if (!absl::StartsWith(style->second, prefix)) continue;
    sums.back() += std::stod(style->second.substr(prefix.size()));
  }
  ASSERT_GE(sums.size(), 4U);
  int64_t largest = 0;
  for (const RankReport& rank : receipt.report.ranks) {
    largest = std::max(largest, rank.peak_bytes());
  }
  for (size_t rank = 0; rank < 4; ++rank) {
    const double share =
        static_cast<double>(receipt.report.ranks[rank].peak_bytes()) / static_cast<double>(largest);
    EXPECT_NEAR(sums[rank], 100 * share, 0.01);
  }
}

TEST(ReceiptPage, MarksWhatIsAboveItsLimit) {
  const char* const mark = "class=\"device over\"";
  EXPECT_THAT(ToHtml(SampleReceipt()), Not(HasSubstr(mark)));
  EXPECT_THAT(ToHtml(SampleReceipt({.memory_bytes = 1'000'000})), HasSubstr(mark));
  EXPECT_THAT(ToHtml(SampleReceipt({.memory_bytes = 0})), Not(HasSubstr(mark)));
}

TEST(ReceiptPage, EscapesEveryName) {
  const std::string page = ToHtml(Evil());
  EXPECT_THAT(page, Not(HasSubstr("alert('")));
  EXPECT_FALSE(schedule::ParsePage(page).empty());
}

TEST(ReceiptPage, NeedsNothingFromElsewhere) {
  const std::string page = ToHtml(SampleReceipt());
  for (const char* link : {"http:", "https:", "href=", "src=", "@import", "fetch(", "import("}) {
    EXPECT_THAT(page, Not(HasSubstr(link)));
  }
}

TEST(ReceiptPage, WithoutATraceHasNoTimelineAndNoScript) {
  Receipt receipt = SampleReceipt();
  receipt.simulation.trace = {};
  const std::string page = ToHtml(receipt);
  EXPECT_THAT(page, Not(HasSubstr("<script>")));
  EXPECT_THAT(Texts(schedule::ParsePage(page), "h2"), Not(Contains("One step")));
}

TEST(ReceiptPage, HasARuleForEveryClassAndColor) {
  const std::string page = ToHtml(SampleReceipt({.memory_bytes = 1'000'000}));
  const std::string style = page.substr(0, page.find("</head>"));
  for (const schedule::Element& element : schedule::ParsePage(page)) {
    const auto names = element.attributes.find("class");
    if (names == element.attributes.end() || element.tag == "rect") continue;
    for (const absl::string_view name : absl::StrSplit(names->second, ' ')) {
      EXPECT_THAT(style, HasSubstr(absl::StrCat(".", name))) << element.tag;
    }
    const auto rule = element.attributes.find("style");
    if (rule == element.attributes.end()) continue;
    const size_t start = rule->second.find("var(");
    if (start == std::string::npos) continue;
    const std::string color = rule->second.substr(start + 4, rule->second.find(')') - start - 4);
    EXPECT_THAT(style, HasSubstr(color + ":"));
  }
}

}  // namespace
}  // namespace stagecoach::partition
