#include "tools/stagecoach/train/training_output.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "engine/session/training.h"
#include "tools/stagecoach/terminal/stop_signal.h"
#include "tools/stagecoach/train/metrics_file.h"
#include "tools/stagecoach/train/report.h"
#include "tools/stagecoach/train/tensorboard_log.h"

namespace stagecoach::tools {
namespace {

std::unique_ptr<engine::TrainingObserver> ReportFor(const engine::RunConfig& config,
                                                    const engine::TrainingRun& run) {
  if (!config.is_first_rank()) return std::make_unique<engine::TrainingObserver>();
  const ReportOptions report = {.explains = config.explain,
                                .log_every_steps = config.log_every_steps};
  return config.json ? MakeJsonReport(report) : MakeTextReport(EpochsOf(config, run), report);
}

// The file of the run's metrics, which is in its folder unless it is named.
std::string MetricsOf(const engine::RunConfig& config) {
  if (!config.metrics.empty() || config.checkpoints.empty()) return config.metrics;
  return absl::StrCat(config.checkpoints, "/metrics.jsonl");
}

// The file of the run's page, which is in its folder unless it is named.
std::string PageOf(const engine::RunConfig& config) {
  if (!config.html.empty() || config.checkpoints.empty()) return config.html;
  return absl::StrCat(config.checkpoints, "/run.html");
}

}  // namespace

absl::Status TrainingOutput::Start(const engine::RunConfig& config,
                                   const engine::TrainingRun& run) {
  for (const std::string& path : {config.metrics, config.html}) {
    if (config.is_first_rank() && !path.empty()) RETURN_IF_ERROR(base::CheckWritable(path));
  }
  report_ = ReportFor(config, run);
  StopOnSignals();
  StopOnHangUps();
  return report_->Start(config, run);
}

absl::Status TrainingOutput::Ready(const engine::RunConfig& config, const engine::TrainingRun& run,
                                   const engine::TrainingStart& start) {
  if (!config.is_first_rank() || !logs_.empty()) return absl::OkStatus();
  const RunLog::Options log = {
      .every_steps = std::max<int64_t>(1, config.log_every_steps),
      .measures = Measures::Of(*run.data.train, run.prepared.profile.loss_spec, run.data.encoding)};
  std::optional<RunLog::Start> from;
  if (start.step > 0) from = {.step = start.step, .is_evaluated = start.is_evaluated};
  if (const std::string metrics = MetricsOf(config); !metrics.empty()) {
    ASSIGN_OR_RETURN(logs_.emplace_back(), MetricsFile::Open(metrics, log, from));
    if (!config.metrics.empty()) asked_.push_back(logs_.back().get());
  }
  if (!config.tensorboard.empty()) {
    ASSIGN_OR_RETURN(logs_.emplace_back(), TensorBoardLog::Open(config.tensorboard, log, from));
    asked_.push_back(logs_.back().get());
  }
  if (const std::string path = PageOf(config); !path.empty()) {
    auto page = std::make_unique<RunPage>(
        RunPage::Options{.path = path,
                         .metrics = from.has_value() ? MetricsOf(config) : "",
                         .measures = log.measures,
                         .steps = StepsOf(config, run)},
        config, run);
    page_ = page.get();
    if (!config.html.empty()) asked_.push_back(page_);
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
