#include "engine/train/fit.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "engine/data/sampler.h"

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

// The fingerprint of losses, one of which comes after those before.
std::string HashOf(const std::string& before, double loss) {
  base::Hasher hasher;
  hasher.Update(before);
  hasher.UpdateValue(loss);
  return hasher.HexDigest();
}

// After a step of a run.
void Advance(const StepResult& taken, DataPosition& position) {
  position.losses_hash = HashOf(position.losses_hash, taken.loss);
  position.rows += taken.rows;
  position.loss_sum += taken.loss * static_cast<double>(taken.rows);
  position.correct += taken.correct;
  position.test_loss.reset();
}

// One run of Fit.
class Fitting {
 public:
  Fitting(Trainer& trainer, const TrainTest& data, const FitOptions& options)
      : trainer_(trainer),
        data_(data),
        options_(options),
        batch_(trainer.plan().batch_rows()),
        steps_per_epoch_(StepsPerEpoch(*data.train, trainer.plan())),
        position_(options.start),
        saved_steps_(options.start_is_saved ? trainer.steps() : -1) {}

  absl::StatusOr<FitResult> Run() {
    if (steps_per_epoch_ == 0) {
      return absl::InvalidArgumentError(absl::StrCat("the training data has ", data_.train->rows(),
                                                     " rows, less than one batch of ", batch_));
    }
    result_.epochs = position_.epoch - 1;
    Show();
    while (position_.epoch <= options_.epochs && !result_.stopped) RETURN_IF_ERROR(RunEpoch());
    if (trainer_.steps() > saved_steps_) RETURN_IF_ERROR(Save());
    RETURN_IF_ERROR(FinishSave());
    result_.steps = trainer_.steps();
    result_.step_losses_hash = position_.losses_hash;
    return result_;
  }

 private:
  absl::Status RunEpoch() {
    EpochResult row{.epoch = position_.epoch};
    RETURN_IF_ERROR(TrainEpoch(row));
    if (result_.stopped) return absl::OkStatus();
    const Stopwatch watch;
    ASSIGN_OR_RETURN(const Evaluation evaluation, trainer_.Evaluate(*data_.test, options_.stop));
    if (evaluation.rows < data_.test->rows()) {
      result_.stopped = true;
      return absl::OkStatus();
    }
    evaluation_seconds_ = watch.Seconds();
    row.test_accuracy = evaluation.accuracy();
    row.test_loss = evaluation.loss;
    result_.epochs = position_.epoch;
    if (options_.on_epoch) options_.on_epoch(row);
    position_ = {.epoch = position_.epoch + 1,
                 .losses_hash = position_.losses_hash,
                 .test_loss = evaluation.loss};
    Show();
    const bool is_last = position_.epoch > options_.epochs;
    return options_.checkpoints.wanted && !is_last ? SaveIfDue() : Save();
  }

  absl::Status TrainEpoch(EpochResult& row) {
    const int epoch = position_.epoch;
    const std::vector<int64_t> order = EpochOrder(options_.seed, epoch, data_.train->rows());
    const Stopwatch watch;
    const int64_t first_row = position_.rows;
    const int64_t end = first_row + (std::ssize(order) - first_row) / batch_ * batch_;
    const auto rows_from = [&](int64_t first) {
      return first < end ? absl::MakeConstSpan(order).subspan(static_cast<size_t>(first),
                                                              static_cast<size_t>(batch_))
                         : absl::Span<const int64_t>();
    };
    Describe(row);
    while (position_.rows < end) {
      RETURN_IF_ERROR(StopIfAsked());
      if (result_.stopped) return absl::OkStatus();
      ASSIGN_OR_RETURN(const StepResult taken,
                       trainer_.Step(*data_.train, rows_from(position_.rows),
                                     rows_from(position_.rows + batch_)));
      Advance(taken, position_);
      Show();
      Describe(row);
      const int64_t own_rows = position_.rows - first_row;
      const double seconds = watch.Seconds();
      row.samples_per_second = static_cast<double>(own_rows) / seconds;
      if (options_.on_step) {
        options_.on_step({.epoch = epoch,
                          .step = position_.rows / batch_,
                          .steps = end / batch_,
                          .taken = taken,
                          .loss = row.loss,
                          .samples_per_second = row.samples_per_second,
                          .remaining = Remaining(own_rows / batch_, seconds)});
      }
      if (position_.rows < end) RETURN_IF_ERROR(SaveIfDue());
    }
    return StopIfAsked();  // rather than evaluate
  }

  void Show() const {
    if (options_.position != nullptr) *options_.position = position_;
  }

  void Describe(EpochResult& row) const {
    const auto rows = static_cast<double>(std::max<int64_t>(position_.rows, 1));
    row.loss = position_.loss_sum / rows;
    const int64_t answers = data_.train->spec().target.answers();
    row.train_accuracy =
        static_cast<double>(position_.correct) / (rows * static_cast<double>(answers));
  }

  absl::Status SaveIfDue() {
    const CheckpointOptions& checkpoints = options_.checkpoints;
    if (checkpoints.folder.empty()) return absl::OkStatus();
    bool is_due =
        checkpoints.every_steps > 0 && trainer_.steps() - saved_steps_ >= checkpoints.every_steps;
    if (checkpoints.wanted) {
      ASSIGN_OR_RETURN(const bool wanted, checkpoints.wanted());
      is_due = is_due || wanted;
    }
    return is_due ? Save() : absl::OkStatus();
  }

  // Begins to save, once the save before is done. Only an error of the run itself is one here.
  absl::Status Save() {
    if (options_.checkpoints.folder.empty()) return absl::OkStatus();
    RETURN_IF_ERROR(FinishSave());
    SaveOptions save = options_.checkpoints.save;
    save.position = position_;
    save.encoding = data_.encoding;
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
    // Before the first evaluation: a forward pass is a third of a step's work.
    const double evaluation = evaluation_seconds_ > 0.0
                                  ? evaluation_seconds_
                                  : per_step / 3.0 * static_cast<double>(data_.test->rows()) /
                                        static_cast<double>(batch_);
    const int64_t epochs_after = options_.epochs - position_.epoch;
    const int64_t steps =
        steps_per_epoch_ - position_.rows / batch_ + epochs_after * steps_per_epoch_;
    return absl::Seconds(static_cast<double>(steps) * per_step +
                         static_cast<double>(epochs_after + 1) * evaluation);
  }

  Trainer& trainer_;
  const TrainTest& data_;
  const FitOptions& options_;
  const int64_t batch_;
  const int64_t steps_per_epoch_;
  double evaluation_seconds_ = 0.0;
  DataPosition position_;
  int64_t saved_steps_;           // by when the last save was begun
  double blocked_seconds_ = 0.0;  // by that
  FitResult result_;
};

}  // namespace

int64_t StepsPerEpoch(const Dataset& train, const partition::Plan& plan) {
  return train.rows() / plan.batch_rows();
}

absl::StatusOr<FitResult> Fit(Trainer& trainer, const TrainTest& data, const FitOptions& options) {
  return Fitting(trainer, data, options).Run();
}

}  // namespace stagecoach::engine
