#include "engine/train/measured_profile.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/status_macros.h"
#include "engine/data/random_samples.h"
#include "engine/train/measure/measured_costs.h"
#include "engine/train/prepared_run.h"
#include "engine/train/trainer.h"

namespace stagecoach::engine {
namespace {

using schedule::Action;
using schedule::Op;
using schedule::StageId;
using schedule::Trace;

// Enough that most micro-batches add to the gradients and all devices are busy most of the time.
constexpr int kMicroBatchesPerDevice = 4;
constexpr float kLearningRate = 1e-6F;  // too small to change the values
constexpr int kExchanges = 7;           // the median counts

// Returns the same work with every layer as a stage of its own, where it was. Every other BW of a
// layer whose B and W share work stays whole, so that all three are measured.
partition::Plan StagePerLayer(const partition::Plan& plan,
                              absl::Span<const partition::LayerCost> layers) {
  partition::Plan fine = {.num_layers = plan.num_layers,
                          .micro_batch_rows = plan.micro_batch_rows,
                          .schedule = {.name = plan.schedule.name,
                                       .num_micro_batches = plan.schedule.num_micro_batches},
                          .tensor_parts = plan.tensor_parts};
  for (int stage = 0; stage < plan.num_stages(); ++stage) {
    for (int layer = plan.first(stage); layer <= plan.last(stage); ++layer) {
      fine.first_layer.push_back(layer);
      fine.schedule.rank_of_stage.push_back(plan.schedule.rank_of(StageId(stage)));
    }
  }
  for (const std::vector<Action>& list : plan.schedule.actions) {
    std::vector<Action>& fine_list = fine.schedule.actions.emplace_back();
    for (const Action& action : list) {
      const int first = plan.first(action.stage.value());
      const int last = plan.last(action.stage.value());
      if (action.op == Op::kForward) {
        for (int layer = first; layer <= last; ++layer) {
          fine_list.push_back(
              {.op = Op::kForward, .stage = StageId(layer), .micro_batch = action.micro_batch});
        }
        continue;
      }
      for (int layer = last; layer >= first; --layer) {
        const bool shares = layers[static_cast<size_t>(layer)].shared_backward_ns > 0;
        if (shares && action.micro_batch.value() % 2 == 1) {
          fine_list.push_back(
              {.op = Op::kBackward, .stage = StageId(layer), .micro_batch = action.micro_batch});
          continue;
        }
        fine_list.push_back(
            {.op = Op::kBackwardInput, .stage = StageId(layer), .micro_batch = action.micro_batch});
        fine_list.push_back({.op = Op::kBackwardWeight,
                             .stage = StageId(layer),
                             .micro_batch = action.micro_batch});
      }
    }
  }
  return fine;
}

struct TracedSteps {
  std::vector<Trace> traces;
  std::vector<double>
      beyond_ns;  // of each: the time of Step() before its first pass and after its last
};

// Returns the time from the first pass of any rank to the end of the last action.
double SpanOf(const Trace& trace) {
  int64_t start_ns = std::numeric_limits<int64_t>::max(), end_ns = 0;
  for (const std::vector<schedule::TimedAction>& list : trace.actions) {
    for (const schedule::TimedAction& timed : list) {
      if (schedule::IsCompute(timed.action.op)) start_ns = std::min(start_ns, timed.start_ns);
      end_ns = std::max(end_ns, timed.end_ns);
    }
  }
  return static_cast<double>(end_ns - start_ns);
}

absl::StatusOr<TracedSteps> TraceSteps(PreparedRun run, int repeats,
                                       const std::function<bool()>& is_stopped = nullptr) {
  const int64_t batch_rows = run.plan().batch_rows();
  const RandomSamples data(run.sample_spec(), batch_rows);
  const TrainerOptions options = {.optimizer = run.optimizer,
                                  .learning_rate = LearningRate::Constant(kLearningRate),
                                  .on_nonfinite = OnNonFinite::kIgnore,
                                  .device = run.device,
                                  .trace = true};
  ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer,
                   Trainer::Create(std::move(run), options));
  std::vector<int64_t> rows(static_cast<size_t>(batch_rows));
  std::iota(rows.begin(), rows.end(), 0);
  TracedSteps steps;
  for (int step = 0; step <= repeats; ++step) {
    if (is_stopped && is_stopped()) return absl::CancelledError("the measurement was stopped");
    const auto start = std::chrono::steady_clock::now();
    RETURN_IF_ERROR(trainer->Step(data, rows).status());
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
    if (step == 0) continue;
    ASSIGN_OR_RETURN(Trace trace, trainer->LastTrace());
    steps.beyond_ns.push_back(std::max(0.0, took.count() - SpanOf(trace)));
    steps.traces.push_back(std::move(trace));
  }
  return steps;
}

double SpreadOf(std::vector<double> times) {
  const auto quantile = [&times](double share) {
    const auto at = times.begin() + std::lround(share * static_cast<double>(times.size() - 1));
    std::nth_element(times.begin(), at, times.end());
    return *at;
  };
  const double median = quantile(0.5);
  return median > 0 ? (quantile(0.75) - quantile(0.25)) / median : 0.0;
}

std::vector<double> Spreads(absl::Span<const Trace> traces, int layers) {
  std::vector<std::vector<double>> step_ns(static_cast<size_t>(layers));  // of each layer
  for (const Trace& trace : traces) {
    for (std::vector<double>& times : step_ns) times.push_back(0.0);
    for (const std::vector<schedule::TimedAction>& list : trace.actions) {
      for (const schedule::TimedAction& timed : list) {
        if (schedule::IsCollective(timed.action.op)) continue;
        if (schedule::IsTransfer(timed.action.op)) continue;
        step_ns[static_cast<size_t>(timed.action.stage.value())].back() +=
            static_cast<double>(timed.end_ns - timed.start_ns);
      }
    }
  }
  std::vector<double> spreads;
  for (std::vector<double>& times : step_ns) spreads.push_back(SpreadOf(std::move(times)));
  return spreads;
}

}  // namespace

