#include "tools/stagecoach/train/training_output.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/file.h"
#include "base/status_macros.h"
#include "engine/session/training.h"
#include "tools/stagecoach/terminal/json_line.h"
#include "tools/stagecoach/terminal/messages.h"
#include "tools/stagecoach/terminal/stop_signal.h"
#include "tools/stagecoach/train/metrics_file.h"
#include "tools/stagecoach/train/prometheus_file.h"
#include "tools/stagecoach/train/report.h"
#include "tools/stagecoach/train/run_events.h"
#include "tools/stagecoach/train/tensorboard_log.h"

namespace stagecoach::tools {
namespace {

std::unique_ptr<engine::TrainingObserver> ReportFor(const OutputOptions& output,
                                                    const engine::RunConfig& config,
                                                    const engine::TrainingRun& run) {
  if (!config.is_first_rank()) return std::make_unique<engine::TrainingObserver>();
  const ReportOptions report = {.explains = output.explain,
                                .log_every_steps = config.log_every_steps};
  return output.json ? MakeJsonReport(report) : MakeTextReport(EpochsOf(config, run), report);
}

}  // namespace

absl::Status TrainingOutput::Start(const engine::RunConfig& config,
                                   const engine::TrainingRun& run) {
  if (config.is_first_rank() && !options_.metrics.empty()) {
    RETURN_IF_ERROR(base::CheckWritable(options_.metrics));
  }
  if (config.is_first_rank() && !options_.prometheus.empty()) {
    RETURN_IF_ERROR(base::CheckWritable(options_.prometheus));
  }
  report_ = ReportFor(options_, config, run);
  StopOnSignals();
  StopOnHangUps();
  RETURN_IF_ERROR(report_->Start(config, run));
  has_begun_ = true;
  prints_notices_ = options_.json && config.is_first_rank();
  for (const std::string& line : std::exchange(early_notices_, {})) AddNotice(line);
  return absl::OkStatus();
}

void TrainingOutput::Notice(const std::string& line) {
  PrintNotice(line);
  if (has_begun_) {
    AddNotice(line);
  } else {
    early_notices_.push_back(line);
  }
}

void TrainingOutput::AddNotice(const std::string& line) const {
  if (prints_notices_) PrintJsonLine(Timed({{"event", "notice"}, {"text", line}}));
}

absl::Status TrainingOutput::Ready(const engine::RunConfig& config, const engine::TrainingRun& run,
                                   const engine::TrainingStart& start) {
  if (!config.is_first_rank() || !logs_.empty()) return absl::OkStatus();
  const RunLog::Options log = {
      .every_steps = std::max<int64_t>(1, config.log_every_steps),
      .measures = Measures::Of(*run.data.train, run.prepared.profile.loss_spec, run.data.encoding)};
  std::optional<RunLog::Start> from;
  if (start.step > 0) from = {.step = start.step, .is_evaluated = start.is_evaluated};
  if (!options_.metrics.empty()) {
    ASSIGN_OR_RETURN(logs_.emplace_back(), MetricsFile::Open(options_.metrics, log, from));
  }
  if (!options_.prometheus.empty()) {
    logs_.push_back(std::make_unique<PrometheusFile>(options_.prometheus, log.measures));
  }
  if (!options_.tensorboard.empty()) {
    ASSIGN_OR_RETURN(logs_.emplace_back(), TensorBoardLog::Open(options_.tensorboard, log, from));
  }
  return absl::OkStatus();
}

void TrainingOutput::Step(const engine::FitProgress& progress) {
  report_->Step(progress);
  for (const auto& log : logs_) log->Step(progress);
}

void TrainingOutput::Epoch(const engine::EpochResult& result) {
  report_->Epoch(result);
  for (const auto& log : logs_) log->Epoch(result);
}

void TrainingOutput::Evaluation(const engine::EpochResult& result) {
  report_->Evaluation(result);
  for (const auto& log : logs_) log->Evaluation(result);
}

void TrainingOutput::Answers(const engine::EpochResult& result,
                             const std::vector<engine::SampledAnswer>& answers) {
  report_->Answers(result, answers);
  for (const auto& log : logs_) log->Answers(result, answers);
}

void TrainingOutput::Resumed(const engine::RestoredCheckpoint& checkpoint) {
  report_->Resumed(checkpoint);
}

void TrainingOutput::OnRecovered(int64_t steps, int epoch) { report_->OnRecovered(steps, epoch); }

void TrainingOutput::Saved(const engine::SaveReport& save) { report_->Saved(save); }

void TrainingOutput::End(const engine::TrainingRun& run, const engine::TrainingOutcome& outcome) {
  report_->End(run, outcome);
}

bool TrainingOutput::is_logged() const {
  return std::all_of(logs_.begin(), logs_.end(),
                     [](const auto& log) { return log->status().ok(); });
}

}  // namespace stagecoach::tools
