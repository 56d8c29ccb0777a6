#include "schedule/render/html.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/text/json.h"
#include "schedule/render/trace_style.h"
#include "tests/schedule/render/markup.h"
#include "tests/schedule/traces/traces.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::schedule {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kDataStart[] = "const D =\n";

// Returns the numbers that the page's script draws from.
json DataIn(const std::string& page) {
  const size_t start = page.find(kDataStart) + sizeof(kDataStart) - 1;
  return base::ParseJson(page.substr(start, page.find("\n;", start) - start)).value();
}

// Returns the trace of a page that has one.
const json& OnlyTrace(const json& data) {
  EXPECT_EQ(data["traces"].size(), 1U);
  return data["traces"].at(0);
}

// Returns the page of one trace without a name.
std::string PageOf(const Trace& trace, const PageText& text = {}) {
  return ToHtml({{"", trace}}, text);
}

std::vector<std::string> Texts(const std::vector<Element>& elements, const std::string& tag) {
  std::vector<std::string> texts;
  for (const Element& element : elements) {
    if (element.tag == tag) texts.push_back(element.text);
  }
  return texts;
}

TEST(Html, HasTheBoxesOfTheTrace) {
  for (const std::string& name : GeneratorNames()) {
    const Trace trace = SimulatedTrace(name, 3, 6, Sends::kRendezvous);
    const json data = DataIn(PageOf(trace, {.title = name}));
    EXPECT_EQ(data["step"], trace.step_ns);
    ASSERT_EQ(OnlyTrace(data)["ranks"].size(), trace.actions.size());
    for (size_t rank = 0; rank < trace.actions.size(); ++rank) {
      size_t slice = 0;
      int64_t start_ns = 0;
      for (const TimedAction& timed : trace.actions[rank]) {
        if (IsTransfer(timed.action.op) || timed.start_ns == timed.end_ns) continue;
        const json& numbers = OnlyTrace(data)["ranks"][rank][slice++];
        start_ns += numbers[3].get<int64_t>();
        EXPECT_EQ(data["ops"][numbers[0].get<size_t>()], OpName(timed.action.op));
        EXPECT_EQ(numbers[1], timed.action.stage.value());
        EXPECT_EQ(numbers[2], timed.action.micro_batch.value());
        EXPECT_EQ(start_ns, timed.start_ns);
        EXPECT_EQ(start_ns + numbers[4].get<int64_t>(), timed.end_ns);
      }
      EXPECT_EQ(OnlyTrace(data)["ranks"][rank].size(), slice);
    }
  }
}

TEST(Html, TellsBandsAndStagesOfARank) {
  const json data =
      DataIn(PageOf(TraceFromText({0, 0, 0}, 2, {"F0.1+@0-10 BW1.0@0-10 F2.0@10-14 STEP0@14-20"})));
  std::vector<int> bands;
  for (const json& slice : OnlyTrace(data)["ranks"][0]) bands.push_back(slice[5]);
  EXPECT_THAT(bands, ElementsAre(1, 2, 0, 0));
  EXPECT_EQ(OnlyTrace(data)["chunks"].dump(), "[0,1,2]");
}

TEST(Html, HasEveryMessageOfTheTrace) {
  const Trace trace = TraceFromText({0, 1}, 1,
                                    {"F0.0@0-10 SEND_F0.0@10-20 RECV_B0.0@10-50 BW0.0@50-60",
                                     "RECV_F1.0@0-20 F1.0@20-30 BW1.0@30-40 SEND_B1.0@40-50"});
  EXPECT_EQ(OnlyTrace(DataIn(PageOf(trace)))["messages"].dump(), "[[0,0,10,1,20],[1,1,40,0,50]]");
  const Trace large = SimulatedTrace("interleaved", 4, 8, Sends::kRendezvous);
  size_t sends = 0;
  for (const std::vector<TimedAction>& list : large.actions) {
    for (const TimedAction& timed : list) sends += IsSend(timed.action.op) ? 1 : 0;
  }
  EXPECT_EQ(OnlyTrace(DataIn(PageOf(large)))["messages"].size(), sends);
}

TEST(Html, DataHasCopiesToAndFromTheHost) {
  const Trace trace = TraceFromText(
      {0}, 1, {"F0.0@0-10 OFFLOAD0.0@10-25 RELEASE0.0@10:25-25 FETCH0.0@25-40 BW0.0@25:40-60"});
  const std::string ops = absl::StrCat("[[", static_cast<int>(Op::kOffload), ",0,0,10,25],[",
                                       static_cast<int>(Op::kFetch), ",0,0,25,40]]");
  EXPECT_EQ(OnlyTrace(DataIn(PageOf(trace)))["copies"].dump(), ops);
}

TEST(Html, OffersMessagesOnlyWhereThereAreSome) {
  EXPECT_THAT(PageOf(SimulatedTrace("1f1b", 2, 4, Sends::kRendezvous)),
              HasSubstr("id=\"messages\""));
  EXPECT_THAT(PageOf(TraceFromText({0}, 1, {"F0.0@0-1"})), Not(HasSubstr("id=\"messages\"")));
}