absl::StatusOr<ModelProfile> MeasureModel(const Model& model, const ProfileOptions& options,
                                          const MeasureOptions& measure) {
  STAGECOACH_CHECK(measure.repeats >= 1 && measure.devices >= 1,
                   "a measurement needs a device and at least one run");
  ASSIGN_OR_RETURN(ModelProfile profile, AnalyzeModel(model, options));
  const int parts = options.tensor_parts;
  const int devices = std::clamp(measure.devices / parts, 1, model.num_layers());
  DeviceSpec device = options.device;
  device.cluster = {};  // the speeds of its devices are relative to this one
  ModelProfile alike = profile;
  if (!options.device.are_alike()) {  // which may have more threads, and so more scratch
    ProfileOptions measured = options;
    measured.device = device;
    ASSIGN_OR_RETURN(alike, AnalyzeModel(model, measured));
  }
  for (ModelProfile* const each : {&profile, &alike}) {
    if (measure.updates_apart) each->updates_in_backward = false;
  }
  ASSIGN_OR_RETURN(const PreparedRun cut,
                   PrepareRun(model, alike,
                              PlanOptions{.devices = devices,
                                          .tensor_parts = parts,
                                          .micro_batches = kMicroBatchesPerDevice * devices,
                                          .micro_batch_rows = options.micro_batch_rows,
                                          .optimizer = options.optimizer,
                                          .device = device}));
  ASSIGN_OR_RETURN(PreparedRun fine,
                   PrepareRun(model, alike,
                              GivenPlan{.plan = StagePerLayer(cut.plan(), alike.layers),
                                        .optimizer = options.optimizer,
                                        .device = device,
                                        .transfers = cut.compiled.lowered->transfers}));
  ASSIGN_OR_RETURN(TracedSteps steps,
                   TraceSteps(std::move(fine), measure.repeats, measure.is_stopped));
  const std::vector<Trace>& traces = steps.traces;
  const schedule::Costs costs =
      MeasureCosts(traces, profile.updates_in_backward,
                   std::vector<schedule::StageMemory>(static_cast<size_t>(model.num_layers())));
  const std::vector<double> spreads = Spreads(traces, model.num_layers());
  for (size_t i = 0; i < profile.layers.size(); ++i) {
    const schedule::StageTimes& times = costs.stages[i];
    partition::LayerCost& layer = profile.layers[i];
    layer.forward_ns = static_cast<double>(times.forward_ns);
    layer.backward_input_ns = static_cast<double>(times.backward_input_ns);
    layer.backward_weight_ns = static_cast<double>(times.backward_weight_ns);
    const int64_t both_ns = times.backward_input_ns + times.backward_weight_ns;
    const int64_t most_ns = std::min(times.backward_input_ns, times.backward_weight_ns);
    layer.shared_backward_ns =
        static_cast<double>(std::clamp<int64_t>(both_ns - times.backward_ns, 0, most_ns));
    layer.step_ns = static_cast<double>(times.step_ns);
    layer.spread = spreads[i];
  }
  profile.overheads.message_ns = MessageNs(traces);
  profile.overheads.step_ns = Median(std::move(steps.beyond_ns));
  return profile;
}

