#include "engine/session/predict/prediction.h"

#include <cmath>
#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "base/error_class.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "engine/train/class_metrics.h"

namespace stagecoach::engine {
namespace {

// A file that is being written.
struct OpenFile {
  std::unique_ptr<PredictionFormat> format;
  base::AppendFunction append;
};

// Returns the metrics that are computed: without AUC, which keeps all outputs, if those are many.
std::vector<std::string> MetricsFor(const PredictionTask& task, int64_t outputs) {
  constexpr int64_t kMostKept = int64_t{1} << 26;
  std::vector<std::string> metrics;
  if (!task.counts_classes()) return metrics;
  for (const std::string& metric : MetricsOfOutputs()) {
    const bool keeps_outputs = metric == "test_auc";
    if (!keeps_outputs || task.data->rows() <= kMostKept / outputs) metrics.push_back(metric);
  }
  return metrics;
}

// Takes the outputs of a run, row by row.
class Collector {
 public:
  Collector(const PredictionTask& task, int64_t outputs, std::vector<OpenFile>& files)
      : task_(task),
        outputs_(outputs),
        files_(files),
        confusion_(task.counts_classes() ? outputs : 0),
        metrics_(MetricsFor(task, outputs), task.counts_classes() ? outputs : 0) {}

  absl::Status Begin() {
    return AppendToAll(
        [](const PredictionFormat& format, std::string& text) { format.AppendHeader(text); });
  }

  absl::Status Take(const Outputs& outputs) {
    if (task_.is_stopped != nullptr && task_.is_stopped())
      return absl::CancelledError("stopped by a signal");
    hasher_.Update(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(outputs.values.data()),
                                       outputs.values.size() * sizeof(float)));
    for (const float value : outputs.values) not_finite_ += std::isfinite(value) ? 0 : 1;
    // Numbers are told in the units of their labels.
    std::vector<float> numbers;
    absl::Span<const float> values = outputs.values;
    if (task_.encoding.labels_are_numbers()) {
      const size_t labels = task_.encoding.label_mean.size();
      for (size_t i = 0; i < values.size(); ++i) {
        numbers.push_back(static_cast<float>(task_.encoding.NumberOf(values[i], i % labels)));
      }
      if (task_.has_labels()) AddErrors(outputs);
      values = numbers;
    }
    std::vector<PredictedRow> rows;
    for (int64_t i = 0; i < outputs.rows; ++i) {
      PredictedRow& row = rows.emplace_back();
      row.row = outputs.first_row + i;
      row.outputs =
          values.subspan(static_cast<size_t>(i * outputs_), static_cast<size_t>(outputs_));
      row.predicted = ClassOf(row.outputs);
      row.name = task_.data->NameOf(row.row);
      if (!task_.has_one_label()) continue;
      row.label = task_.data->label(row.row);
      if (!task_.counts_classes()) continue;
      confusion_.Add(row.label, row.predicted);
      metrics_.Add(row.outputs, row.label);
    }
    RETURN_IF_ERROR(AppendToAll([&](const PredictionFormat& format, std::string& text) {
      for (const PredictedRow& row : rows) format.AppendRow(row, text);
    }));
    if (task_.on_outputs != nullptr) task_.on_outputs(outputs);
    if (task_.on_rows) task_.on_rows(outputs.first_row + outputs.rows);
    return absl::OkStatus();
  }

  Prediction Finish(const Evaluation& evaluation, absl::Duration elapsed) && {
    return {
        .evaluation = evaluation,
        .confusion = std::move(confusion_),
        .metrics = task_.counts_classes() ? metrics_.Results() : std::map<std::string, double>(),
        .label_rmse = RmseOfLabels(),
        .not_finite = not_finite_,
        .outputs_hash = hasher_.HexDigest(),
        .elapsed = elapsed};
  }

 private:
  template <typename F>
  absl::Status AppendToAll(F format) {
    for (const OpenFile& file : files_) {
      std::string text;
      format(*file.format, text);
      RETURN_IF_ERROR(file.append(text));
    }
    return absl::OkStatus();
  }

