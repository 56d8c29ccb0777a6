#include "schedule/traces/check_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "absl/strings/str_cat.h"
#include "tests/schedule/traces/traces.h"
#include "tests/testing/refusals.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::schedule {
namespace {

using ::stagecoach::testing::IsRefused;
using stagecoach::testing::StatusIs;

Trace Good() {
  return TraceFromText({0, 1}, 2, {"F0.0@1:2-10 SEND_F0.0@10-12 STEP0@30-40", "F1.0@0:12-20"});
}

TEST(CheckTrace, AcceptsWhatIsSimulated) {
  for (const std::string& name : GeneratorNames()) {
    for (const Sends sends : {Sends::kBuffered, Sends::kRendezvous, Sends::kBlocking}) {
      EXPECT_OK(CheckTrace(SimulatedTrace(name, 3, 6, sends))) << name;
    }
  }
}

TEST(CheckTrace, AcceptsATraceOfNothing) { EXPECT_OK(CheckTrace(Trace())); }

TEST(CheckTrace, AcceptsAMessageThatArrivedBeforeItWasAwaited) {
  EXPECT_OK(CheckTrace(TraceFromText({0, 1}, 1, {"F0.0@0-1", "RECV_F1.0@5-3 F1.0@5-8"})));
}

struct Fault {
  const char* name;
  std::function<void(Trace&)> make;
  const char* message;
};

TEST(CheckTrace, NamesEveryFault) {
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  const std::vector<Fault> faults = {
      {"micro-batches", [](Trace& t) { t.num_micro_batches = -1; }, "negative number"},
      {"stage's rank", [](Trace& t) { t.rank_of_stage[1] = Rank(2); }, "stage 1 is on rank 2"},
      {"no rank", [](Trace& t) { t.rank_of_stage[1] = Rank(); }, "stage 1 is on rank -1"},
      {"step", [](Trace& t) { t.step_ns = -1; }, "a step of -1 ns"},
      {"long step", [](Trace& t) { t.step_ns = kMaxTraceNs + 1; }, "a step of"},
      {"operation", [](Trace& t) { t.actions[0][0].action.op = static_cast<Op>(kNumOps); },
       "unknown operation"},
      {"stage", [](Trace& t) { t.actions[0][0].action.stage = StageId(2); }, "has 2 stages"},
      {"no stage", [](Trace& t) { t.actions[0][0].action.stage = StageId(); }, "has 2 stages"},
      {"other rank", [](Trace& t) { t.actions[0][0].action.stage = StageId(1); }, "is on rank 1"},
      {"micro-batch", [](Trace& t) { t.actions[0][0].action.micro_batch = MicroBatch(2); },
       "has 2 micro-batches"},
      {"no micro-batch", [](Trace& t) { t.actions[0][0].action.micro_batch = MicroBatch(); },
       "has 2 micro-batches"},
      {"step's micro-batch", [](Trace& t) { t.actions[0][2].action.micro_batch = MicroBatch(0); },
       "of the whole stage"},
      {"reached", [](Trace& t) { t.actions[0][0].reached_ns = kMin; }, "before the step"},
      {"ended", [](Trace& t) { t.actions[1][0].end_ns = kMin; }, "before the step"},
      {"start", [](Trace& t) { t.actions[0][0].start_ns = 0; }, "started before it was reached"},
      {"end", [](Trace& t) { t.actions[0][0].end_ns = 1; }, "ended before it started"},
      {"late start", [](Trace& t) { t.actions[0][2].start_ns = kMax; }, "after the step"},
      {"late end", [](Trace& t) { t.actions[0][2].end_ns = 41; }, "after the step, which takes 40"},
      {"order", [](Trace& t) { t.actions[0][1].reached_ns = 0; },
       "before the action that precedes"},
      {"order of starts",
       [](Trace& t) {
         t.actions[0][0].start_ns = 11;
         t.actions[0][0].end_ns = 12;
       },
       "before the action that precedes"},
      {"bytes", [](Trace& t) { t.actions[0][0].bytes = -1; }, "negative size"},
      {"peak", [](Trace& t) { t.actions[0][0].peak_stash_bytes = -1; }, "negative size"},
  };
  ASSERT_OK(CheckTrace(Good()));
  for (const Fault& fault : faults) {
    Trace trace = Good();
    fault.make(trace);
    EXPECT_THAT(CheckTrace(trace), IsRefused(fault.message)) << fault.name;
  }
}

TEST(CheckTrace, SaysWhere) {
  Trace trace = Good();
  trace.actions[0][1].bytes = -1;
  EXPECT_THAT(CheckTrace(trace), IsRefused("rank 0, position 1 (stage 0 SEND_F micro-batch 0)"));
}

TEST(CheckTrace, LimitsTheTimeOfAllRanksTogether) {
  Trace trace;
  trace.step_ns = kMaxTraceNs;
  trace.actions.resize(512);
  EXPECT_OK(CheckTrace(trace));
  trace.actions.resize(513);
  EXPECT_THAT(CheckTrace(trace), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace stagecoach::schedule