TEST(Html, HasTheStashOfEveryRankIfItIsKnown) {
  Trace trace =
      TraceFromText({0, 0, 1}, 1, {"F0.0@0-10 F1.0@10-20 BW1.0@50-60 BW0.0@60-65", "F2.0@30-40"});
  EXPECT_TRUE(OnlyTrace(DataIn(PageOf(trace)))["stash"].is_null());
  EXPECT_THAT(PageOf(trace), Not(HasSubstr("id=\"stash\"")));

  std::string page = ToHtml({{"", trace, {{.forward = 0.5}, {.forward = 0.5}, {}}}}, {});
  EXPECT_THAT(page, HasSubstr("id=\"stash\" checked"));
  EXPECT_EQ(OnlyTrace(DataIn(page))["stash"], json::parse(R"({"inBytes": false, "ranks": [
      {"peak": 1, "at": 10, "levels": [[0, 0.5], [10, 1], [50, 0.5], [5, 0]]},
      {"peak": 1, "at": 30, "levels": [[30, 1]]}]})"));

  trace.actions[0][1].bytes = 123'456'789'012'345;
  page = PageOf(trace);
  EXPECT_EQ(OnlyTrace(DataIn(page))["stash"]["inBytes"], true);
  EXPECT_EQ(OnlyTrace(DataIn(page))["stash"]["ranks"][0]["peak"], 123'456'789'012'345);
}

TEST(Html, HasTheTableAboveSeveralTracesAndBelowOne) {
  const Trace trace = SimulatedTrace("1f1b", 2, 4, Sends::kRendezvous);
  const PageText text = {.columns = {"name", "time", ""}, .rows = {{"1f1b", "1 ms", "best"}}};
  const std::string one = PageOf(trace, text);
  EXPECT_LT(one.find("id=\"chart\""), one.find("<td"));
  const std::string two = ToHtml({{"a", trace}, {"b", trace}}, text);
  EXPECT_LT(two.find("<td"), two.find("id=\"chart\""));
  // Numbers are aligned right; the name and remarks left.
  EXPECT_THAT(two, HasSubstr("<tr><td class=\"left\">1f1b</td><td>1 ms</td>"
                             "<td class=\"left\">best</td></tr>"));
}

// A saved picture takes only these rules with it.
TEST(Html, ThePictureNeedsOnlyItsOwnRules) {
  const Trace trace = SimulatedTrace("zb-v", 2, 4, Sends::kRendezvous);
  const std::string page = PageOf(trace);
  const std::string start = "<style id=\"look\">";
  const size_t rules_start = page.find(start) + start.size();
  const std::string rules =
      page.substr(rules_start, page.find("</style>", rules_start) - rules_start);
  EXPECT_THAT(rules, Not(HasSubstr("var(")));
  const std::string script = page.substr(page.find("<script>"));
  const std::string attribute = "class=\"";
  int classes = 0;
  for (size_t at = script.find(attribute); at != std::string::npos;
       at = script.find(attribute, at + 1)) {
    const size_t first = at + attribute.size();
    const std::string names = script.substr(first, script.find('"', first) - first);
    if (names[0] == '$') continue;  // a slice: HasARuleForEveryColor
    for (const absl::string_view name : absl::StrSplit(names, ' ')) {
      EXPECT_THAT(rules, HasSubstr(absl::StrCat(".", name))) << names;
      ++classes;
    }
  }
  EXPECT_GT(classes, 15);
}

TEST(Html, SaysWhatTheCallerSays) {
  const std::vector<Element> elements =
      ParsePage(PageOf(SimulatedTrace("1f1b", 2, 4, Sends::kRendezvous),
                       {.title = "My schedule",
                        .facts = {{"step", "12.3 ms"}, {"bubble", "4 %"}},
                        .columns = {"rank", "busy"},
                        .rows = {{"0", "1 ms"}, {"1", "2 ms"}}}));
  EXPECT_THAT(Texts(elements, "h1"), ElementsAre("My schedule"));
  EXPECT_THAT(Texts(elements, "title"), ElementsAre("My schedule"));
  EXPECT_THAT(Texts(elements, "dt"), ElementsAre("step", "bubble"));
  EXPECT_THAT(Texts(elements, "dd"), ElementsAre("12.3 ms", "4 %"));
  EXPECT_THAT(Texts(elements, "th"), ElementsAre("rank", "busy"));
  EXPECT_THAT(Texts(elements, "td"), ElementsAre("0", "1 ms", "1", "2 ms"));
}

TEST(Html, EscapesWhatTheCallerSays) {
  const std::string evil = "</script><script>alert('\"&\")</script>";
  const std::string page =
      PageOf(SimulatedTrace("1f1b", 2, 4, Sends::kRendezvous),
             {.title = evil, .facts = {{evil, evil}}, .columns = {evil}, .rows = {{evil}}});
  EXPECT_THAT(page, Not(HasSubstr("alert('")));
  EXPECT_THAT(
      Texts(ParsePage(page), "td"),
      ElementsAre("&lt;/script&gt;&lt;script&gt;alert(&#39;&quot;&amp;&quot;)&lt;/script&gt;"));
}

