#include "engine/train/measure/measured_costs.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

#include "base/check.h"
#include "schedule/traces/trace_parts.h"

namespace stagecoach::engine {
namespace {

using schedule::Action;
using schedule::Op;
using schedule::StageTimes;
using schedule::TimedAction;
using schedule::Trace;

constexpr size_t kNumComputeOps = static_cast<size_t>(Op::kBackward) + 1;
static_assert(static_cast<size_t>(Op::kForward) == 0, "computations come first");

struct Mean {
  double sum = 0.0;
  int64_t count = 0;

  void Add(double value) {
    sum += value;
    ++count;
  }
  double value() const { return count == 0 ? 0.0 : sum / static_cast<double>(count); }
};

// Returns the value below which that share, < 1, of the values lies; 0 if there are none.
double Quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0.0;
  const auto place = static_cast<std::ptrdiff_t>(share * static_cast<double>(values.size()));
  std::nth_element(values.begin(), values.begin() + place, values.end());
  return values[static_cast<size_t>(place)];
}

// One number per trace for each measured quantity.
struct StageSamples {
  std::array<std::vector<double>, kNumComputeOps> passes;  // index: Op
  std::vector<double> step, reduce;
};
using CollectiveSamples = std::array<std::vector<double>, schedule::kNumCollectiveOps>;
struct LinkSamples {
  double bytes = 0.0;
  double passing_ns = 0.0;
  std::vector<double> waking_ns;  // one per message that a rank waited for
};

// The durations of one stage's actions in one trace.
struct StageSums {
  std::array<Mean, kNumComputeOps> passes;
  Mean last_pass;  // the one that includes the updates
  Op last_op = Op::kBackward;
  Mean step;

  Mean& pass(Op op) { return passes[static_cast<size_t>(op)]; }

  // Returns the time that the pass with the updates would take without them.
  double LastPassAlone() {
    const Mean &whole = pass(Op::kBackward), &input = pass(Op::kBackwardInput),
               &weight = pass(Op::kBackwardWeight);
    if (pass(last_op).count > 0) return pass(last_op).value();
    if (last_op == Op::kBackwardWeight && whole.count > 0 && input.count > 0) {
      return std::max(0.0, whole.value() - input.value());
    }
    if (last_op == Op::kBackward && input.count > 0 && weight.count > 0) {
      return input.value() + weight.value();
    }
    return last_pass.value();
  }
};

void AddStages(const Trace& trace, bool updates_in_backward, std::vector<StageSamples>& samples) {
  std::vector<StageSums> sums(samples.size());
  for (const std::vector<TimedAction>& list : trace.actions) {
    int64_t reduced_ns = 0;
    for (const TimedAction& timed : list) {
      const Action& action = timed.action;
      if (schedule::IsCollective(action.op)) continue;
      if (action.op == Op::kReduceGradients) {
        // The REDUCEs of a rank run one after the other.
        const int64_t start_ns = std::max(timed.start_ns, reduced_ns);
        reduced_ns = std::max(timed.end_ns, start_ns);
        samples[static_cast<size_t>(action.stage.value())].reduce.push_back(
            static_cast<double>(reduced_ns - start_ns));
        continue;
      }
      StageSums& stage = sums[static_cast<size_t>(action.stage.value())];
      const auto duration_ns = static_cast<double>(timed.end_ns - timed.start_ns);
      const bool completes = action.op == Op::kBackwardWeight || action.op == Op::kBackward;
      if (action.op == Op::kStep) {
        stage.step.Add(duration_ns);
      } else if (updates_in_backward && completes &&
                 action.micro_batch.value() + 1 == trace.num_micro_batches) {
        stage.last_pass.Add(duration_ns);
        stage.last_op = action.op;
      } else if (schedule::IsCompute(action.op)) {
        stage.pass(action.op).Add(duration_ns);
      }
    }
  }
  for (size_t i = 0; i < sums.size(); ++i) {
    StageSums& stage = sums[i];
    if (stage.last_pass.count > 0) {
      const double alone_ns = stage.LastPassAlone();
      if (stage.pass(stage.last_op).count == 0) stage.pass(stage.last_op).Add(alone_ns);
      stage.step.sum += std::max(0.0, stage.last_pass.value() - alone_ns);
    }
    for (size_t op = 0; op < kNumComputeOps; ++op) {
      if (stage.passes[op].count > 0) samples[i].passes[op].push_back(stage.passes[op].value());
    }
    samples[i].step.push_back(stage.step.value());
  }
}

// A rank's wait for the others precedes the start.
void AddCollectiveTimes(const Trace& trace, CollectiveSamples& samples) {
  std::array<double, schedule::kNumCollectiveOps> longest_ns = {};
  for (const std::vector<TimedAction>& list : trace.actions) {
    for (const TimedAction& timed : list) {
      if (!schedule::IsCollective(timed.action.op)) continue;
      double& most = longest_ns[schedule::CollectiveIndex(timed.action.op)];
      most = std::max(most, static_cast<double>(timed.end_ns - timed.start_ns));
    }
  }
  for (size_t i = 0; i < longest_ns.size(); ++i) samples[i].push_back(longest_ns[i]);
}

void AddLinks(const Trace& trace, LinkSamples& samples) {
  std::map<Action, int64_t> sent_ns;  // by receive: when its message was ready to pass
  for (const std::vector<TimedAction>& list : trace.actions) {
    for (const TimedAction& timed : list) {
      if (schedule::IsSend(timed.action.op)) sent_ns[OtherEnd(timed.action)] = timed.start_ns;
    }
  }
  for (const std::vector<TimedAction>& list : trace.actions) {
    std::map<Action, int64_t> arrived_ns;  // by the computation that reads the message
    for (const TimedAction& timed : list) {
      const Action& action = timed.action;
      if (schedule::IsReceive(action.op)) {
        const int64_t ready_ns = std::max(timed.start_ns, sent_ns[Alone(action)]);
        samples.bytes += static_cast<double>(timed.bytes);
        samples.passing_ns += static_cast<double>(timed.end_ns - ready_ns);
        arrived_ns[{
            .op = ComputeOf(action.op), .stage = action.stage, .micro_batch = action.micro_batch}] =
            timed.end_ns;
      } else if (schedule::IsCompute(action.op)) {
        const Op op = action.op == Op::kBackward ? Op::kBackwardInput : action.op;
        const auto arrival =
            arrived_ns.find({.op = op, .stage = action.stage, .micro_batch = action.micro_batch});
        const bool waited = arrival != arrived_ns.end() && arrival->second > timed.reached_ns;
        if (waited) {
          samples.waking_ns.push_back(static_cast<double>(timed.start_ns - arrival->second));
        }
      }
    }
  }
}

struct HostCopySamples {
  double bytes = 0.0;
  double copying_ns = 0.0;
  bool occupies_rank = true;  // none was under way when the rank reached its next action
};

void AddHostCopies(const Trace& trace, HostCopySamples& samples) {
  for (const std::vector<TimedAction>& list : trace.actions) {
    for (const schedule::CopySpan& copy : schedule::CopiesOf(list)) {
      samples.bytes += static_cast<double>(list[copy.action].bytes);
      samples.copying_ns += static_cast<double>(copy.end_ns - copy.start_ns);
      const bool occupied =
          copy.action + 1 == list.size() || list[copy.action + 1].reached_ns >= copy.end_ns;
      samples.occupies_rank = samples.occupies_rank && occupied;
    }
  }
}

schedule::HostLink HostLinkOf(const HostCopySamples& samples) {
  if (samples.bytes == 0.0 || samples.copying_ns <= 0.0) return {};
  return {.link = {.bytes_per_second = 1e9 * samples.bytes / samples.copying_ns},
          .occupies_rank = samples.occupies_rank};
}

StageTimes TimesOf(const StageSamples& samples, const schedule::StageMemory& memory) {
  const auto of = [&](Op op) {
    return std::llround(Median(samples.passes[static_cast<size_t>(op)]));
  };
  const auto has = [&](Op op) { return !samples.passes[static_cast<size_t>(op)].empty(); };
  StageTimes times = {.forward_ns = of(Op::kForward),
                      .backward_input_ns = of(Op::kBackwardInput),
                      .backward_weight_ns = of(Op::kBackwardWeight),
                      .backward_ns = of(Op::kBackward),
                      .reduce_ns = std::llround(Median(samples.reduce)),
                      .step_ns = std::llround(Median(samples.step)),
                      .output_bytes = memory.output_bytes,
                      .input_gradient_bytes = memory.input_gradient_bytes,
                      .host_copy_bytes = memory.stash_bytes + memory.weight_stash_bytes};
  if (!has(Op::kBackward)) {
    times.backward_ns = times.backward_input_ns + times.backward_weight_ns;
  } else if (!has(Op::kBackwardInput)) {
    times.backward_input_ns = times.backward_ns / 2;
    times.backward_weight_ns = times.backward_ns - times.backward_input_ns;
  }
  return times;
}

}  // namespace

