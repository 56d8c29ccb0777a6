#include "schedule/render/svg.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "schedule/traces/trace_parts.h"
#include "tests/schedule/render/markup.h"
#include "tests/schedule/traces/traces.h"

namespace stagecoach::schedule {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

double Number(const Element& element, const std::string& attribute) {
  double number = -1;
  EXPECT_TRUE(absl::SimpleAtod(element.attributes.at(attribute), &number)) << attribute;
  return number;
}

struct Rectangle {
  Element rect;
  std::string hint;

  double x() const { return Number(rect, "x"); }
  double y() const { return Number(rect, "y"); }
  double width() const { return Number(rect, "width"); }
  double height() const { return Number(rect, "height"); }
  std::string look() const { return rect.attributes.at("class"); }
};

// Returns the slices of actions: rectangles with a hint.
std::vector<Rectangle> BoxesIn(const std::string& svg) {
  const std::vector<Element> elements = ParseMarkup(svg);
  std::vector<Rectangle> slices;
  for (size_t i = 1; i < elements.size(); ++i) {
    if (elements[i].tag == "title") slices.push_back({elements[i - 1], elements[i].text});
  }
  return slices;
}

Trace TwoRanks() {
  return TraceFromText({0, 1, 1}, 13,
                       {"F0.12@0-10000 SEND_F0.12@10000-20000 RECV_B0.12@10000-90000 "
                        "BW0.12@90000-100000",
                        "RECV_F1.12@0-20000 F1.12@20000-40000 F2.12@40000-60000 B2.12@60000-80000 "
                        "B1.12@80000-85000 SEND_B1.12@85000-90000 W1.12@85000-85001"});
}

TEST(Svg, DrawsABoxForEverythingThatTakesTime) {
  for (const std::string& name : GeneratorNames()) {
    const Trace trace = SimulatedTrace(name, 4, 8, Sends::kRendezvous);
    size_t actions = 0;
    for (const std::vector<TimedAction>& list : trace.actions) {
      for (const TimedAction& timed : list) {
        actions += !IsTransfer(timed.action.op) && timed.end_ns > timed.start_ns ? 1 : 0;
      }
    }
    EXPECT_EQ(BoxesIn(ToSvg(trace)).size(), actions) << name;
  }
}

TEST(Svg, PlacesBoxesByRankAndTime) {
  const std::vector<Rectangle> slices = BoxesIn(ToSvg(TwoRanks()));
  ASSERT_EQ(slices.size(), 7U);
  const double left = slices[0].x();
  const double per_ns = (slices[1].x() - left) / 90000;
  const std::vector<double> starts = {0, 90000, 20000, 40000, 60000, 80000, 85000};
  const std::vector<double> durations = {10000, 10000, 20000, 20000, 20000, 5000, 1};
  for (size_t i = 0; i < slices.size(); ++i) {
    EXPECT_NEAR(slices[i].x(), left + starts[i] * per_ns, 0.02) << i;
    EXPECT_LE(slices[i].width(), durations[i] * per_ns + 0.1) << i;
    EXPECT_GE(slices[i].width(), durations[i] * per_ns - 1.01) << i;
    EXPECT_EQ(slices[i].y(), slices[i < 2 ? 0 : 2].y()) << i;
  }
  EXPECT_GE(slices[2].y(), slices[0].y() + slices[0].height());
}

TEST(Svg, ColorsByOperationAndStage) {
  std::vector<std::string> looks;
  for (const Rectangle& slice : BoxesIn(ToSvg(TwoRanks()))) looks.push_back(slice.look());
  EXPECT_THAT(looks, ElementsAre("f0", "d0", "f0", "f1", "b1", "b0", "w0"));
}

TEST(Svg, HasARuleForEveryClass) {
  for (const std::string& name : GeneratorNames()) {
    const std::string svg = ToSvg(SimulatedTrace(name, 4, 8, Sends::kBuffered));
    for (const Rectangle& slice : BoxesIn(svg)) {
      EXPECT_THAT(svg, HasSubstr(absl::StrCat(".", slice.look(), "{fill:hsl(")));
    }
  }
}

TEST(Svg, TellsActionAndTimesOnHover) {
  Trace trace = TwoRanks();
  trace.actions[0][0].bytes = 2'500'000;
  const std::vector<Rectangle> slices = BoxesIn(ToSvg(trace));
  EXPECT_EQ(slices[0].hint, "stage 0 F micro-batch 12: 0.000 to 10.000 us, stash 2.5 MB");
  EXPECT_EQ(slices[6].hint, "stage 1 W micro-batch 12: 85.000 to 85.001 us");
}

TEST(Svg, WritesTheMicroBatchWhereItFits) {
  std::vector<std::string> numbers;
  for (const Element& element : ParseMarkup(ToSvg(TwoRanks()))) {
    const auto look = element.attributes.find("class");
    if (element.tag == "text" && look != element.attributes.end() && look->second == "n") {
      numbers.push_back(element.text);
    }
  }
  // All except the last, which takes 1 ns.
  EXPECT_THAT(numbers, ElementsAre("12", "12", "12", "12", "12", "12"));
}

TEST(Svg, SharesARowBetweenActionsPerformedTogether) {
  const std::vector<Rectangle> slices =
      BoxesIn(ToSvg(TraceFromText({0, 0}, 2, {"F0.1+@0-10 BW1.0@0-10 F0.0+@10-14 BW1.1@14-20"})));
  ASSERT_EQ(slices.size(), 4U);
  EXPECT_EQ(slices[0].height(), slices[3].height() / 2);
  EXPECT_EQ(slices[1].height(), slices[3].height() / 2);
  EXPECT_EQ(slices[1].y(), slices[0].y() + slices[0].height());
  EXPECT_EQ(slices[1].x(), slices[0].x());
  EXPECT_EQ(slices[2].height(), slices[3].height());
}

TEST(Svg, StaysWithinItsFrame) {
  for (const std::string& name : GeneratorNames()) {
    for (const int width : {0, 300, 800, 3000}) {
      const std::string svg =
          ToSvg(SimulatedTrace(name, 3, 6, Sends::kRendezvous), {.width_px = width});
      const Element frame = ParseMarkup(svg)[0];
      EXPECT_EQ(Number(frame, "width"), std::max(width, 300));
      for (const Rectangle& slice : BoxesIn(svg)) {
        EXPECT_GT(slice.x(), 0);
        EXPECT_LE(slice.x() + slice.width(), Number(frame, "width"));
        EXPECT_LE(slice.y() + slice.height(), Number(frame, "height"));
      }
    }
  }
}

TEST(Svg, DrawsBandsWherePassesHaveNoRoom) {
  for (const char* name : {"1f1b", "zb-h1", "zb-v", "dualpipe-v"}) {
    const Trace trace = SimulatedTrace(name, 4, 64, Sends::kRendezvous);
    const std::string svg = ToSvg(trace, {.messages = true});
    EXPECT_THAT(svg, Not(HasSubstr("class=\"message"))) << name;
    const std::vector<Rectangle> bands = BoxesIn(svg);
    // The drawn area is the time that ranks are busy, in a frame of 1,106 pixels and rows of 34.
    double busy = 0;
    size_t slices = 0;
    for (const std::vector<TimedAction>& list : trace.actions) {
      for (const Slice& slice : SlicesOf(list)) {
        ++slices;
        const double part = slice.track == Track::kWhole ? 1 : 0.5;
        busy += part * static_cast<double>(slice.timed.end_ns - slice.timed.start_ns);
      }
    }
    EXPECT_LT(bands.size(), slices / 2) << name;
    double drawn = 0;
    for (const Rectangle& track : bands) drawn += track.width() * track.height();
    EXPECT_NEAR(drawn, 34 * 1106 * busy / static_cast<double>(trace.step_ns), 0.01 * drawn) << name;
    const std::string wide = ToSvg(trace, {.width_px = 12'000, .messages = true});
    EXPECT_THAT(wide, HasSubstr("class=\"message")) << name;
    EXPECT_EQ(BoxesIn(wide).size(), slices) << name;
  }
}

// If an order repeats, every group has the same shares.
TEST(Svg, BandsOfARepeatedOrderAreAlike) {
  std::string list;
  for (int i = 0; i < 120; ++i) {
    absl::StrAppend(&list, "F0.", i, "@", 30 * i, "-", 30 * i + 10, " BW0.", i, "@", 30 * i + 10,
                    "-", 30 * i + 30, " ");
  }
  const std::vector<Rectangle> bands = BoxesIn(ToSvg(TraceFromText({0}, 120, {list})));
  ASSERT_EQ(bands.size(), 40U);  // two of each 12 passes
  for (size_t i = 0; i < bands.size(); ++i) {
    EXPECT_EQ(bands[i].look(), i % 2 == 0 ? "f0" : "d0");
    EXPECT_NEAR(bands[i].height(), i % 2 == 0 ? 34.0 / 3 : 68.0 / 3, 0.01);
  }
}

TEST(Svg, DrawsMessagesOnRequest) {
  const auto messages = [](const std::string& svg, const std::string& look) {
    std::string path = "none";
    for (const Element& element : ParseMarkup(svg)) {
      const auto found = element.attributes.find("class");
      if (found != element.attributes.end() && found->second == look) {
        path = element.attributes.at("d");
      }
    }
    return path;
  };
  const std::string svg = ToSvg(TwoRanks(), {.messages = true});
  const std::vector<Rectangle> slices = BoxesIn(svg);
  // The message goes from where the F ended, below its row, to where the next one starts, above its
  // row.
  const std::string start = absl::StrCat("M", slices[0].rect.attributes.at("x"));
  EXPECT_THAT(messages(svg, "message forth"), HasSubstr("M"));
  EXPECT_THAT(messages(svg, "message forth"), Not(HasSubstr(start)));
  EXPECT_THAT(messages(svg, "message forth"),
              HasSubstr(absl::StrCat("L", slices[2].rect.attributes.at("x"), " ",
                                     slices[2].rect.attributes.at("y"))));
  EXPECT_THAT(messages(svg, "message back"),
              HasSubstr(absl::StrCat("L", slices[1].rect.attributes.at("x"))));
  EXPECT_EQ(messages(ToSvg(TwoRanks()), "message forth"), "none");
}

TEST(Svg, EscapesItsTitle) {
  const std::string svg = ToSvg(TwoRanks(), {.title = "<b>\"A\" & 'B'\n</b>"});
  EXPECT_THAT(svg, HasSubstr("&lt;b&gt;&quot;A&quot; &amp; &#39;B&#39; &lt;/b&gt;"));
  EXPECT_EQ(BoxesIn(svg).size(), 7U);
}

TEST(Svg, NeedsNothingFromElsewhere) {
  std::string svg = ToSvg(SimulatedTrace("zb-v", 4, 8, Sends::kBuffered), {.messages = true});
  const std::string space = "http://www.w3.org/2000/svg";
  svg.erase(svg.find(space), space.size());
  for (const char* link : {"http", "//", "href", "src", "@import", "script"}) {
    EXPECT_THAT(svg, Not(HasSubstr(link)));
  }
}

TEST(Svg, DrawsATraceOfNothing) {
  EXPECT_TRUE(BoxesIn(ToSvg(Trace())).empty());
  EXPECT_TRUE(BoxesIn(ToSvg(TraceFromText({0}, 1, {"F0.0@0-0"}))).empty());
}

// The second copy to the host is posted at 20, and made from 25 on.
TEST(Svg, DrawsCopiesToAndFromTheHostWhileTheyAreMade) {
  const std::string svg =
      ToSvg(TraceFromText({0}, 2,
                          {"F0.0@0-10 OFFLOAD0.0@10-25 F0.1@10-20 OFFLOAD0.1@20-40 FETCH0.0@50-60 "
                           "BW0.0@60-80"}),
            {});
  EXPECT_THAT(svg, HasSubstr("<title>stage 0 OFFLOAD micro-batch 0: 10 to 25 ns</title>"));
  EXPECT_THAT(svg, HasSubstr("<title>stage 0 OFFLOAD micro-batch 1: 25 to 40 ns</title>"));
  EXPECT_THAT(svg, HasSubstr("<title>stage 0 FETCH micro-batch 0: 50 to 60 ns</title>"));
  EXPECT_THAT(svg, HasSubstr(">stash copied to the host</text>"));
  EXPECT_THAT(svg, HasSubstr(">stash copied back</text>"));
}

}  // namespace
}  // namespace stagecoach::schedule
