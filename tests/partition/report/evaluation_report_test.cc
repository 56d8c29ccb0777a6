#include "partition/report/evaluation_report.h"

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/text/json.h"
#include "base/text/units.h"
#include "base/text/utf8.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/partition/report/sample_evaluation.h"
#include "tests/schedule/render/markup.h"

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

// Returns the evaluation of a plan that was given, not searched for, as EvaluatePlan does.
PlanEvaluation Unsearched() {
  PlanEvaluation evaluation = SampleEvaluation();
  evaluation.lower_bound_ns = evaluation.objective_ns;
  evaluation.runner_up.reset();
  evaluation.runner_up_reason.clear();
  evaluation.changes.clear();
  evaluation.considered = evaluation.simulated = 0;
  return evaluation;
}

PlanEvaluation Evil() {
  PlanEvaluation evaluation = SampleEvaluation();
  evaluation.model = evaluation.runner_up_reason = kEvil;
  evaluation.compiled.plan.schedule.name = evaluation.choice.schedule =
      evaluation.runner_up->schedule = kEvil;
  evaluation.changes = {kEvil};
  for (ClusterDevice& device : evaluation.cluster.devices) device.name += kEvil;
  for (std::string& name : evaluation.layer_names) name += kEvil;
  return evaluation;
}

// ---- Text ----

TEST(EvaluationText, IsEightyColumnsWideAndLittleMoreWithLongNumbers) {
  for (const SampleShape& shape : Shapes()) {
    PlanEvaluation evaluation = SampleEvaluation(shape);
    for (const bool is_long : {false, true}) {
      if (is_long) {
        evaluation.model = std::string(250, 'm');
        evaluation.runner_up_reason = absl::StrCat(std::string(90, 'r'), " because ", kEvil);
        for (int i = 0; i < 60; ++i) evaluation.compiled.plan.recomputed.push_back(3 * i);
        for (ClusterDevice& device : evaluation.cluster.devices) {
          device.name = absl::StrCat("\xC3\xA9\xC3\xA9", std::string(40, 'x'), device.name);
        }
      }
      for (const absl::string_view line : absl::StrSplit(ToText(evaluation), '\n')) {
        EXPECT_LE(base::Width(line), 84U) << line;
      }
    }
  }
}

TEST(EvaluationText, HasARowPerStageAndPerRank) {
  const PlanEvaluation evaluation =
      SampleEvaluation({.devices = 2, .micro_batches = 4, .schedule = "zb-v"});
  std::vector<std::string> first_words;
  for (const absl::string_view line : absl::StrSplit(ToText(evaluation), '\n')) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    first_words.push_back(words.empty() ? "" : words.front());
  }
  EXPECT_THAT(first_words,
              ElementsAre("model", "plan", "step", "", "times", "", "stage", "-----", "0", "1", "2",
                          "3", "", "device", "------", "gpu0", "gpu1", "", "runner-up", "(+6.1",
                          "every", "would", "with", "planned", ""));
}

TEST(EvaluationText, SaysWhatTheEvaluationSays) {
  PlanEvaluation evaluation = SampleEvaluation();
  evaluation.compiled.plan.recomputed = {1, 2, 3, 7};
  evaluation.simulation.step_ns = 123'456'789;
  evaluation.objective_ns = 123'456'789;
  evaluation.lower_bound_ns = 0.9 * evaluation.objective_ns;
  const std::string text = ToText(evaluation);
  for (const absl::string_view piece :
       {"123.5 ms; lower bound 111.1 ms, gap 10.0 %", "layers 1-3, 7", "gpu3", "17.2 GB",
        "every device waits longer", "with links twice as fast: the same plan, -0.4 %",
        "96 combinations considered, 14 plans simulated"}) {
    EXPECT_THAT(text, HasSubstr(std::string(piece)));
  }
  EXPECT_THAT(text, HasSubstr(evaluation.choice.ToString()));
  for (const RankReport& rank : evaluation.compiled.ranks) {
    EXPECT_THAT(text, HasSubstr(base::FormatBytes(rank.peak_bytes())));
  }
}

