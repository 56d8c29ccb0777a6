#include "engine/train/fit.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "engine/data/sampler.h"
#include "engine/train/class_metrics.h"

namespace stagecoach::engine {
namespace {

class Stopwatch {
 public:
  double Seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// Returns the fingerprint of losses that continue those of `before`.
std::string HashOf(const std::string& before, double loss) {
  base::Hasher hasher;
  hasher.Update(before);
  hasher.UpdateValue(loss);
  return hasher.HexDigest();
}

// The order in which an epoch visits the rows of its data.
class RowOrder {
 public:
  RowOrder(uint64_t seed, int epoch, const Dataset& data, int64_t batch) : batch_(batch) {
    if (!data.is_endless()) shuffled_ = EpochOrder(seed, epoch, data.rows());
  }
  // Returns a batch of them.
  std::vector<int64_t> From(int64_t first) const {
    std::vector<int64_t> rows(static_cast<size_t>(batch_));
    if (shuffled_.empty()) {
      std::iota(rows.begin(), rows.end(), first);
    } else {
      std::copy_n(shuffled_.begin() + first, batch_, rows.begin());
    }
    return rows;
  }

 private:
  const int64_t batch_;
  std::vector<int64_t> shuffled_;  // empty: they are as they come
};

// Advances the position after a step of a run.
void Advance(const StepResult& taken, const TargetSpec& target, DataPosition& position) {
  const bool is_skipped = !taken.skipped_for.empty();
  // NaN has more than one bit pattern, so one is chosen.
  position.losses_hash = HashOf(position.losses_hash,
                                is_skipped ? std::numeric_limits<double>::quiet_NaN() : taken.loss);
  position.rows += taken.rows;
  position.metrics.reset();
  if (is_skipped) {
    position.skipped_rows += taken.rows;
    ++position.skipped_steps;
    return;
  }
  position.loss_sum += taken.loss * target.SamplesOf(taken.answers);
  position.answers += taken.answers;
  position.correct += taken.correct;
}

// Counts an evaluation. NaN is no gain.
void CountEvaluation(const Metrics& metrics, DataPosition& position) {
  const double value = metrics.ValueOf(position.best_by);
  const bool is_gain = position.best.has_value() ? IsBetter(position.best_by, value, *position.best)
                                                 : !std::isnan(value);
  if (is_gain) {
    position.best = value;
    position.evaluations_since_best = 0;
  } else {
    ++position.evaluations_since_best;
  }
}

// One run of Fit.
class TrainingLoop {
 public:
  TrainingLoop(Trainer& trainer, const TrainTest& data, const FitOptions& options)
      : trainer_(trainer),
        data_(data),
        options_(options),
        batch_(trainer.plan().batch_rows()),
        steps_per_epoch_(StepsPerEpoch(*data.train, trainer.plan())),
        position_(options.start),
        saved_steps_(options.start_is_saved ? trainer.steps() : -1) {
    if (position_.best_by != options.best_by) {  // then nothing is known of the best so far
      position_.best_by = options.best_by;
      position_.best.reset();
      position_.evaluations_since_best = 0;
    }
    // Older checkpoints are of data whose rows have all their answers.
    if (position_.answers == 0) {
      position_.answers = (position_.rows - position_.skipped_rows) * target().answers();
    }
  }

  absl::StatusOr<FitResult> Run() {
    if (steps_per_epoch_ == 0) {
      return absl::InvalidArgumentError(absl::StrCat("the training data has ", data_.train->rows(),
                                                     " rows, less than one batch of ", batch_));
    }
    if (data_.train->is_endless() && !options_.steps.has_value()) {
      return absl::InvalidArgumentError(
          "the training data have no end: say how many steps to train (FitOptions::steps)");
    }
    if (data_.test->is_endless()) {
      return absl::InvalidArgumentError("the test data have no end, and are evaluated as a whole");
    }
    RETURN_IF_ERROR(CheckOwnMetrics(options_.own_metrics));
    std::vector<std::string> names = MetricNames();
    for (const auto& own : options_.own_metrics) names.push_back(own->name());
    if (!absl::c_linear_search(names, options_.best_by)) {
      return absl::InvalidArgumentError(absl::StrCat("there is no metric ", options_.best_by,
                                                     " to compare by: expected one of ",
                                                     absl::StrJoin(names, ", ")));
    }
    result_.epochs = position_.epoch - 1;
    Show();
    if (position_.metrics.has_value()) Judge(*position_.metrics);
    while (!IsDone() && !IsOver()) RETURN_IF_ERROR(RunEpoch());
    if (trainer_.steps() > saved_steps_) RETURN_IF_ERROR(Save());
    RETURN_IF_ERROR(FinishSave());
    result_.steps = trainer_.steps();
    result_.evaluation = absl::Seconds(all_evaluations_seconds_);
    result_.skipped_steps = position_.skipped_steps;
    result_.out_of_patience = IsOutOfPatience();
    result_.best_by = position_.best_by;
    result_.best = position_.best;
    result_.evaluations_since_best = position_.evaluations_since_best;
    result_.metrics = position_.metrics;
    result_.step_losses_hash = position_.losses_hash;
    return result_;
  }

