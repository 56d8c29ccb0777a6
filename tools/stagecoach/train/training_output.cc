#include "tools/stagecoach/train/training_output.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "base/text/units.h"
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
  const ReportOptions report = {.is_verbose = output.verbose,
                                .explains = output.explain,
                                .log_every_steps = config.log_every_steps};
  return output.json ? MakeJsonReport(report) : MakeTextReport(EpochsOf(config, run), report);
}

// The file of the run's metrics, which is in its folder unless it is named.
std::string MetricsOf(const OutputOptions& output, const engine::RunConfig& config) {
  if (!output.metrics.empty() || config.checkpoints.empty()) return output.metrics;
  return absl::StrCat(config.checkpoints, "/metrics.jsonl");
}

// The file of the run's page, which is in its folder unless it is named.
std::string PageOf(const OutputOptions& output, const engine::RunConfig& config) {
  if (!output.html.empty() || config.checkpoints.empty()) return output.html;
  return absl::StrCat(config.checkpoints, "/run.html");
}

void PrintNoticeEvent(const std::string& line) {
  PrintJsonLine(Timed({{"event", "notice"}, {"text", line}}));
}

}  // namespace

absl::Status TrainingOutput::Start(const engine::RunConfig& config,
                                   const engine::TrainingRun& run) {
  for (const std::string& path : {options_.metrics, options_.prometheus, options_.html}) {
    if (config.is_first_rank() && !path.empty()) RETURN_IF_ERROR(base::CheckWritable(path));
  }
  report_ = ReportFor(options_, config, run);
  StopOnSignals();
  StopOnHangUps();
  RETURN_IF_ERROR(report_->Start(config, run));
  const base::MutexLock lock(mutex_);
  has_begun_ = true;
  prints_notices_ = options_.json && config.is_first_rank();
  for (const std::string& line : std::exchange(early_notices_, {})) {
    if (prints_notices_) PrintNoticeEvent(line);
  }
  return absl::OkStatus();
}

void TrainingOutput::Notice(const std::string& line) {
  PrintNotice(line);
  const base::MutexLock lock(mutex_);
  notes_.push_back(line);
  if (!has_begun_) early_notices_.push_back(line);
  if (prints_notices_) PrintNoticeEvent(line);
}

absl::Status TrainingOutput::Ready(const engine::RunConfig& config, const engine::TrainingRun& run,
                                   const engine::TrainingStart& start) {
  if (!config.is_first_rank() || !logs_.empty()) return absl::OkStatus();
  const RunLog::Options log = {
      .every_steps = std::max<int64_t>(1, config.log_every_steps),
      .measures = Measures::Of(*run.data.train, run.prepared.profile.loss_spec, run.data.encoding)};
  std::optional<RunLog::Start> from;
  if (start.step > 0) from = {.step = start.step, .is_evaluated = start.is_evaluated};
  if (const std::string metrics = MetricsOf(options_, config); !metrics.empty()) {
    RunLog::Options kept = log;
    if (options_.metrics.empty()) kept.every_steps = config.log_every_steps;
    ASSIGN_OR_RETURN(logs_.emplace_back(), MetricsFile::Open(metrics, kept, from));
    if (!options_.metrics.empty()) asked_.push_back(logs_.back().get());
  }
  if (!options_.prometheus.empty()) {
    logs_.push_back(std::make_unique<PrometheusFile>(options_.prometheus, log.measures));
    asked_.push_back(logs_.back().get());
  }
  if (!options_.tensorboard.empty()) {
    ASSIGN_OR_RETURN(logs_.emplace_back(), TensorBoardLog::Open(options_.tensorboard, log, from));
    asked_.push_back(logs_.back().get());
  }
  if (const std::string path = PageOf(options_, config); !path.empty()) {
    auto page = std::make_unique<RunPage>(
        RunPage::Options{.path = path,
                         .metrics = from.has_value() ? MetricsOf(options_, config) : "",
                         .measures = log.measures,
                         .steps = StepsOf(config, run)},
        config, run);
    page_ = page.get();
    if (!options_.html.empty()) asked_.push_back(page_);
    logs_.push_back(std::move(page));
  }
  return absl::OkStatus();
}

void TrainingOutput::Note(const std::string& text) {
  const base::MutexLock lock(mutex_);
  notes_.push_back(text);
}

void TrainingOutput::PassNotes() {
  if (page_ == nullptr) return;
  const base::MutexLock lock(mutex_);
  for (const std::string& note : notes_) page_->Note(note);
  notes_.clear();
}

void TrainingOutput::Fail(const absl::Status& error) {
  PassNotes();
  if (page_ != nullptr) page_->Fail(error);
}

void TrainingOutput::Step(const engine::FitProgress& progress) {
  PassNotes();
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
  Note(absl::StrCat("resumes after step ", base::FormatCount(checkpoint.manifest.step), ": ",
                    checkpoint.path));
}

void TrainingOutput::OnRecovered(int64_t steps, int epoch) {
  report_->OnRecovered(steps, epoch);
  Note(absl::StrCat("resumes after step ", base::FormatCount(steps),
                    ", after the loss of a process, with what other replicas have"));
}

void TrainingOutput::Saved(const engine::SaveReport& save) {
  report_->Saved(save);
  if (page_ != nullptr && save.path.ok()) page_->Saved(*save.path, FolderBytes(*save.path));
}

void TrainingOutput::End(const engine::TrainingRun& run, const engine::TrainingOutcome& outcome) {
  report_->End(run, outcome);
  PassNotes();
  if (page_ != nullptr) page_->End(outcome);
}

bool TrainingOutput::is_logged() const {
  return std::all_of(asked_.begin(), asked_.end(),
                     [](const RunLog* log) { return log->status().ok(); });
}

}  // namespace stagecoach::tools