TEST(EvaluationText, OfABottleneckSaysBoth) {
  PlanEvaluation evaluation = SampleEvaluation();
  evaluation.objective = PlanObjective::kBottleneck;
  evaluation.objective_ns = 2.5e6;
  EXPECT_THAT(ToText(evaluation),
              HasSubstr("bottleneck    2.500 ms per step of the busiest rank; lower bound"));
  EXPECT_THAT(ToText(evaluation), HasSubstr("\nstep          "));
}

TEST(EvaluationText, SaysHowTransfersArePerformedWhereTheyAreInGroups) {
  PlanEvaluation evaluation = SampleEvaluation();
  EXPECT_THAT(ToText(evaluation), Not(HasSubstr("transfers")));
  evaluation.cluster.transfers = schedule::Transfers::kGrouped;
  EXPECT_THAT(ToText(evaluation), HasSubstr("\ntransfers     in groups, as by NCCL\n"));
}

TEST(EvaluationText, ClaimsNoBoundWhereNothingWasSearched) {
  for (const char* claim : {"bound", "gap", "runner-up", "change", "considered"}) {
    EXPECT_THAT(ToText(Unsearched()), Not(HasSubstr(claim)));
  }
}

TEST(EvaluationText, SaysWhichDevicesAreLeftOutAndHowLongItWasImproved) {
  PlanEvaluation evaluation = SampleEvaluation();
  EXPECT_THAT(ToText(evaluation), AllOf(Not(HasSubstr("left out")), Not(HasSubstr("round"))));
  evaluation.left_out = {"gpu4"};
  evaluation.rounds.count = 1;
  EXPECT_THAT(
      ToText(evaluation),
      AllOf(HasSubstr("\nleft out      gpu4: it is faster without it\n"), HasSubstr("1 round of")));
  EXPECT_THAT(ToText(evaluation), Not(HasSubstr("until the")));
  evaluation.left_out = {"gpu4", "gpu5", "gpu6", "gpu7", "gpu8", "gpu9"};
  evaluation.rounds = {.count = 3, .are_cut_short = true};
  EXPECT_THAT(ToText(evaluation),
              AllOf(HasSubstr("gpu4, gpu5, gpu6, gpu7 and 2 more: it is faster without them"),
                    HasSubstr("3 rounds"), HasSubstr("until the")));
  const auto parsed = nlohmann::json::parse(ToJson(evaluation));
  EXPECT_EQ(parsed["left_out"].size(), 6u);
  EXPECT_EQ(parsed["rounds"], 3);
  EXPECT_EQ(parsed["rounds_cut_short"], true);
  EXPECT_THAT(ToHtml(evaluation), HasSubstr("it is faster without them"));
}

TEST(EvaluationText, KeepsControlSequencesFromTheTerminal) {
  PlanEvaluation evaluation = SampleEvaluation();
  evaluation.model = "a\x1b[31mb";
  evaluation.cluster.devices.front().name = "gpu\x1b[2J";
  EXPECT_THAT(ToText(evaluation), Not(HasSubstr("\x1b")));
}

TEST(EvaluationText, APercentSignWrapsWithItsNumber) {
  PlanEvaluation evaluation = SampleEvaluation();
  // 62 columns of words, and " 12.5" fills the line.
  evaluation.runner_up_reason = absl::StrCat(std::string(61, 'r'), " 12.5 %, which is much");
  EXPECT_THAT(ToText(evaluation), HasSubstr("\n              12.5 %, which is much\n"));
}

TEST(EvaluationReport, LongNamesOfDevicesKeepTheirNumbers) {
  PlanEvaluation evaluation = SampleEvaluation();
  for (size_t i = 0; i < evaluation.cluster.devices.size(); ++i) {
    evaluation.cluster.devices[i].name = absl::StrCat("nvidia-h100-80gb-hbm3-sxm.", i);
  }
  EXPECT_THAT(ToText(evaluation), AllOf(HasSubstr("nvid…sxm.0"), HasSubstr("nvid…sxm.3")));
  EXPECT_THAT(ToHtml(evaluation), HasSubstr("<span class=\"end\">m3-sxm.3</span>"));
}