 private:
  bool IsDone() const {
    if (!options_.steps.has_value()) return position_.epoch > options_.epochs;
    const bool is_evaluated = position_.rows == 0 || position_.metrics.has_value();
    return trainer_.steps() >= *options_.steps && is_evaluated;
  }

  // True if the run ends early.
  bool IsOver() const { return result_.stopped || result_.condition_met || IsOutOfPatience(); }
  bool IsOutOfPatience() const {
    return options_.patience > 0 && position_.evaluations_since_best >= options_.patience;
  }

  void Judge(const Metrics& metrics) {
    result_.condition_met = options_.stop_when && options_.stop_when(metrics);
  }

  // Returns the maximum number of steps that this run has left.
  int64_t StepsLeft() const {
    if (!options_.steps.has_value()) return std::numeric_limits<int64_t>::max();
    return std::max<int64_t>(0, *options_.steps - trainer_.steps());
  }

  const TargetSpec& target() const { return data_.train->spec().target; }

  // Returns whether the epoch has another step.
  bool HasStep() const { return data_.train->rows() - position_.rows >= batch_; }

  absl::Status RunEpoch() {
    EpochResult row{.epoch = position_.epoch};
    RETURN_IF_ERROR(TrainEpoch(row));
    if (IsOver()) return absl::OkStatus();
    if (HasStep()) return EvaluateWithin(row);  // at the last step of the run
    RETURN_IF_ERROR(Evaluate(row));
    if (result_.stopped) return absl::OkStatus();
    result_.epochs = position_.epoch;
    if (options_.on_epoch) options_.on_epoch(row);
    position_ = {.epoch = position_.epoch + 1,
                 .losses_hash = position_.losses_hash,
                 .metrics = row.metrics(),
                 .skipped_steps = position_.skipped_steps,
                 .best_by = position_.best_by,
                 .best = position_.best,
                 .evaluations_since_best = position_.evaluations_since_best};
    CountEvaluation(row.metrics(), position_);
    Show();
    const bool is_saved_if_due =
        options_.checkpoints.every_steps == 0 && options_.checkpoints.wanted;
    return is_saved_if_due && !IsDone() ? SaveIfDue() : Save();
  }

  absl::Status TrainEpoch(EpochResult& row) {
    const int epoch = position_.epoch;
    const std::shared_ptr<const Dataset> own = data_.train->ForEpoch(options_.seed, epoch);
    const Dataset& train = own == nullptr ? *data_.train : *own;
    const Stopwatch watch;
    const double evaluated_before = all_evaluations_seconds_;
    const int64_t first_row = position_.rows;
    const int64_t steps = std::min((train.rows() - first_row) / batch_, StepsLeft());
    const int64_t end = first_row + steps * batch_;
    const RowOrder order(options_.seed, epoch, train, batch_);
    const auto rows_from = [&](int64_t first) {
      return first < end ? order.From(first) : std::vector<int64_t>();
    };
    Describe(row);
    // The position at which the run resumes may not have been evaluated yet.
    if (first_row < end && IsEvaluationDue()) RETURN_IF_ERROR(EvaluateWithin(row));
    if (IsOver()) return absl::OkStatus();
    std::vector<int64_t> rows = rows_from(position_.rows);
    while (position_.rows < end) {
      RETURN_IF_ERROR(StopIfAsked());
      if (result_.stopped) return absl::OkStatus();
      std::vector<int64_t> next = rows_from(position_.rows + batch_);
      ASSIGN_OR_RETURN(
          const StepResult taken,
          trainer_.Step(train, rows,
                        // Prepared samples do not outlive an evaluation.
                        IsEvaluatedAfter(trainer_.steps() + 1) ? absl::Span<const int64_t>()
                                                               : absl::MakeConstSpan(next)));
      rows = std::move(next);  // where the trainer knows them
      Advance(taken, target(), position_);
      Show();
      Describe(row);
      const int64_t own_rows = position_.rows - first_row;
      const double seconds = watch.Seconds() - (all_evaluations_seconds_ - evaluated_before);
      row.training = absl::Seconds(seconds);
      row.samples_per_second = static_cast<double>(own_rows) / seconds;
      if (options_.on_step) {
        options_.on_step({.epoch = epoch,
                          .step = position_.rows / batch_,
                          .steps = end / batch_,
                          .run_step = trainer_.steps(),
                          .step_result = taken,
                          .loss = row.loss,
                          .samples_per_second = row.samples_per_second,
                          .remaining = Remaining(own_rows / batch_, seconds)});
      }
      if (position_.rows == end) break;
      if (IsEvaluationDue()) RETURN_IF_ERROR(EvaluateWithin(row));
      if (IsOver()) return absl::OkStatus();
      RETURN_IF_ERROR(SaveIfDue());
    }
    return StopIfAsked();  // rather than evaluate
  }

