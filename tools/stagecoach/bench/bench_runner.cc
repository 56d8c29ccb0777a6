#include "tools/stagecoach/bench/bench_runner.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/data/random_samples.h"
#include "engine/session/plan_choice.h"
#include "engine/session/training.h"
#include "engine/train/measure/matrix_peak.h"
#include "engine/train/measured_profile.h"
#include "engine/train/trainer.h"
#include "partition/evaluate/evaluate_plan.h"
#include "schedule/io/schedule_file.h"
#include "schedule/traces/trace_diff.h"
#include "tools/stagecoach/terminal/exit_status.h"
#include "tools/stagecoach/terminal/other_load.h"
#include "tools/stagecoach/terminal/stop_signal.h"

namespace stagecoach::tools {
namespace {

constexpr float kLearningRate = 1e-6F;  // the parameters hardly change

engine::RunConfig OptionsOf(const BenchCase& what, engine::RunConfig options) {
  options.model_file = what.model == engine::kDefaultModel ? "" : what.model;
  options.device.precision = what.precision;
  if (what.threads > 0) options.device.threads = what.threads;
  options.replicas = what.replicas;
  options.schedule = what.schedule;
  if (!schedule::IsScheduleFile(what.schedule)) {  // which specifies these itself
    options.stages = what.devices;
    options.micro_batches = what.micro_batches;
  }
  options.batch = what.batch;
  return options;
}

absl::Status StoppedBySignal() { return absl::CancelledError("stopped by a signal"); }

// Returns the share of the step in which its ranks do not compute.
double BubbleOf(const schedule::Trace& trace) {
  int64_t busy_ns = 0;
  for (const schedule::TimeSplit& split : SplitByCause(trace)) busy_ns += split.compute_ns();
  const double all_ns = static_cast<double>(trace.step_ns) * trace.num_ranks();
  return all_ns > 0 ? 1 - static_cast<double>(busy_ns) / all_ns : 0;
}

int64_t TokensOf(const engine::Model& model) {
  return model.takes_ids() ? model.input.elements() : 0;
}

// Returns what `known` has for the key, or what measure() finds, which it then keeps. Errors are
// not kept.
template <typename Key, typename Value, typename Measure>
absl::StatusOr<const Value*> MeasuredOnce(std::map<Key, Value>& known,
                                          const typename std::map<Key, Value>::key_type& key,
                                          Measure measure) {
  const auto found = known.find(key);
  if (found != known.end()) return &found->second;
  ASSIGN_OR_RETURN(Value value, measure());
  return &known.emplace(key, std::move(value)).first->second;
}

int64_t BytesOf(const partition::SentBytes& sent) {
  return sent.to_ranks + sent.to_replicas + sent.to_parts;
}

}  // namespace

BenchRunner::BenchRunner(BenchOptions options) : options_(std::move(options)) {}

absl::Status BenchRunner::Measure(BenchRow& row) {
  const absl::Status status = Train(row);
  if (status.ok() || absl::IsCancelled(status)) return status;
  if (ExitStatusOf(status) == kExitInternal) return status;
  if (first_error_.ok()) first_error_ = status;
  row.error = std::string(status.message());
  return absl::OkStatus();
}

absl::Status BenchRunner::Train(BenchRow& row) {
  const BenchCase& what = row.what;
  const engine::RunConfig options = OptionsOf(what, options_.run);
  ASSIGN_OR_RETURN(const engine::PlannedModel planned, PrepareModel(options));
  ASSIGN_OR_RETURN(
      const engine::PreparedRun prepared,
      WithFallBack(options.device, options.notices, [&](const engine::DeviceChoice& device) {
        engine::RunConfig on_device = options;
        on_device.device = device;
        return ChoosePlan(on_device, [&](std::optional<int64_t>) { return planned; });
      }));
  RETURN_IF_ERROR(CheckHasRoom(options, prepared, {}));
  row.tokens = TokensOf(planned.model);
  ASSIGN_OR_RETURN(row.peak_flops, PeakFor(what, prepared));
  if (StopRequested()) return StoppedBySignal();
  if (options_.predicts) RETURN_IF_ERROR(Predict(options, planned, prepared, row));
  if (StopRequested()) return StoppedBySignal();

  Tell("trains");
  const OtherLoad load;
  const engine::RandomSamples data(prepared.sample_spec(), what.batch);
  ASSIGN_OR_RETURN(
      const std::unique_ptr<engine::Trainer> trainer,
      OnDevices(prepared.device,
                engine::Trainer::Create(
                    prepared, {.optimizer = prepared.optimizer,
                               .learning_rate = engine::LearningRate::Constant(kLearningRate),
                               .on_nonfinite = engine::OnNonFinite::kIgnore,
                               .device = prepared.device,
                               .exchange = ExchangeOf(options.device, prepared.device),
                               .deadline = LongestWait(options),
                               .replica_check_steps = 0,
                               .trace = true})));
  std::vector<int64_t> rows(static_cast<size_t>(what.batch));
  std::iota(rows.begin(), rows.end(), 0);
  std::vector<double> steps_ms, bubbles;
  for (int step = 0; step < options_.warm_up + options_.repeats; ++step) {
    if (StopRequested()) return StoppedBySignal();
    const auto start = std::chrono::steady_clock::now();
    // As in training, the host prepares the samples of the next step meanwhile.
    RETURN_IF_ERROR(trainer->Step(data, rows, rows).status());
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    if (step < options_.warm_up) continue;
    steps_ms.push_back(took.count());
    ASSIGN_OR_RETURN(const schedule::Trace trace, trainer->LastTrace());
    bubbles.push_back(BubbleOf(trace));
  }
  row.other_load = std::max(row.other_load, load.Share());
  row.steps_ms.insert(row.steps_ms.end(), steps_ms.begin(), steps_ms.end());
  row.bubble = MedianOf(std::move(bubbles));
  row.peak_bytes = row.predicted_peak_bytes = row.sent_bytes = row.predicted_sent_bytes = 0;
  ASSIGN_OR_RETURN(const std::vector<engine::DeviceReport> devices, trainer->Devices());
  for (const engine::DeviceReport& device : devices) {
    row.peak_bytes = std::max(row.peak_bytes, device.measured_peak_bytes);
    row.predicted_peak_bytes = std::max(row.predicted_peak_bytes, device.predicted_peak_bytes);
    row.sent_bytes += BytesOf(device.measured_sent);
    row.predicted_sent_bytes += BytesOf(device.predicted_sent);
  }
  row.flops = 0;
  for (const partition::LayerCost& layer : prepared.profile.layers) {
    row.flops += layer.flops * what.micro_batches;
  }
  return absl::OkStatus();
}

absl::Status BenchRunner::Predict(const engine::RunConfig& options,
                                  const engine::PlannedModel& planned,
                                  const engine::PreparedRun& prepared, BenchRow& row) {
  ASSIGN_OR_RETURN(const partition::Profile* const profile,
                   ProfileFor(options, planned, prepared, row.what));
  const partition::Plan& plan = prepared.plan();
  partition::Cluster cluster = prepared.device.ClusterOf(plan.num_devices());
  const bool says_links = !prepared.device.are_alike();
  if (!says_links) cluster.within_host.latency_ns = std::llround(profile->overheads.message_ns);
  if (plan.replicas() > 1 && !says_links) {
    ASSIGN_OR_RETURN(cluster.within_host.bytes_per_second, ExchangeFor(prepared));
  }
  if (MostHostBytes(prepared.compiled) > 0 && !says_links) {
    ASSIGN_OR_RETURN(cluster.host_link, HostLinkFor(prepared));
  }
  ASSIGN_OR_RETURN(const partition::PlanEvaluation evaluation,
                   EvaluatePlan(plan, *profile, cluster));
  const double cores = CoresFor(prepared.device) / plan.tensor_parts;
  row.predicted_step_ms = (StepNsOnCores(evaluation, cores) + profile->overheads.step_ns) / 1e6;
  if (SharesCores(evaluation, cores)) return absl::OkStatus();
  const schedule::Simulation& simulation = evaluation.simulation;
  double busy = 0;
  for (const schedule::RankTimes& rank : simulation.ranks) {
    busy += static_cast<double>(rank.busy_ns) / static_cast<double>(simulation.step_ns);
  }
  row.predicted_bubble = 1 - busy / static_cast<double>(simulation.ranks.size());
  return absl::OkStatus();
}

absl::StatusOr<const partition::Profile*> BenchRunner::ProfileFor(
    const engine::RunConfig& options, const engine::PlannedModel& planned,
    const engine::PreparedRun& prepared, const BenchCase& what) {
  const int at_once = engine::DevicesAtOnce(what.all_devices(), prepared.device);
  const int64_t rows = prepared.plan().micro_batch_rows;
  const bool apart = prepared.plan().replication.is_needed();
  return MeasuredOnce(
      profiles_, {what.model, what.precision, what.threads, at_once, rows, apart},
      [&]() -> absl::StatusOr<partition::Profile> {
        const auto measure = [&]() -> absl::StatusOr<partition::Profile> {
          RETURN_IF_ERROR(CheckCanMeasure(prepared.profile.layers, prepared.device));
          Tell(absl::StrCat("measures layers with ", rows, rows == 1 ? " row" : " rows"));
          return MeasureProfile(
              planned.model, NameOfModel(options), {rows},
              {.optimizer = planned.optimizer, .device = prepared.device},
              {.devices = at_once, .updates_apart = apart, .is_stopped = StopRequested});
        };
        return measure();
      });
}

absl::StatusOr<double> BenchRunner::ExchangeFor(const engine::PreparedRun& prepared) {
  const engine::DeviceSpec& device = prepared.device;
  const int replicas = std::max(2, engine::DevicesAtOnce(prepared.plan().replicas(), device));
  ASSIGN_OR_RETURN(const double* const rate,
                   MeasuredOnce(exchanges_, {device.threads, replicas}, [&] {
                     Tell(absl::StrCat("measures the exchange of ", replicas, " replicas"));
                     return OnDevices(device, engine::MeasureExchange(device, replicas));
                   }));
  return *rate;
}

absl::StatusOr<schedule::HostLink> BenchRunner::HostLinkFor(const engine::PreparedRun& prepared) {
  ASSIGN_OR_RETURN(const schedule::HostLink* const link,
                   MeasuredOnce(host_links_, prepared.device.threads, [&] {
                     Tell("measures copies to the host's memory");
                     return OnDevices(prepared.device, engine::MeasureHostLink(prepared.device));
                   }));
  return *link;
}

absl::StatusOr<double> BenchRunner::PeakFor(const BenchCase& what,
                                            const engine::PreparedRun& prepared) {
  const int devices = what.all_devices();
  ASSIGN_OR_RETURN(
      const double* const peak, MeasuredOnce(peaks_, {what.precision, what.threads, devices}, [&] {
        Tell(absl::StrCat("measures the peak of ", partition::Counted(devices, "device")));
        return engine::MatrixPeakFlops(prepared.device, devices);
      }));
  return *peak;
}

void BenchRunner::Tell(const std::string& what) const {
  if (options_.on_progress != nullptr) options_.on_progress(what);
}

}  // namespace stagecoach::tools
