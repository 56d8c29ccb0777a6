#include "engine/train/fit.h"

#include <chrono>
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

// One run of Fit.
class Fitting {
 public:
  Fitting(Trainer& trainer, const TrainTest& data, const FitOptions& options)
      : trainer_(trainer),
        data_(data),
        options_(options),
        batch_(trainer.plan().batch_rows()),
        steps_per_epoch_(StepsPerEpoch(*data.train, trainer.plan())) {}

  absl::StatusOr<FitResult> Run() {
    if (steps_per_epoch_ == 0) {
      return absl::InvalidArgumentError(absl::StrCat("the training data has ", data_.train->rows(),
                                                     " rows, less than one batch of ", batch_));
    }
    for (int epoch = 1; epoch <= options_.epochs && !result_.stopped; ++epoch) {
      EpochResult row{.epoch = epoch};
      RETURN_IF_ERROR(TrainEpoch(epoch, row));
      if (result_.stopped) break;
      const Stopwatch watch;
      ASSIGN_OR_RETURN(const Evaluation evaluation, trainer_.Evaluate(*data_.test, options_.stop));
      if (evaluation.rows < data_.test->rows()) {
        result_.stopped = true;
        break;
      }
      evaluation_seconds_ = watch.Seconds();
      row.test_accuracy = evaluation.accuracy();
      row.test_loss = evaluation.loss;
      result_.epochs = epoch;
      if (options_.on_epoch) options_.on_epoch(row);
    }
    result_.step_losses_hash = losses_.HexDigest();
    return result_;
  }

 private:
  absl::Status TrainEpoch(int epoch, EpochResult& row) {
    const std::vector<int64_t> order = EpochOrder(options_.seed, epoch, data_.train->rows());
    const Stopwatch watch;
    double loss_sum = 0.0;
    int64_t correct = 0;
    const auto rows_of = [&](int64_t step) {
      return absl::MakeConstSpan(order).subspan(static_cast<size_t>(step * batch_),
                                                static_cast<size_t>(batch_));
    };
    for (int64_t step = 0; step < steps_per_epoch_; ++step) {
      RETURN_IF_ERROR(StopIfAsked());
      if (result_.stopped) return absl::OkStatus();
      const absl::Span<const int64_t> next_rows =
          step + 1 < steps_per_epoch_ ? rows_of(step + 1) : absl::Span<const int64_t>();
      ASSIGN_OR_RETURN(const StepResult taken,
                       trainer_.Step(*data_.train, rows_of(step), next_rows));
      losses_.UpdateValue(taken.loss);
      ++result_.steps;
      loss_sum += taken.loss;
      correct += taken.correct;
      const int64_t done = step + 1;
      const double seconds = watch.Seconds();
      row.loss = loss_sum / static_cast<double>(done);
      row.train_accuracy = static_cast<double>(correct) / static_cast<double>(done * batch_);
      row.samples_per_second = static_cast<double>(done * batch_) / seconds;
      if (options_.on_step) {
        options_.on_step({.epoch = epoch,
                          .step = done,
                          .steps = steps_per_epoch_,
                          .loss = row.loss,
                          .samples_per_second = row.samples_per_second,
                          .remaining = Remaining(epoch, done, seconds)});
      }
    }
    return StopIfAsked();  // rather than evaluate
  }

  absl::Status StopIfAsked() {
    if (!options_.stop) return absl::OkStatus();
    ASSIGN_OR_RETURN(result_.stopped, options_.stop());
    return absl::OkStatus();
  }

  absl::Duration Remaining(int epoch, int64_t steps_done, double seconds) const {
    const double per_step = seconds / static_cast<double>(steps_done);
    // Before the first evaluation: a forward pass is a third of a step's work.
    const double evaluation = evaluation_seconds_ > 0.0
                                  ? evaluation_seconds_
                                  : per_step / 3.0 * static_cast<double>(data_.test->rows()) /
                                        static_cast<double>(batch_);
    const int64_t epochs_after = options_.epochs - epoch;
    const int64_t steps = steps_per_epoch_ - steps_done + epochs_after * steps_per_epoch_;
    return absl::Seconds(static_cast<double>(steps) * per_step +
                         static_cast<double>(epochs_after + 1) * evaluation);
  }

  Trainer& trainer_;
  const TrainTest& data_;
  const FitOptions& options_;
  const int64_t batch_;
  const int64_t steps_per_epoch_;
  double evaluation_seconds_ = 0.0;
  base::Hasher losses_;
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
