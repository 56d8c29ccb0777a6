#include "tools/stagecoach/train/prometheus_file.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/system/file.h"
#include "tools/stagecoach/terminal/messages.h"
#include "tools/stagecoach/train/run_events.h"

namespace stagecoach::tools {
namespace {

struct Gauge {
  const char* name;
  const char* help;
};

// The text format names a help for each; metrics of evaluations have a common one.
constexpr Gauge kGauges[] = {
    {"epoch", "Epoch that is being trained, from 1."},
    {"learning_rate", "Learning rate of the last step."},
    {"loss", "Mean loss of the epoch so far."},
    {"remaining_seconds", "Estimated time that is left of the run."},
    {"samples_per_second", "Samples trained per second, over the epoch so far."},
    {"step", "Steps of the run that are done."},
    {"time_seconds", "Unix time of these values."},
    {"tokens_per_second", "Tokens trained per second, over the epoch so far."},
};

const char* HelpOf(absl::string_view name) {
  for (const Gauge& gauge : kGauges) {
    if (name == gauge.name) return gauge.help;
  }
  return "Result of the last evaluation.";
}

std::string NumberText(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return absl::StrFormat("%.17g", value);
}

}  // namespace

void PrometheusFile::Step(const engine::FitProgress& progress) {
  SetNumbers(StepEvent(progress, measures_));
  values_["loss"] = progress.loss;
  values_["remaining_seconds"] = absl::ToDoubleSeconds(progress.remaining);
  if (absl::Now() - written_ >= kInterval) Write();
}

void PrometheusFile::Epoch(const engine::EpochResult& result) {
  SetNumbers(EvaluationEvent("epoch", result, measures_));
  Write();
}

void PrometheusFile::SetNumbers(const nlohmann::ordered_json& event) {
  for (const auto& [name, value] : event.items()) {
    if (value.is_number()) values_[name] = value.get<double>();
  }
}

void PrometheusFile::Write() {
  if (!status_.ok()) return;
  written_ = absl::Now();
  values_["time_seconds"] = absl::ToDoubleSeconds(written_ - absl::UnixEpoch());
  std::string text;
  for (const auto& [name, value] : values_) {
    absl::StrAppend(&text, "# HELP stagecoach_", name, " ", HelpOf(name), "\n# TYPE stagecoach_",
                    name, " gauge\nstagecoach_", name, " ", NumberText(value), "\n");
  }
  status_ = base::WriteFileAtomically(path_, text);
  if (status_.ok()) return;
  PrintNotice(absl::StrCat("the run continues, but without --metrics-prom: ", status_.message()));
}

}  // namespace stagecoach::tools