  // Adds the squared errors of the numbers.
  void AddErrors(const Outputs& outputs) {
    const auto labels = static_cast<size_t>(outputs_);
    std::vector<float> targets(labels);
    squared_errors_.resize(labels);
    for (int64_t i = 0; i < outputs.rows; ++i) {
      task_.data->CopyTarget(outputs.first_row + i,
                             absl::MakeSpan(reinterpret_cast<std::byte*>(targets.data()),
                                            targets.size() * sizeof(float)));
      for (size_t k = 0; k < labels; ++k) {
        const double output = outputs.values[static_cast<size_t>(i) * labels + k];
        squared_errors_[k] += std::pow(output - static_cast<double>(targets[k]), 2);
      }
    }
    rows_ += outputs.rows;
  }

  // Returns the RMSE of each number in its own units.
  std::vector<double> RmseOfLabels() const {
    std::vector<double> rmse;
    for (size_t k = 0; k < squared_errors_.size(); ++k) {
      rmse.push_back(std::sqrt(squared_errors_[k] / static_cast<double>(rows_)) *
                     task_.encoding.label_stddev[k]);
    }
    return rmse;
  }

  const PredictionTask& task_;
  const int64_t outputs_;
  std::vector<OpenFile>& files_;
  std::vector<double> squared_errors_;  // by output, of standardized numbers
  int64_t rows_ = 0;                    // that have these
  Confusion confusion_;
  ClassMetrics metrics_;
  base::Hasher hasher_;
  int64_t not_finite_ = 0;
};

// Calls `body` once all files but the first `open` are open as well.
absl::Status WithFiles(const PredictionTask& task, const PredictionLayout& layout, size_t open,
                       std::vector<OpenFile>& files, const std::function<absl::Status()>& body) {
  if (open == task.files.size()) return body();
  const PredictionTask::File& file = task.files[open];
  PredictionLayout own = layout;
  own.content = file.content;
  ASSIGN_OR_RETURN(std::unique_ptr<PredictionFormat> format,
                   PredictionFormat::Create(file.path, own));
  return base::WriteFileAtomically(file.path, [&](const base::AppendFunction& append) {
    files.push_back({std::move(format), append});
    return WithFiles(task, layout, open + 1, files, body);
  });
}

}  // namespace

bool PredictionTask::has_labels() const {
  return data->spec().target.kind != TargetSpec::Kind::kNone;
}

bool PredictionTask::has_one_label() const {
  const TargetSpec& target = data->spec().target;
  return target.kind == TargetSpec::Kind::kClasses && target.shape.rank() == 0;
}

bool PredictionTask::counts_classes() const {
  constexpr int64_t kMostCounted = 1000;
  return has_one_label() && data->spec().target.classes <= kMostCounted;
}

absl::StatusOr<Prediction> PredictAll(Trainer& trainer, const PredictionTask& task) {
  const int64_t outputs = trainer.run().profile.output.elements();
  absl::StatusOr<Prediction> prediction = absl::UnknownError("");
  const auto predict = [&](std::vector<OpenFile>& files) -> absl::StatusOr<Prediction> {
    const absl::Time begin = absl::Now();
    Collector collector(task, outputs, files);
    RETURN_IF_ERROR(collector.Begin());
    ASSIGN_OR_RETURN(
        const Evaluation evaluation,
        trainer.Predict(*task.data, [&](const Outputs& rows) { return collector.Take(rows); }));
    return std::move(collector).Finish(evaluation, absl::Now() - begin);
  };
  std::vector<OpenFile> files;
  bool has_run = false;
  const absl::Status written = WithFiles(task,
                                         {.rows = task.data->rows(),
                                          .outputs = outputs,
                                          .has_labels = task.has_one_label(),
                                          .has_names = !task.data->NameOf(0).empty(),
                                          .encoding = task.encoding},
                                         0, files, [&] {
                                           has_run = true;
                                           prediction = predict(files);
                                           return prediction.status();
                                         });
  if (has_run) RETURN_IF_ERROR(prediction.status());
  RETURN_IF_ERROR(written);
  return prediction;
}

}  // namespace stagecoach::engine