absl::StatusOr<partition::Profile> MeasureProfile(const Model& model, std::string model_name,
                                                  absl::Span<const int64_t> micro_batch_rows,
                                                  ProfileOptions options,
                                                  const MeasureOptions& measure) {
  std::vector<ModelProfile> sizes;
  for (const int64_t rows : micro_batch_rows) {
    options.micro_batch_rows = rows;
    ASSIGN_OR_RETURN(ModelProfile size, MeasureModel(model, options, measure));
    sizes.push_back(std::move(size));
  }
  return JoinProfiles(std::move(model_name), sizes);
}

absl::StatusOr<double> MeasureExchange(DeviceSpec device, int replicas) {
  STAGECOACH_CHECK(replicas >= 2, "one replica exchanges nothing");
  device = device.Unlimited();
  constexpr int64_t kFeatures = 1024, kWidth = 2048;  // 2 * 1024 * 2048 + 2048^2 parameters
  ASSIGN_OR_RETURN(const Model model, DefaultNetwork(kFeatures, kFeatures, 3, kWidth));
  ASSIGN_OR_RETURN(
      PreparedRun run,
      PrepareRun(model, {.replication = {.replicas = replicas, .gradient_blocks = replicas},
                         .micro_batches = replicas,
                         .device = device}));
  const std::vector<partition::LayerCost> layers = run.profile.layers;
  const auto stages = static_cast<size_t>(run.plan().num_stages());
  ASSIGN_OR_RETURN(const TracedSteps steps, TraceSteps(std::move(run), kExchanges));
  const schedule::Costs costs = MeasureCosts(steps.traces, /*updates_in_backward=*/false,
                                             std::vector<schedule::StageMemory>(stages));
  double ns = 0, bytes = 0;
  for (const schedule::StageTimes& times : costs.stages) ns += static_cast<double>(times.reduce_ns);
  for (const partition::LayerCost& layer : layers) {
    bytes += static_cast<double>(layer.memory.parameter_bytes);
  }
  return 2e9 * (replicas - 1) / replicas * bytes / ns;
}

absl::StatusOr<schedule::HostLink> MeasureHostLink(DeviceSpec device) {
  device = device.Unlimited();
  // Stashes of 512 KiB a layer, all of which together no cache of a core has room for.
  constexpr int64_t kWidth = 64, kRows = 2048;
  constexpr int kMicroBatches = 8;
  ASSIGN_OR_RETURN(const Model model, DefaultNetwork(kWidth, kWidth, 3, kWidth));
  ASSIGN_OR_RETURN(PreparedRun run, PrepareRun(model, {.schedule = "gpipe",
                                                       .micro_batches = kMicroBatches,
                                                       .micro_batch_rows = kRows,
                                                       .device = device,
                                                       .recompute = Recompute::kNone,
                                                       .offload = 1.0}));
  const std::vector<schedule::StageMemory> memory = run.compiled.memory_of_stages();
  ASSIGN_OR_RETURN(const TracedSteps steps, TraceSteps(std::move(run), /*repeats=*/2));
  return MeasureCosts(steps.traces, /*updates_in_backward=*/false, memory).host_link;
}

}  // namespace stagecoach::engine