double Median(std::vector<double> values) { return Quantile(std::move(values), 0.5); }

schedule::Costs MeasureCosts(absl::Span<const Trace> traces, bool updates_in_backward,
                             std::vector<schedule::StageMemory> memory,
                             const schedule::CollectiveMemory& collective_memory) {
  STAGECOACH_CHECK(!traces.empty(), "costs are measured on at least one trace");
  std::vector<StageSamples> stages(memory.size());
  LinkSamples link;
  CollectiveSamples collectives;
  HostCopySamples host_copies;
  for (const Trace& trace : traces) {
    AddStages(trace, updates_in_backward, stages);
    AddLinks(trace, link);
    AddCollectiveTimes(trace, collectives);
    AddHostCopies(trace, host_copies);
  }
  schedule::Costs costs;
  for (size_t i = 0; i < stages.size(); ++i) costs.stages.push_back(TimesOf(stages[i], memory[i]));
  costs.links = {
      {.latency_ns = std::llround(Median(link.waking_ns)),
       .bytes_per_second = link.passing_ns > 0.0 ? 1e9 * link.bytes / link.passing_ns : 0.0}};
  costs.host_link = HostLinkOf(host_copies);
  const auto collective_ns = [&](schedule::Op op) {
    return std::llround(Median(collectives[schedule::CollectiveIndex(op)]));
  };
  costs.collectives = {.ties_ns = collective_ns(schedule::Op::kSumTies),
                       .norms_ns = collective_ns(schedule::Op::kExchangeNorms),
                       .results_ns = collective_ns(schedule::Op::kShareResults)};
  costs.updates_in_backward = updates_in_backward;
  costs.memory = std::move(memory);
  costs.collective_memory = collective_memory;
  return costs;
}

double MessageNs(absl::Span<const Trace> traces) {
  LinkSamples link;
  for (const Trace& trace : traces) AddLinks(trace, link);
  return Quantile(std::move(link.waking_ns), 0.25);
}

}  // namespace stagecoach::engine