TEST(EvaluationText, ComparesWithTheDigitsOfItsHeadline) {
  PlanEvaluation own = SampleEvaluation();
  own.objective_ns = 84'000;
  own.simulation.step_ns = 84'000;
  ComparedPlan other = {"uniform", own, false};
  other.evaluation.objective_ns = 15.19e9;
  EXPECT_THAT(ToText(own), HasSubstr("step          0.084 ms"));
  EXPECT_THAT(ComparisonTable(own, {other}),
              AllOf(HasSubstr("  0.084 ms  "), HasSubstr("  15.19 s  ")));
}

// ---- JSON ----

TEST(EvaluationJson, BeginsWithTheKeysThatProgramsRead) {
  const auto evaluation = nlohmann::ordered_json::parse(ToJson(SampleEvaluation()));
  std::vector<std::string> keys;
  for (const auto& [key, value] : evaluation.items()) keys.push_back(key);
  keys.resize(7);
  EXPECT_THAT(keys, ElementsAre("objective_ms", "lower_bound_ms", "gap", "schedule",
                                "micro_batches", "stages", "planning_ms"));
  std::vector<std::string> stage_keys;
  for (const auto& [key, value] : evaluation["stages"][0].items()) stage_keys.push_back(key);
  EXPECT_THAT(stage_keys,
              ElementsAre("stage", "first_layer", "last_layer", "devices", "replicas", "forward_ms",
                          "backward_ms", "update_ms", "receive_ms", "send_ms", "memory_bytes",
                          "in_flight", "idle_share", "layers"));
}

TEST(EvaluationJson, SaysWhatTheEvaluationSays) {
  PlanEvaluation evaluation =
      SampleEvaluation({.devices = 8, .schedule = "interleaved", .replicas = 2});
  evaluation.compiled.plan.recomputed = {2, 5};
  const json read = base::ParseJson(ToJson(evaluation)).value();
  EXPECT_DOUBLE_EQ(read["objective_ms"], evaluation.objective_ns / 1e6);
  EXPECT_DOUBLE_EQ(read["lower_bound_ms"], evaluation.lower_bound_ns / 1e6);
  EXPECT_DOUBLE_EQ(read["gap"], evaluation.gap());
  EXPECT_EQ(read["schedule"], "interleaved");
  EXPECT_EQ(read["micro_batches"], 8);
  EXPECT_EQ(read["micro_batch_rows"], 16);
  EXPECT_EQ(read["chunks"], 2);
  EXPECT_EQ(read["planning_ms"], 120.0);
  EXPECT_EQ(read["objective"], "step");
  EXPECT_EQ(read["model"], "gpt-small");
  EXPECT_THAT(read["recomputed_layers"], ElementsAre(2, 5));
  EXPECT_EQ(read["runner_up"]["schedule"], "1f1b");
  EXPECT_EQ(read["runner_up"]["replicas"], 2);
  EXPECT_EQ(read["runner_up"]["reason"], evaluation.runner_up_reason);
  EXPECT_EQ(read["changes"].get<std::vector<std::string>>(), evaluation.changes);
  EXPECT_EQ(read["considered"], 96);
  EXPECT_EQ(read["simulated"], 14);
  ASSERT_EQ(read["stages"].size(), 8U);
  const json& last = read["stages"][7];
  EXPECT_EQ(last["first_layer"], 35);
  EXPECT_EQ(last["last_layer"], 39);
  EXPECT_THAT(last["devices"], ElementsAre(6, 7));
  EXPECT_EQ(last["replicas"], 2);
  EXPECT_DOUBLE_EQ(last["forward_ms"], static_cast<double>(evaluation.stages[7].forward_ns) / 1e6);
  EXPECT_EQ(last["in_flight"], evaluation.stages[7].in_flight);
  EXPECT_EQ(last["layers"][4], "head");
}

TEST(EvaluationJson, SaysHowTransfersArePerformed) {
  PlanEvaluation evaluation = SampleEvaluation();
  EXPECT_EQ(json::parse(ToJson(evaluation))["transfers"], "separate");
  evaluation.cluster.transfers = schedule::Transfers::kGrouped;
  EXPECT_EQ(json::parse(ToJson(evaluation))["transfers"], "grouped");
}

