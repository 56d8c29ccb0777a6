#include "engine/diagnosis/merged_trace.h"

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/diagnosis/recorded_ranks.h"

namespace stagecoach::engine {
namespace {

using nlohmann::json;
using schedule::Op;

// Returns the events by name; the arrows by their phase.
std::map<std::string, json> EventsOf(const std::vector<RankRecord>& records) {
  std::map<std::string, json> events;
  const json trace = json::parse(ToMergedTrace(records));
  for (const json& event : trace.at("traceEvents")) {
    const std::string phase = event.at("ph");
    events[phase == "X" ? event.at("name").get<std::string>() : phase] = event;
  }
  return events;
}

TEST(MergedTrace, ShowsActionsWaitsAndMessages) {
  auto events = EventsOf({RecordedRank(0, 2).Add(Op::kSendActivation, 3, {10, 10, 12}),
                          RecordedRank(1, 2)
                              .Add(Op::kForward, 3, {11, 15, 40}, Awaited::kMessage, 0)
                              .Add(Op::kBackward, 3, {40, 0, 0}, Awaited::kMessage, 2)
                              .Add(Op::kForward, 4, {50, 50, 60})});
  EXPECT_EQ(events.at("F1.3").at("pid"), 1);
  EXPECT_EQ(events.at("F1.3").at("ts"), 1000.0);
  EXPECT_EQ(events.at("F1.3").at("dur"), 29000.0);
  EXPECT_EQ(events.at("F1.3").at("args").at("step"), 57);
  EXPECT_EQ(events.at("waits for rank 0").at("ts"), 1000.0);
  EXPECT_EQ(events.at("waits for rank 0").at("dur"), 4000.0);
  EXPECT_EQ(events.at("s").at("pid"), 0);
  EXPECT_EQ(events.at("s").at("ts"), 0.0);
  EXPECT_EQ(events.at("f").at("pid"), 1);
  EXPECT_EQ(events.at("f").at("ts"), 5000.0);
  EXPECT_EQ(events.at("s").at("id"), events.at("f").at("id"));
  // It lasts until the end of the trace.
  EXPECT_EQ(events.at("BW1.3 (unfinished)").at("dur"), 20000.0);
  EXPECT_EQ(events.at("waits for rank 2").at("dur"), 20000.0);
}

TEST(MergedTrace, OfNothingIsWhole) {
  EXPECT_TRUE(json::parse(ToMergedTrace({})).at("traceEvents").empty());
  EXPECT_EQ(EventsOf({RecordedRank(0, 1)}).size(), 1U);  // the rank's name
}

}  // namespace
}  // namespace stagecoach::engine