  // Pre-condition: it is a step within an epoch.
  bool IsEvaluatedAfter(int64_t step) const {
    return options_.evaluate_every_steps > 0 && step % options_.evaluate_every_steps == 0;
  }
  bool IsEvaluationDue() const {
    return position_.rows > 0 && !position_.metrics.has_value() &&
           IsEvaluatedAfter(trainer_.steps());
  }

  // Does not change the position: the caller knows whether the epoch is over.
  absl::Status Evaluate(EpochResult& row) {
    const Stopwatch watch;
    ASSIGN_OR_RETURN(const Evaluation evaluation, EvaluateTestData(row));
    evaluation_seconds_ = watch.Seconds();
    all_evaluations_seconds_ += evaluation_seconds_;
    row.evaluation = absl::Seconds(evaluation_seconds_);
    result_.stopped = evaluation.rows < data_.test->rows();
    row.step = trainer_.steps();
    row.test_accuracy = evaluation.accuracy();
    row.test_loss = evaluation.loss;
    if (!result_.stopped) Judge(row.metrics());
    return absl::OkStatus();
  }

  absl::StatusOr<Evaluation> EvaluateTestData(EpochResult& row) {
    const bool has_own = !options_.own_metrics.empty();
    if (options_.metrics.empty() && !has_own) {
      return trainer_.Evaluate(*data_.test, options_.stop);
    }
    const int64_t classes = trainer_.run().profile.output.elements();
    ClassMetrics metrics(options_.metrics, classes);
    for (const auto& own : options_.own_metrics) own->Begin();
    const auto take = [&](const Outputs& outputs) -> absl::Status {
      for (int64_t i = 0; !options_.metrics.empty() && i < outputs.rows; ++i) {
        metrics.Add(
            outputs.values.subspan(static_cast<size_t>(i * classes), static_cast<size_t>(classes)),
            data_.test->label(outputs.first_row + i));
      }
      for (const auto& own : options_.own_metrics) {
        RETURN_IF_ERROR(base::Annotate(own->Add(*data_.test, outputs), own->name()));
      }
      return absl::OkStatus();
    };
    ASSIGN_OR_RETURN(const Evaluation evaluation, trainer_.Predict(*data_.test, take));
    row.more = metrics.Results();
    for (const auto& own : options_.own_metrics) row.more[own->name()] = own->Value();
    return evaluation;
  }

  absl::Status EvaluateWithin(EpochResult& row) {
    RETURN_IF_ERROR(Evaluate(row));
    if (result_.stopped) return absl::OkStatus();
    position_.metrics = row.metrics();
    CountEvaluation(row.metrics(), position_);
    Show();
    const int64_t steps = position_.rows / batch_;
    row.share = static_cast<double>(steps) / static_cast<double>(steps_per_epoch_);
    const Stopwatch watch;
    if (options_.on_evaluation) options_.on_evaluation(row);
    all_evaluations_seconds_ += watch.Seconds();
    row.share = 1.0;
    return absl::OkStatus();
  }

  void Show() const {
    if (options_.position != nullptr) *options_.position = position_;
  }

  void Describe(EpochResult& row) const {
    // NaN if all were skipped.
    const int64_t answers = position_.rows == 0 ? target().answers() : position_.answers;
    row.loss = position_.loss_sum / target().SamplesOf(answers);
    row.train_accuracy = static_cast<double>(position_.correct) / static_cast<double>(answers);
  }

