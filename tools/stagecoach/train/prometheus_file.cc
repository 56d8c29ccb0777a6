#include "tools/stagecoach/train/prometheus_file.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "tools/stagecoach/terminal/messages.h"

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
  Set("epoch", progress.epoch);
  Set("step", static_cast<double>(progress.run_step));
  Set("loss", progress.loss);
  Set("learning_rate", static_cast<double>(progress.step_result.learning_rate));
  Set("remaining_seconds", absl::ToDoubleSeconds(progress.remaining));
  SetSpeed(progress.samples_per_second);
  if (absl::Now() - written_ >= kInterval) Write();
}

void PrometheusFile::Epoch(const engine::EpochResult& result) {
  Set("epoch", result.epoch);
  Set("step", static_cast<double>(result.step));
  Set("loss", result.loss);
  Set("test_loss", result.test_loss);
  if (measures_.has_rmse()) {
    Set("test_rmse", measures_.Rmse(result.test_loss));
  } else {
    Set("train_accuracy", result.train_accuracy);
    Set("test_accuracy", result.test_accuracy);
  }
  if (measures_.has_perplexity) Set("test_perplexity", std::exp(result.test_loss));
  for (const auto& [name, value] : result.more) Set(name, value);
  SetSpeed(result.samples_per_second);
  Write();
}

void PrometheusFile::Set(absl::string_view name, double value) {
  values_[std::string(name)] = value;
}

void PrometheusFile::SetSpeed(double samples_per_second) {
  Set("samples_per_second", samples_per_second);
  if (measures_.tokens > 0) {
    Set("tokens_per_second", samples_per_second * static_cast<double>(measures_.tokens));
  }
}

void PrometheusFile::Write() {
  if (!status_.ok()) return;
  written_ = absl::Now();
  Set("time_seconds", absl::ToDoubleSeconds(written_ - absl::UnixEpoch()));
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
