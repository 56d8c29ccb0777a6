#include "tests/schedule/traces/traces.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/random.h"
#include "schedule/generators/generators.h"
#include "schedule/traces/check_trace.h"
#include "schedule/transforms/lowering.h"
#include "tests/schedule/handwritten.h"

namespace stagecoach::schedule {
namespace {

int64_t NumberIn(absl::string_view text) {
  int64_t number = 0;
  STAGECOACH_CHECK(absl::SimpleAtoi(text, &number), absl::StrCat("not a number: ", text));
  return number;
}

TimedAction TimedActionFrom(absl::string_view word) {
  const std::vector<absl::string_view> parts = absl::StrSplit(word, absl::ByAnyChar("@:-"));
  STAGECOACH_CHECK(parts.size() == 3 || parts.size() == 4, absl::StrCat("not timed: ", word));
  TimedAction timed;
  timed.action = ParseCode(parts[0]).value();
  timed.reached_ns = NumberIn(parts[1]);
  timed.start_ns = NumberIn(parts[parts.size() - 2]);
  timed.end_ns = NumberIn(parts[parts.size() - 1]);
  return timed;
}

Costs TypicalCosts(const Generator& generator, int ranks) {
  Costs costs = LoopCosts(ranks, generator.chunks, {11'325'001, 11'308'003, 8'109'007}, 378'011);
  for (StageTimes& stage : costs.stages) {
    stage.step_ns = 1'234'567;
    stage.output_bytes = 1 << 20;
    stage.input_gradient_bytes = 1 << 19;
  }
  costs.overlap_share = 0.8;
  return costs;
}

Trace Run(absl::string_view name, int ranks, int micro_batches, const Costs& costs, Sends sends) {
  const Schedule compute = Generate(name, {.ranks = ranks, .micro_batches = micro_batches}).value();
  Trace trace =
      Simulate(Lower(compute).value(), costs, {.sends = sends, .keep_trace = true}).value().trace;
  STAGECOACH_CHECK_OK(CheckTrace(trace));
  return trace;
}

}  // namespace

Trace TraceFromText(const std::vector<int>& rank_of_stage, int num_micro_batches,
                    const std::vector<std::string>& lists) {
  Trace trace;
  trace.name = "handwritten";
  trace.source = "simulated";
  trace.num_micro_batches = num_micro_batches;
  for (const int rank : rank_of_stage) trace.rank_of_stage.emplace_back(rank);
  for (const std::string& list : lists) {
    std::vector<TimedAction>& actions = trace.actions.emplace_back();
    for (const absl::string_view word : absl::StrSplit(list, ' ', absl::SkipEmpty())) {
      actions.push_back(TimedActionFrom(word));
      trace.step_ns = std::max(trace.step_ns, actions.back().end_ns);
    }
  }
  STAGECOACH_CHECK_OK(CheckTrace(trace));
  return trace;
}

Trace SimulatedTrace(absl::string_view name, int ranks, int micro_batches, Sends sends) {
  const Generator* generator = FindGenerator(name).value();
  return Run(name, ranks, micro_batches, TypicalCosts(*generator, ranks), sends);
}

Trace DisturbedTrace(absl::string_view name, int ranks, int micro_batches, Sends sends,
                     uint64_t seed) {
  Costs costs = TypicalCosts(*FindGenerator(name).value(), ranks);
  const base::RandomStream random(7, seed);
  uint64_t next = 0;
  const auto scale = [&](int64_t& time_ns) {
    time_ns = time_ns * (70 + static_cast<int64_t>(random.Below(next++, 61))) / 100;
  };
  for (StageTimes& stage : costs.stages) {
    scale(stage.forward_ns);
    scale(stage.backward_input_ns);
    scale(stage.backward_weight_ns);
    scale(stage.backward_ns);
    scale(stage.step_ns);
  }
  Trace trace = Run(name, ranks, micro_batches, costs, sends);
  trace.source = "measured";
  // All of a rank's later times move together, which keeps them in order, though not consistent
  // with other ranks.
  int64_t end_ns = trace.step_ns;
  for (std::vector<TimedAction>& list : trace.actions) {
    int64_t shift_ns = 0;
    for (TimedAction& timed : list) {
      shift_ns += static_cast<int64_t>(random.Below(next++, 50'001));
      timed.reached_ns += shift_ns;
      timed.start_ns += shift_ns;
      timed.end_ns += shift_ns;
      end_ns = std::max(end_ns, timed.end_ns);
    }
  }
  trace.step_ns = end_ns;
  STAGECOACH_CHECK_OK(CheckTrace(trace));
  return trace;
}

std::vector<std::string> GeneratorNames() {
  std::vector<std::string> names;
  for (const Generator& generator : Generators()) names.emplace_back(generator.name);
  return names;
}

}  // namespace stagecoach::schedule