  absl::Status SaveIfDue() {
    const CheckpointOptions& checkpoints = options_.checkpoints;
    if (checkpoints.folder.empty()) return absl::OkStatus();
    // Counts like evaluations, so that the two coincide.
    const bool is_multiple =
        checkpoints.every_steps > 0 && trainer_.steps() % checkpoints.every_steps == 0;
    bool is_due = is_multiple || (checkpoints.every_steps > 0 && saved_steps_ < 0);
    if (checkpoints.wanted) {
      ASSIGN_OR_RETURN(const bool wanted, checkpoints.wanted());
      is_due = is_due || wanted;
    }
    return is_due ? Save() : absl::OkStatus();
  }

  // Begins to save, once the save before is done. Returns only errors of the run itself.
  absl::Status Save() {
    if (options_.checkpoints.folder.empty()) return absl::OkStatus();
    RETURN_IF_ERROR(FinishSave());
    SaveOptions save = options_.checkpoints.save;
    save.position = position_;
    save.encoding = data_.encoding;
    save.data = data_.fingerprint;
    saved_steps_ = trainer_.steps();
    const Stopwatch watch;
    const absl::Status begun = trainer_.BeginSave(options_.checkpoints.folder, save);
    blocked_seconds_ = watch.Seconds();
    if (!begun.ok()) Report(begun);
    return absl::OkStatus();
  }

  absl::Status FinishSave() {
    if (!trainer_.is_saving()) return absl::OkStatus();
    const Stopwatch watch;
    absl::StatusOr<std::string> path = trainer_.FinishSave();
    blocked_seconds_ += watch.Seconds();
    Report(std::move(path));
    return absl::OkStatus();
  }

  void Report(absl::StatusOr<std::string> path) {
    result_.last_save = path.status();
    if (!options_.checkpoints.on_save) return;
    options_.checkpoints.on_save({.step = saved_steps_,
                                  .path = std::move(path),
                                  .blocked = absl::Seconds(blocked_seconds_)});
  }

  absl::Status StopIfAsked() {
    if (!options_.stop) return absl::OkStatus();
    ASSIGN_OR_RETURN(result_.stopped, options_.stop());
    return absl::OkStatus();
  }

  // `steps_here` of this run took `seconds`.
  absl::Duration Remaining(int64_t steps_here, double seconds) const {
    const double per_step = seconds / static_cast<double>(steps_here);
    // Estimate before the first evaluation: a forward pass is a third of a step's work.
    const double evaluation = evaluation_seconds_ > 0.0
                                  ? evaluation_seconds_
                                  : per_step / 3.0 * static_cast<double>(data_.test->rows()) /
                                        static_cast<double>(batch_);
    const int64_t epochs_after = options_.epochs - position_.epoch;
    const int64_t steps = options_.steps.has_value() ? StepsLeft()
                                                     : steps_per_epoch_ - position_.rows / batch_ +
                                                           epochs_after * steps_per_epoch_;
    const int64_t every = options_.evaluate_every_steps;
    const int64_t evaluations =
        1 + (steps - 1) / steps_per_epoch_ + (every > 0 ? steps / every : 0);
    return absl::Seconds(static_cast<double>(steps) * per_step +
                         static_cast<double>(evaluations) * evaluation);
  }

  Trainer& trainer_;
  const TrainTest& data_;
  const FitOptions& options_;
  const int64_t batch_;
  const int64_t steps_per_epoch_;
  double evaluation_seconds_ = 0.0;  // of the last one
  double all_evaluations_seconds_ = 0.0;
  DataPosition position_;
  int64_t saved_steps_;           // steps when the last save was begun
  double blocked_seconds_ = 0.0;  // by that save
  FitResult result_;
};

}  // namespace

absl::Status CheckOwnMetrics(absl::Span<const std::shared_ptr<EvaluationMetric>> metrics) {
  std::vector<std::string> names = MetricNames();
  for (const std::shared_ptr<EvaluationMetric>& metric : metrics) {
    const std::string name = metric->name();
    const bool is_name = !name.empty() && absl::c_all_of(name, [](char c) {
      return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_';
    });
    if (!is_name) {
      return absl::InvalidArgumentError(absl::StrCat(
          "\"", name, "\" is no name of a metric: expected letters, digits and underscores"));
    }
    if (absl::c_linear_search(names, name)) {
      return absl::InvalidArgumentError(
          absl::StrCat("there is another metric ", name, ": give it a name of its own"));
    }
    names.push_back(name);
  }
  return absl::OkStatus();
}

int64_t StepsPerEpoch(const Dataset& train, const partition::Plan& plan) {
  return train.rows() / plan.batch_rows();
}

absl::StatusOr<FitResult> Fit(Trainer& trainer, const TrainTest& data, const FitOptions& options) {
  return TrainingLoop(trainer, data, options).Run();
}

}  // namespace stagecoach::engine
