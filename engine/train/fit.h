#ifndef STAGECOACH_ENGINE_TRAIN_FIT_H_
#define STAGECOACH_ENGINE_TRAIN_FIT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/data/dataset.h"
#include "engine/train/trainer.h"

namespace stagecoach::engine {

// The progress of a run, after each step.
struct FitProgress {
  int epoch = 1;                    // counts from 1
  int64_t step = 0;                 // of the epoch, counts from 1
  int64_t steps = 0;                // of the epoch, as far as it is trained
  int64_t run_step = 0;             // of the run, counts from 1
  StepResult step_result;           // the step's result
  double loss = 0.0;                // mean over the epoch so far
  double samples_per_second = 0.0;  // of training, over the epoch so far
  absl::Duration remaining;         // estimate for the rest of the run, evaluation included
};

// An epoch, or the part of it that had been trained when it was evaluated.
struct EpochResult {
  int epoch = 1;
  double share = 1.0;  // of the epoch's steps that were done
  int64_t step = 0;    // of the run, counts from 1: the last one before the evaluation
  // Mean over the epoch's steps that were not skipped, each before its update.
  double loss = 0.0;
  double train_accuracy = 0.0;  // over the same samples, of all their answers (TargetSpec)
  double test_accuracy = 0.0;
  double test_loss = 0.0;
  std::map<std::string, double> more;  // Metrics
  // Training time in this run, excluding evaluations and what was trained before it.
  absl::Duration training;
  absl::Duration evaluation;  // its time
  double samples_per_second = 0.0;

  Metrics metrics() const { return {loss, train_accuracy, test_loss, test_accuracy, more}; }
};

// The result of saving a checkpoint.
struct SaveReport {
  int64_t step = 0;
  absl::StatusOr<std::string> path;  // or why there is none; the run continues
  absl::Duration blocked;            // time for which steps had to wait
};

// A metric of the caller's own, computed in evaluations from the outputs of the model. Larger
// values are better: of an error, it returns the negative. The same for all processes of a run.
class EvaluationMetric {
 public:
  virtual ~EvaluationMetric() = default;
  // Returns the name in reports, events and checkpoints, and for FitOptions::best_by: letters,
  // digits and underscores, as test_errors; none of MetricTypes.
  virtual std::string name() const = 0;
  // An evaluation begins.
  virtual void Begin() {}
  // Takes the outputs for consecutive rows of the test data, whose targets that has: all rows, in
  // order, a batch at a time. An error ends the run.
  virtual absl::Status Add(const Dataset& data, const Outputs& outputs) = 0;
  // Returns the value over all that was added since Begin.
  virtual double Value() const = 0;
};

// Returns a metric that is the mean of a function of each row: of its number in the test data,
// which has its target, and of the model's outputs for it.
using RowMetric =
    std::function<double(const Dataset& data, int64_t row, absl::Span<const float> outputs)>;
std::shared_ptr<EvaluationMetric> MeanOfRows(std::string name, RowMetric metric);

// When and how a run is saved: as below; also after the evaluation that ends an epoch; at its end;
// and when it is stopped. What is saved after a step that is evaluated has the metrics, by which
// the best checkpoint is chosen (Retention).
struct CheckpointOptions {
  std::string folder;  // "": never
  // Saves after each step of the run whose number is a multiple of this, as for
  // evaluate_every_steps, and after each epoch; also whenever `wanted` says so: it is asked after
  // each step and epoch, and, among processes, as FitOptions::stop is.
  int64_t every_steps = 0;
  StopFunction wanted;
  SaveOptions save;  // its position is filled in, and the encoding of the data
  std::function<void(const SaveReport&)> on_save;
};

struct FitOptions {
  int epochs = 1;
  // Number of steps of the whole run, in place of `epochs`: the run ends there with an evaluation,
  // even within an epoch.
  std::optional<int64_t> steps;
  // Evaluates also after each step of the run whose number is a multiple of this; 0: only after
  // epochs. The training is the same.
  int64_t evaluate_every_steps = 0;
  uint64_t seed = 1;  // for the order of the samples
  // The position at which a run resumes (Trainer::Restore, RestoreSnapshot); counted in FitResult.
  DataPosition start;
  bool start_is_saved = true;  // or there is nothing to save yet; otherwise it is saved once there
                               // is time
  CheckpointOptions checkpoints;
  // Asked before each step and each batch of an evaluation; ends the run there if it says so.
  StopFunction stop;
  // Asked after each evaluation, and about the position at which the run resumes; ends the run
  // there if it says so. Metrics are the same in all processes, so they end at the same step.
  std::function<bool(const Metrics&)> stop_when;
  // Metrics that evaluations compute besides loss and accuracy (MetricTypes, ClassMetrics), and
  // those of the caller's own. With some, `stop` does not end an evaluation.
  std::vector<std::string> metrics;
  std::vector<std::shared_ptr<EvaluationMetric>> own_metrics;
  // The metric by which evaluations, and the checkpoints that are kept, are compared.
  std::string best_by = "test_loss";
  // Ends the run after as many evaluations in a row that have not improved it; 0: never.
  int64_t patience = 0;
  std::function<void(const FitProgress&)> on_step;
  std::function<void(const EpochResult&)> on_epoch;
  std::function<void(const EpochResult&)> on_evaluation;  // within an epoch, which is not over
  DataPosition* position = nullptr;                       // kept up to date, even if Fit fails
};

struct FitResult {
  int epochs = 0;  // completed
  int64_t steps = 0;
  int64_t skipped_steps = 0;     // those of `steps` that changed nothing (OnNonFinite)
  absl::Duration evaluation;     // the time that evaluations took
  bool stopped = false;          // by FitOptions::stop
  bool condition_met = false;    // by FitOptions::stop_when
  bool out_of_patience = false;  // FitOptions::patience
  // Of all evaluations of the run: the best value of FitOptions::best_by (none: all were NaN), and
  // how many have passed since it.
  std::string best_by;
  std::optional<double> best;
  int64_t evaluations_since_best = 0;
  std::optional<Metrics> metrics;  // if the run ended with an evaluation
  // Fingerprint of the loss of every step, in order: equal for equal bits. Empty without steps.
  std::string step_losses_hash;
  absl::Status last_save;  // error of the last checkpoint, if it could not be saved
};

// Returns InvalidArgument unless each has a name of its own (EvaluationMetric::name).
absl::Status CheckOwnMetrics(absl::Span<const std::shared_ptr<EvaluationMetric>> metrics);

// Returns the number of steps in an epoch: the samples are shuffled anew for every epoch, those of
// a text also cut anew (Dataset::ForEpoch), by seed and epoch alone, and those left over after the
// last whole batch wait for another epoch.
int64_t StepsPerEpoch(const Dataset& train, const partition::Plan& plan);

// Trains, from options.start on, until `epochs` passes over data.train are done, each followed by
// an evaluation of data.test, or until `steps` are done. Data without an end (StreamOf) have one
// epoch. InvalidArgument: there are fewer samples than one batch, or they have no end and `steps`
// is not set, CheckOwnMetrics.
absl::StatusOr<FitResult> Fit(Trainer& trainer, const TrainTest& data, const FitOptions& options);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_TRAIN_FIT_H_