TEST(Html, DoesNotContainTheTracesOwnNames) {
  Trace trace = SimulatedTrace("1f1b", 2, 4, Sends::kRendezvous);
  trace.name = trace.source = "<img>";
  EXPECT_THAT(PageOf(trace, {.title = "x"}), Not(HasSubstr("<img>")));
}

TEST(Html, OfSeveralTracesHasThemOnOneAxis) {
  const Trace one = SimulatedTrace("1f1b", 2, 4, Sends::kBuffered);
  const Trace two = SimulatedTrace("zb-v", 2, 8, Sends::kBuffered);
  const std::string page = ToHtml({{"first", one}, {"</script>\\\"<b>", two}}, {});
  const json data = DataIn(page);
  ASSERT_EQ(data["traces"].size(), 2U);
  EXPECT_EQ(data["step"], std::max(one.step_ns, two.step_ns));
  EXPECT_EQ(data["traces"][0]["step"], one.step_ns);
  EXPECT_EQ(data["traces"][1]["step"], two.step_ns);
  EXPECT_EQ(data["traces"][0]["name"], "first");
  EXPECT_EQ(data["traces"][1]["name"], "&lt;/script&gt;\\&quot;&lt;b&gt;");
  EXPECT_EQ(data["traces"][0]["chunks"].dump(), "[0,0]");
  EXPECT_EQ(data["traces"][1]["chunks"].dump(), "[0,0,1,1]");
  // Colors and legend cover both.
  EXPECT_THAT(page, HasSubstr(".f1{fill:"));
  EXPECT_THAT(page, HasSubstr("</svg>backward: input and weights</span>"));
  EXPECT_THAT(page, HasSubstr("</svg>backward: weights</span>"));
}

TEST(Html, NeedsNothingFromElsewhere) {
  const std::string page = PageOf(SimulatedTrace("zb-v", 4, 8, Sends::kBuffered));
  for (const char* link : {"http:", "https:", "href=", "src=", "@import", "fetch(", "import("}) {
    EXPECT_THAT(page, Not(HasSubstr(link)));
  }
}

TEST(Html, HasAllElementsThatItsScriptLooksFor) {
  const Trace trace = SimulatedTrace("1f1b", 2, 4, Sends::kRendezvous);
  const std::string page = ToHtml({{"", trace, UnitStash(trace.rank_of_stage, 0.5)}}, {});
  std::set<std::string> ids;
  for (const Element& element : ParsePage(page)) {
    if (element.attributes.contains("id")) ids.insert(element.attributes.at("id"));
  }
  const std::string call = "getElementById(\"";
  int calls = 0;
  for (size_t at = page.find(call); at != std::string::npos; at = page.find(call, at + 1)) {
    const size_t start = at + call.size();
    const std::string id = page.substr(start, page.find('"', start) - start);
    EXPECT_TRUE(ids.contains(id)) << id;
    ++calls;
  }
  EXPECT_EQ(calls, 10);
}

TEST(Html, HasARuleForEveryColor) {
  for (const std::string& name : GeneratorNames()) {
    const Trace trace = SimulatedTrace(name, 3, 6, Sends::kBuffered);
    const std::string page = PageOf(trace);
    const json data = DataIn(page);
    for (const json& list : OnlyTrace(data)["ranks"]) {
      for (const json& slice : list) {
        const std::string color = data["colors"][slice[0].get<size_t>()];
        const int chunk = OnlyTrace(data)["chunks"][slice[1].get<size_t>()];
        EXPECT_THAT(page, HasSubstr(absl::StrCat(".", color, chunk, "{fill:")));
      }
    }
  }
}

TEST(Html, OfALargeScheduleStaysSmall) {
  for (const char* name : {"zb-h1", "zb-v"}) {
    const Trace trace = SimulatedTrace(name, 16, 128, Sends::kRendezvous);
    EXPECT_LT(PageOf(trace).size(), 1'500'000U) << name;
  }
}

TEST(Html, OfATraceOfNothingIsAPage) {
  const std::string page = PageOf(Trace(), {.title = "nothing"});
  EXPECT_EQ(OnlyTrace(DataIn(page))["ranks"].size(), 0U);
  EXPECT_FALSE(ParsePage(page).empty());
}

TEST(HtmlDeathTest, RowHasOneCellPerColumn) {
  EXPECT_DEATH(PageOf(Trace(), {.columns = {"a", "b"}, .rows = {{"1"}}}), "a row of 1 cells");
}

TEST(EscapeMarkup, LeavesOtherTextAlone) {
  EXPECT_EQ(EscapeMarkup("zb-h1 \xC3\xA9 100 %; a\tb"), "zb-h1 \xC3\xA9 100 %; a b");
}

}  // namespace
}  // namespace stagecoach::schedule
