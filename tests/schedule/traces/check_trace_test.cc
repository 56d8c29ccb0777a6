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

using ::stagecoach::testing::Change;
using ::stagecoach::testing::ExpectRefusedChanges;
using ::stagecoach::testing::Refusal;
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

TEST(CheckTrace, NamesEveryFault) {
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  const Refusal<Change<Trace>> refusals[] = {
      {[](Trace& t) { t.num_micro_batches = -1; }, "negative number"},
      {[](Trace& t) { t.rank_of_stage[1] = Rank(2); }, "stage 1 is on rank 2"},
      {[](Trace& t) { t.rank_of_stage[1] = Rank(); }, "stage 1 is on rank -1"},
      {[](Trace& t) { t.step_ns = -1; }, "a step of -1 ns"},
      {[](Trace& t) { t.step_ns = kMaxTraceNs + 1; }, "a step of"},
      {[](Trace& t) { t.actions[0][0].action.op = static_cast<Op>(kNumOps); }, "unknown operation"},
      {[](Trace& t) { t.actions[0][0].action.stage = StageId(2); }, "has 2 stages"},
      {[](Trace& t) { t.actions[0][0].action.stage = StageId(); }, "has 2 stages"},
      {[](Trace& t) { t.actions[0][0].action.stage = StageId(1); }, "is on rank 1"},
      {[](Trace& t) { t.actions[0][0].action.micro_batch = MicroBatch(2); }, "has 2 micro-batches"},
      {[](Trace& t) { t.actions[0][0].action.micro_batch = MicroBatch(); }, "has 2 micro-batches"},
      {[](Trace& t) { t.actions[0][2].action.micro_batch = MicroBatch(0); }, "of the whole stage"},
      {[](Trace& t) { t.actions[0][0].reached_ns = kMin; }, "before the step"},
      {[](Trace& t) { t.actions[1][0].end_ns = kMin; }, "before the step"},
      {[](Trace& t) { t.actions[0][0].start_ns = 0; }, "started before it was reached"},
      {[](Trace& t) { t.actions[0][0].end_ns = 1; }, "ended before it started"},
      {[](Trace& t) { t.actions[0][2].start_ns = kMax; }, "after the step"},
      {[](Trace& t) { t.actions[0][2].end_ns = 41; }, "after the step, which takes 40"},
      {[](Trace& t) { t.actions[0][1].reached_ns = 0; }, "before the action that precedes"},
      {[](Trace& t) {
         t.actions[0][0].start_ns = 11;
         t.actions[0][0].end_ns = 12;
       },
       "before the action that precedes"},
      {[](Trace& t) { t.actions[0][0].bytes = -1; }, "negative size"},
      {[](Trace& t) { t.actions[0][0].peak_stash_bytes = -1; }, "negative size"},
      {[](Trace& t) { t.actions[0][1].bytes = -1; },
       "rank 0, position 1 (stage 0 SEND_F micro-batch 0)"},
  };
  ExpectRefusedChanges(Good(), CheckTrace, refusals);
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
