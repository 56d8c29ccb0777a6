#include "tools/stagecoach/replay/replay_report.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/text/units.h"
#include "partition/plan/plan_evaluation.h"
#include "tools/stagecoach/terminal/json_line.h"
#include "tools/stagecoach/terminal/tensor_difference.h"
#include "tools/stagecoach/terminal/terminal.h"

namespace stagecoach::tools {
namespace {

using nlohmann::ordered_json;
using partition::Counted;

bool SameBitsOf(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

// Returns the threads of each device of a run.
std::vector<int> ThreadsOf(const engine::PreparedRun& run) {
  std::vector<int> threads;
  for (int i = 0; i < run.plan().num_devices(); ++i) threads.push_back(run.device.threads_of(i));
  return threads;
}

// Returns " of 2 threads", or " of 1 to 4 threads".
std::string DescribeThreads(const engine::PreparedRun& run) {
  const std::vector<int> threads = ThreadsOf(run);
  const auto [fewest, most] = std::minmax_element(threads.begin(), threads.end());
  return absl::StrCat(" of ", *fewest < *most ? absl::StrCat(*fewest, " to ") : "",
                      Counted(*most, "thread"));
}

std::string DescribeTime(const engine::PreparedRun& run) {
  const partition::Plan& plan = run.plan();
  const bool is_cpu = run.device.kind == engine::DeviceKind::kCpu;
  return absl::StrCat(
      plan.schedule.name, " over ", Counted(plan.num_stages(), "stage"),
      plan.replicas() > 1 ? absl::StrCat(" of ", plan.replicas(), " replicas") : "",
      plan.tensor_parts > 1 ? absl::StrCat(", each shared by ", plan.tensor_parts, " devices") : "",
      ": ", Counted(plan.num_devices(), is_cpu ? "CPU device" : "CUDA device"),
      is_cpu ? DescribeThreads(run) : "");
}

class ReplayText final : public ReplayReport {
 public:
  ~ReplayText() override { RedrawLine(""); }

  void Start(const ReplayStart& start,
             absl::Span<const engine::PreparedRun* const> times) override {
    const engine::Manifest& manifest = start.checkpoint.manifest();
    absl::PrintF("replays  %s after step %s, in epoch %d: %s\n", Counted(start.steps, "step"),
                 base::FormatCount(manifest.step), manifest.position.epoch,
                 start.checkpoint.path());
    absl::PrintF("first    %s\nsecond   %s\n", DescribeTime(*times[0]), DescribeTime(*times[1]));
    RedrawLine("preparing the devices");
    std::fflush(stdout);
  }

  void First(int64_t done, int64_t steps) override {
    RedrawLine(absl::StrCat("first time: ", done, " of ", Counted(steps, "step")));
  }

  void Saved(const SavedComparison& saved) override {
    RedrawLine("");
    if (!saved.comparable.ok()) {
      absl::PrintF("%s is not compared: %s\n", NameOf(saved), saved.comparable.message());
      return;
    }
    if (!saved.same_losses) absl::PrintF("%s DIFFERS in the losses until then\n", NameOf(saved));
    if (!saved.difference.empty()) {
      absl::PrintF("%s DIFFERS from what was replayed: %s", NameOf(saved),
                   Describe(saved.difference));
    }
    if (saved.same()) {
      absl::PrintF("%s is the same: the losses, %s\n", NameOf(saved),
                   Counted(saved.difference.compared, "tensor"));
    }
    std::fflush(stdout);
  }

  void Step(const StepComparison& step) override {
    RedrawLine("");
    absl::PrintF("step %s  loss %s", base::FormatCount(step.number),
                 Value(step.first.loss, step.second.loss));
    if (step.has_norm) {
      absl::PrintF(", gradient norm %s",
                   Value(step.first.gradient_norm, step.second.gradient_norm));
    }
    absl::PrintF("  %s\n", step.same() ? "same" : "DIFFERS");
    std::fflush(stdout);
  }

  void End(const EndComparison& end) override {
    RedrawLine("");
    if (end.difference.empty()) {
      absl::PrintF("parameters and optimizer after that: %s, all the same (%s)\n",
                   Counted(end.difference.compared, "tensor"), end.first_hash);
    } else {
      absl::PrintF("parameters and optimizer after that DIFFER, the second time from the first: %s",
                   Describe(end.difference));
    }
    absl::PrintF("%s\n", end.same ? "all bits agree" : "the bits DIFFER");
    std::fflush(stdout);
  }

 private:
  // Returns the value of both times, with all digits if they differ.
  static std::string Value(double first, double second) {
    if (SameBitsOf(first, second)) return absl::StrFormat("%.6f", first);
    return absl::StrFormat("%.17g and %.17g", first, second);
  }

  static std::string NameOf(const SavedComparison& saved) {
    return engine::CheckpointName(saved.step);
  }

  static std::string Describe(const engine::CheckpointDifference& difference) {
    if (!difference.tensors.empty()) return DescribeTensors(difference);
    return absl::StrCat(
        "\"",
        difference.only_left.empty() ? difference.only_right.front() : difference.only_left.front(),
        "\" is in one of them only\n");
  }
};

class ReplayJson final : public ReplayReport {
 public:
  void Start(const ReplayStart& start,
             absl::Span<const engine::PreparedRun* const> times) override {
    ordered_json plans = ordered_json::array();
    for (const engine::PreparedRun* const time : times) {
      const partition::Plan& plan = time->plan();
      plans.push_back({{"schedule", plan.schedule.name},
                       {"first_layers", plan.first_layer},
                       {"replicas", plan.replicas()},
                       {"num_devices", plan.num_devices()},
                       {"kind", engine::Name(time->device.kind)},
                       {"threads_per_device", ThreadsOf(*time)}});
    }
    PrintJsonLine({{"event", "replay"},
                   {"checkpoint", start.checkpoint.path()},
                   {"step", start.checkpoint.manifest().step},
                   {"steps", start.steps},
                   {"plans", std::move(plans)}});
  }

  void First(int64_t /*done*/, int64_t /*steps*/) override {}

  void Saved(const SavedComparison& saved) override {
    ordered_json event = {{"event", "saved"}, {"checkpoint", saved.path}, {"step", saved.step}};
    if (saved.comparable.ok()) {
      event["same"] = saved.same();
      event["same_losses"] = saved.same_losses;
      event.update(DifferenceToJson(saved.difference));
    } else {
      event["not_compared"] = std::string(saved.comparable.message());
    }
    PrintJsonLine(event);
  }

  void Step(const StepComparison& step) override {
    ordered_json event = {{"event", "step"},
                          {"step", step.number},
                          {"same", step.same()},
                          {"losses", {step.first.loss, step.second.loss}}};
    if (step.has_norm) {
      event["gradient_norms"] = {step.first.gradient_norm, step.second.gradient_norm};
    }
    PrintJsonLine(event);
  }

  void End(const EndComparison& end) override {
    ordered_json event = {{"event", "end"},
                          {"steps", end.steps},
                          {"same", end.same},
                          {"parameters_hashes", {end.first_hash, end.second_hash}}};
    event.update(DifferenceToJson(end.difference));
    PrintJsonLine(event);
  }
};

}  // namespace

bool StepComparison::same() const {
  return SameBitsOf(first.loss, second.loss) &&
         SameBitsOf(first.gradient_norm, second.gradient_norm);
}

std::unique_ptr<ReplayReport> MakeReplayReport(bool json) {
  if (json) return std::make_unique<ReplayJson>();
  return std::make_unique<ReplayText>();
}

}  // namespace stagecoach::tools
