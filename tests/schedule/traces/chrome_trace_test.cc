#include "schedule/traces/chrome_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/system/file.h"
#include "base/text/json.h"
#include "schedule/traces/check_trace.h"
#include "tests/schedule/mutate.h"
#include "tests/schedule/traces/traces.h"
#include "tests/testing/refusals.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"

namespace stagecoach::schedule {
namespace {

using nlohmann::json;
using ::stagecoach::testing::Edited;
using ::stagecoach::testing::ExpectRefusals;
using ::stagecoach::testing::IsRefused;
using ::stagecoach::testing::Refusal;
using stagecoach::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr Sends kDrawnSends[] = {Sends::kBuffered, Sends::kRendezvous, Sends::kBlocking};

Trace Small() {
  return TraceFromText(
      {0, 1}, 1,
      {"F0.0@0-1500 SEND_F0.0@1500-2750 RECV_B0.0@1600-6001 BW0.0@1700:6001-9000 STEP0@9000-9500",
       "RECV_F1.0@0-2750 F1.0@10:2750-4000 BW1.0@4000-6000 SEND_B1.0@6000-6001 STEP1@6001-6501"});
}

json Events(const Trace& trace) {
  return base::ParseJson(ToChromeTrace(trace)).value()["traceEvents"];
}

TEST(ChromeTrace, ReadsBackWhatItWrote) {
  for (const std::string& name : GeneratorNames()) {
    for (const Sends sends : kDrawnSends) {
      for (const Trace& trace :
           {SimulatedTrace(name, 3, 6, sends), DisturbedTrace(name, 3, 6, sends, 1)}) {
        ASSERT_OK_AND_ASSIGN(const Trace read, ParseChromeTrace(ToChromeTrace(trace)));
        EXPECT_EQ(read, trace) << name;
      }
    }
  }
}

TEST(ChromeTrace, ReadsBackEveryOperationAndExtreme) {
  Trace trace =
      TraceFromText({0, 0}, 2147483647,
                    {"UNSHARD0@0-0 F0.0+@1:3-9 B1.2147483646@1:3-9 W0.1@9-9007199254740992 "
                     "RECV_B0.7@9007199254740991-0 REDUCE1@9007199254740991-9007199254740992 "
                     "RESHARD0@9007199254740992-9007199254740992"});
  trace.name = "\"quoted\" \\ \n\t \xC3\xA9 </script>";
  trace.source = "";
  trace.actions[0][1].bytes = std::numeric_limits<int64_t>::max();
  trace.actions[0][2].peak_stash_bytes = std::numeric_limits<int64_t>::max();
  trace.actions[0][2].as_graph = true;
  ASSERT_OK_AND_ASSIGN(const Trace read, ParseChromeTrace(ToChromeTrace(trace)));
  EXPECT_EQ(read, trace);
}

TEST(ChromeTrace, ReadsBackATraceOfNothing) {
  ASSERT_OK_AND_ASSIGN(const Trace read, ParseChromeTrace(ToChromeTrace(Trace())));
  EXPECT_EQ(read, Trace());
}

TEST(ChromeTrace, ReplacesWhatIsNotUtf8InTheName) {
  Trace trace = Small();
  trace.name = "a\xFFz";
  ASSERT_OK_AND_ASSIGN(const Trace read, ParseChromeTrace(ToChromeTrace(trace)));
  EXPECT_EQ(read.name, "a\xEF\xBF\xBDz");
}

TEST(ChromeTrace, ShowsEveryActionAtItsTimeInMicroseconds) {
  const Trace trace = Small();
  std::vector<json> slices;
  for (const json& event : Events(trace)) {
    if (event["ph"] == "X" && event["pid"] == 0) slices.push_back(event);
  }
  ASSERT_EQ(slices.size(), 5U);
  EXPECT_EQ(slices[3]["name"], "BW0.0");
  EXPECT_DOUBLE_EQ(slices[3]["ts"].get<double>(), 6.001);
  EXPECT_DOUBLE_EQ(slices[3]["dur"].get<double>(), 2.999);
  EXPECT_EQ(slices[3]["tid"], 0);
  EXPECT_EQ(slices[1]["tid"], 1);
  EXPECT_EQ(slices[2]["tid"], 2);
}

TEST(ChromeTrace, NamesRanksAndThreads) {
  std::set<std::tuple<std::string, int, std::string>> names;
  for (const json& event : Events(Small())) {
    if (event["ph"] != "M" || event["name"] == "process_sort_index") continue;
    names.emplace(event["name"], event["pid"], event["args"]["name"]);
  }
  EXPECT_THAT(names, ::testing::UnorderedElementsAre(std::make_tuple("process_name", 0, "rank 0"),
                                                     std::make_tuple("thread_name", 0, "compute"),
                                                     std::make_tuple("thread_name", 0, "send"),
                                                     std::make_tuple("thread_name", 0, "receive"),
                                                     std::make_tuple("process_name", 1, "rank 1"),
                                                     std::make_tuple("thread_name", 1, "compute"),
                                                     std::make_tuple("thread_name", 1, "send"),
                                                     std::make_tuple("thread_name", 1, "receive")));
}

// A slice [start, end), in ns.
struct Slice {
  int64_t start;
  int64_t end;
};
using SlicesByThread = std::map<std::pair<int, int>, std::vector<Slice>>;

int64_t Nanoseconds(const json& microseconds) {
  return std::llround(microseconds.get<double>() * 1000);
}

SlicesByThread SlicesOf(const json& events) {
  SlicesByThread slices;
  for (const json& event : events) {
    if (event["ph"] != "X") continue;
    const int64_t start = Nanoseconds(event["ts"]);
    slices[{event["pid"], event["tid"]}].push_back({start, start + Nanoseconds(event["dur"])});
  }
  return slices;
}

TEST(ChromeTrace, KeepsTheSlicesOfAThreadApart) {
  for (const std::string& name : GeneratorNames()) {
    for (const Sends sends : kDrawnSends) {
      for (auto& [thread, slices] : SlicesOf(Events(SimulatedTrace(name, 3, 6, sends)))) {
        for (size_t i = 1; i < slices.size(); ++i) {
          const Slice& a = slices[i - 1];
          const Slice& b = slices[i];
          const bool same = a.start == b.start && a.end == b.end;  // performed together
          EXPECT_TRUE(a.end <= b.start || (thread.second == 0 && same))
              << name << " rank " << thread.first << " thread " << thread.second << " slice " << i;
        }
      }
    }
  }
}

TEST(ChromeTrace, LeadsAnArrowFromEachSendToItsReceive) {
  for (const std::string& name : GeneratorNames()) {
    for (const Sends sends : kDrawnSends) {
      const Trace trace = SimulatedTrace(name, 3, 6, sends);
      const json events = Events(trace);
      SlicesByThread slices = SlicesOf(events);
      const auto within = [&slices](const json& event) {
        const int64_t time = Nanoseconds(event["ts"]);
        const std::vector<Slice>& list = slices[{event["pid"], event["tid"]}];
        return std::any_of(list.begin(), list.end(), [time](const Slice& slice) {
          return slice.start <= time && time < slice.end;
        });
      };
      std::map<int, json> starts;
      size_t arrows = 0;
      for (const json& event : events) {
        if (event["ph"] == "s") starts[event["id"]] = event;
        if (event["ph"] != "f") continue;
        ++arrows;
        const json& start = starts.at(event["id"]);
        EXPECT_TRUE(within(start) && within(event)) << start << event;
        EXPECT_LE(Nanoseconds(start["ts"]), Nanoseconds(event["ts"]));
        EXPECT_EQ(start["tid"].get<int>() % 5, 1);
        EXPECT_EQ(event["tid"].get<int>() % 5, 2);
        EXPECT_NE(start["pid"], event["pid"]);
      }
      size_t sent = 0;
      for (const std::vector<TimedAction>& list : trace.actions) {
        for (const TimedAction& timed : list) sent += IsSend(timed.action.op) ? 1 : 0;
      }
      EXPECT_EQ(arrows, sent) << name;
    }
  }
}

TEST(ChromeTrace, ShowsReductionsOnThreadsOfTheirOwn) {
  const json events = Events(TraceFromText(
      {0, 0}, 1, {"BW1.0@0-10 REDUCE1@10-25 BW0.0@10-20 REDUCE0@20-30 STEP0@20:30-35"}));
  std::map<int, std::string> names;
  std::map<std::string, int> thread_of;
  for (const json& event : events) {
    if (event["name"] == "thread_name") names[event["tid"]] = event["args"]["name"];
    if (event["ph"] == "X") thread_of[event["name"]] = event["tid"];
  }
  EXPECT_EQ(names, (std::map<int, std::string>{{0, "compute"}, {3, "reduce"}, {8, "reduce 2"}}));
  EXPECT_EQ(thread_of["REDUCE1"], 3);
  EXPECT_EQ(thread_of["REDUCE0"], 8);
  EXPECT_EQ(thread_of["STEP0"], 0);
}

TEST(ChromeTrace, ShowsCopiesToAndFromTheHostOnThreadsOfTheirOwn) {
  const json events = Events(TraceFromText(
      {0}, 1, {"F0.0@0-10 OFFLOAD0.0@10-25 RELEASE0.0@10:25-25 FETCH0.0@25-40 BW0.0@25:40-60"}));
  std::map<std::string, int> thread_of;
  for (const json& event : events) {
    if (event["ph"] == "X") thread_of[event["name"]] = event["tid"];
  }
  EXPECT_EQ(thread_of,
            (std::map<std::string, int>{
                {"F0.0", 0}, {"OFFLOAD0.0", 4}, {"RELEASE0.0", 0}, {"FETCH0.0", 5}, {"BW0.0", 0}}));
}

TEST(ChromeTrace, RefusesWhatItWouldHaveToGuess) {
  const std::string good = ToChromeTrace(Small());
  const auto with = [&](const char* piece, const char* replacement) {
    return Edited(good, piece, replacement);
  };
  const Refusal<std::string> refusals[] = {
      {with("stagecoach-trace", "other-trace"), "$.otherData.format: must be \"stagecoach-trace\""},
      {with("'version':1", "'version':2"), "$.otherData.version: only version 1"},
      {with("'micro_batches':1", "'micro_batches':-1"), "$.otherData.micro_batches: must be"},
      {with("'micro_batches':1", "'micro_batches':1.0"), "$.otherData.micro_batches"},
      {with("'rank_of_stage':[0,1]", "'rank_of_stage':[0,2]"), "$.otherData.rank_of_stage[1]"},
      {with("'rank_of_stage':[0,1]", "'rank_of_stage':[1,0]"), "the stage is on rank 1"},
      {with("'actions_per_rank':[5,5]", "'actions_per_rank':[5,6]"),
       "$.traceEvents: 5 slices of rank 1, but $.otherData.actions_per_rank[1] says 6"},
      {with("'actions_per_rank':[5,5]", "'actions_per_rank':[]"), "$.otherData.rank_of_stage"},
      {with("'step_ns':9500", "'step_ns':9499"), "after the step"},
      {with("'step_ns':9500", "'step_ns':9500,'more':1"), "unknown key \"more\""},
      {with("'otherData'", "'otherDatum'"), "the key \"otherData\" is missing"},
      {with("'op':'BW'", "'op':'BX'"), ".args.op: must be one of F, B, W, BW"},
      {with("'stage':0", "'stage':3"), "the trace has 2 stages"},
      {with("'micro_batch':0", "'micro_batch':4294967296"), ".args.micro_batch: must be from 0"},
      {with("'micro_batch':0,", ""), "the key \"micro_batch\" is missing"},
      {with("'op':'STEP'", "'op':'STEP','micro_batch':0"), "unknown key \"micro_batch\""},
      {with("'reached_ns':1700", "'reached_ns':6002"), "started before it was reached"},
      {with("'bytes':0", "'bytes':-1"), ".args.bytes: must be at least 0"},
      {with("'bytes':0", "'bytes':0,'size':1"), "unknown key \"size\""},
      {with("'pid':1,'tid':0,'ts'", "'pid':2,'tid':0,'ts'"), ".pid: must be from 0 to 1"},
      {with("'dur'", "'duration'"), "unknown key \"duration\""},
      {with("'ph':'X'", "'ph':'Y'"), "4 slices of rank 0"},
      {with("{'ph':'M'", "7,{'ph':'M'"), "$.traceEvents[0]: expected an object"},
      {"", ""},
      {"[]", "expected an object"},
      {good + "x", ""},
  };
  ExpectRefusals(ParseChromeTrace, refusals);
}

TEST(ChromeTrace, SurvivesDamagedText) {
  const std::string good = ToChromeTrace(Small());
  int accepted = 0;
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    const std::string text = Mutate(good, seed, "0123456789{}[]\",:-.eXMF\\");
    const absl::StatusOr<Trace> trace = ParseChromeTrace(text);
    if (!trace.ok()) {
      EXPECT_FALSE(trace.status().message().empty());
      continue;
    }
    ++accepted;
    EXPECT_OK(CheckTrace(*trace));
    EXPECT_EQ(ParseChromeTrace(ToChromeTrace(*trace)).value(), *trace);
  }
  // Some damage affects only what viewers read, but not most.
  EXPECT_GT(accepted, 0);
  EXPECT_LT(accepted, 2000);
}

TEST(ChromeTrace, PassesThroughAFile) {
  const testing::TestFolder folder;
  const std::string path = folder.path() / "trace.json";
  const Trace trace = SimulatedTrace("zb-h1", 4, 8, Sends::kRendezvous);
  ASSERT_OK(WriteTrace(trace, path));
  ASSERT_OK_AND_ASSIGN(const Trace read, ReadTrace(path));
  EXPECT_EQ(read, trace);
}

TEST(ChromeTrace, NamesTheFileThatCannotBeRead) {
  const testing::TestFolder folder;
  const std::string path = folder.path() / "bad.json";
  ASSERT_OK(base::WriteFileAtomically(path, "{}"));
  EXPECT_THAT(ReadTrace(path), IsRefused(AllOf(StartsWith(path), HasSubstr("otherData"))));
  EXPECT_THAT(ReadTrace(path + ".none"), StatusIs(absl::StatusCode::kNotFound, path + ".none"));
}

TEST(ChromeTrace, WritesNoTraceThatItWouldNotRead) {
  const testing::TestFolder folder;
  Trace trace = Small();
  trace.actions[0][0].end_ns = -1;
  EXPECT_THAT(WriteTrace(trace, folder.path() / "never.json"),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace stagecoach::schedule