TEST(EvaluationJson, PartsOfTheMemorySumToThePeak) {
  for (const SampleShape& shape : Shapes()) {
    const PlanEvaluation evaluation = SampleEvaluation(shape);
    const json read = base::ParseJson(ToJson(evaluation)).value();
    for (size_t stage = 0; stage < evaluation.stages.size(); ++stage) {
      const json& memory = read["stages"][stage]["memory_bytes"];
      int64_t sum = 0;
      for (const char* part : {"parameters", "gradients", "optimizer", "stash", "buffers"}) {
        sum += memory[part].get<int64_t>();
      }
      EXPECT_EQ(memory["peak"], sum);
      const schedule::Rank rank = evaluation.plan().schedule.rank_of_stage[stage];
      EXPECT_EQ(memory["peak"], evaluation.compiled.of(rank).peak_bytes());
      EXPECT_EQ(memory["limit"], shape.memory_bytes > 0 ? json(shape.memory_bytes) : json());
    }
  }
}

TEST(EvaluationJson, LimitIsThatOfTheSmallestReplica) {
  PlanEvaluation evaluation = SampleEvaluation({.devices = 4, .replicas = 2});
  evaluation.cluster.devices[1].memory_bytes = 5'000;
  evaluation.cluster.devices[2].memory_bytes = 0;
  const json read = base::ParseJson(ToJson(evaluation)).value();
  EXPECT_EQ(read["stages"][0]["memory_bytes"]["limit"], 5'000);
  EXPECT_EQ(read["stages"][1]["memory_bytes"]["limit"], int64_t{16} << 30);
}

TEST(EvaluationJson, ClaimsNoBoundWhereNothingWasSearched) {
  const json read = base::ParseJson(ToJson(Unsearched())).value();
  EXPECT_TRUE(read["lower_bound_ms"].is_null());
  EXPECT_TRUE(read["gap"].is_null());
  EXPECT_TRUE(read["runner_up"].is_null());
}

TEST(EvaluationJson, IsOneLineOfUtf8WhateverTheNames) {
  PlanEvaluation evaluation = SampleEvaluation();
  evaluation.model = evaluation.layer_names[0] = evaluation.changes[0] = "\xFF\n\"";
  const std::string text = ToJson(evaluation);
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

TEST(EvaluationPage, IsBalancedMarkupOfEveryShape) {
  for (const SampleShape& shape : Shapes()) {
    const PlanEvaluation evaluation = SampleEvaluation(shape);
    const std::vector<schedule::Element> elements = schedule::ParsePage(ToHtml(evaluation));
    EXPECT_THAT(Texts(elements, "h1"), ElementsAre("Plan for gpt-small"));
    EXPECT_THAT(Texts(elements, "h2"), ElementsAre("Memory", "Why this plan", "One step", "Stages",
                                                   "Memory of each device"));
    size_t bars = 0;
    for (const schedule::Element& element : elements) {
      const auto name = element.attributes.find("class");
      if (name != element.attributes.end() && absl::StartsWith(name->second, "device")) ++bars;
    }
    EXPECT_EQ(bars, evaluation.compiled.ranks.size());
    // Two header rows, one row per stage and one per rank.
    EXPECT_EQ(Texts(elements, "tr").size(),
              2 + evaluation.stages.size() + evaluation.compiled.ranks.size());
  }
}

TEST(EvaluationPage, HasTheHeadlineNumbers) {
  PlanEvaluation evaluation = SampleEvaluation();
  evaluation.simulation.step_ns = 123'456'789;
  evaluation.objective_ns = 123'456'789;
  evaluation.lower_bound_ns = 0.9 * evaluation.objective_ns;
  const std::vector<std::string> values = Texts(schedule::ParsePage(ToHtml(evaluation)), "dd");
  for (const char* value : {"123.5 ms", "111.1 ms", "10.0&nbsp;%", "zb-h1", "8", "4"}) {
    EXPECT_THAT(values, Contains(value));
  }
}

TEST(EvaluationPage, HasTheComparisonThatItIsGiven) {
  PlanEvaluation own = SampleEvaluation();
  own.objective_ns = 84'000;
  ComparedPlan other = {kEvil, own, false};
  other.evaluation.objective_ns = 126'000;
  const std::string page = ToHtml(own, {other});
  EXPECT_THAT(page, Not(HasSubstr("alert('")));
  const std::vector<schedule::Element> elements = schedule::ParsePage(page);
  EXPECT_THAT(Texts(elements, "h2"), Contains("Compared with other plans"));
  EXPECT_THAT(Texts(elements, "td"),
              AllOf(Contains("this plan"), Contains("5 5 5 5"), Contains("0.084 ms"),
                    Contains("0.126 ms"), Contains("+50.0&nbsp;%"), Contains("no")));
  EXPECT_THAT(ToHtml(own), Not(HasSubstr("Compared")));
}

TEST(EvaluationPage, SaysHowTransfersArePerformedWhereTheyAreInGroups) {
  PlanEvaluation evaluation = SampleEvaluation();
  EXPECT_THAT(ToHtml(evaluation), Not(HasSubstr("transfers")));
  evaluation.cluster.transfers = schedule::Transfers::kGrouped;
  EXPECT_THAT(ToHtml(evaluation), HasSubstr(", transfers in groups, as by NCCL</p>"));
}

TEST(EvaluationPage, ClaimsNoBoundWhereNothingWasSearched) {
  const std::vector<schedule::Element> elements = schedule::ParsePage(ToHtml(Unsearched()));
  EXPECT_THAT(Texts(elements, "dt"),
              ElementsAre("step", "schedule", "micro-batches", "devices", "fullest device"));
  EXPECT_THAT(Texts(elements, "h2"), Not(Contains("Why this plan")));
}

TEST(EvaluationPage, WidthsOfABarSumToItsShareOfTheLargest) {
  PlanEvaluation evaluation = SampleEvaluation({.memory_bytes = 0});
  std::vector<double> sums;
  for (const schedule::Element& element : schedule::ParsePage(ToHtml(evaluation))) {
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
  for (const RankReport& rank : evaluation.compiled.ranks) {
    largest = std::max(largest, rank.peak_bytes());
  }
  for (size_t rank = 0; rank < 4; ++rank) {
    const double share = static_cast<double>(evaluation.compiled.ranks[rank].peak_bytes()) /
                         static_cast<double>(largest);
    EXPECT_NEAR(sums[rank], 100 * share, 0.01);
  }
}

TEST(EvaluationPage, MarksWhatIsAboveItsLimit) {
  const char* const mark = "class=\"device over\"";
  EXPECT_THAT(ToHtml(SampleEvaluation()), Not(HasSubstr(mark)));
  EXPECT_THAT(ToHtml(SampleEvaluation({.memory_bytes = 1'000'000})), HasSubstr(mark));
  EXPECT_THAT(ToHtml(SampleEvaluation({.memory_bytes = 0})), Not(HasSubstr(mark)));
}

TEST(EvaluationPage, EscapesEveryName) {
  const std::string page = ToHtml(Evil());
  EXPECT_THAT(page, Not(HasSubstr("alert('")));
  EXPECT_FALSE(schedule::ParsePage(page).empty());
}

TEST(EvaluationPage, NeedsNothingFromElsewhere) {
  const std::string page = ToHtml(SampleEvaluation());
  for (const char* link : {"http:", "https:", "href=", "src=", "@import", "fetch(", "import("}) {
    EXPECT_THAT(page, Not(HasSubstr(link)));
  }
}

TEST(EvaluationPage, WithoutATraceHasNoTimelineAndNoScript) {
  PlanEvaluation evaluation = SampleEvaluation();
  evaluation.simulation.trace = {};
  const std::string page = ToHtml(evaluation);
  EXPECT_THAT(page, Not(HasSubstr("<script>")));
  EXPECT_THAT(Texts(schedule::ParsePage(page), "h2"), Not(Contains("One step")));
}

TEST(EvaluationPage, HasARuleForEveryClassAndColor) {
  const std::string page = ToHtml(SampleEvaluation({.memory_bytes = 1'000'000}));
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
