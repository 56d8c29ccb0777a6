#include "engine/train/fit.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "engine/data/tokens/tokens.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/train/runs/small_run.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::IsRefused;
using ::stagecoach::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kRows = 23;
constexpr int64_t kBatch = 5;  // 4 batches, and 3 rows left over

// A trainer that records what it is asked. The loss of a step is the sum of its row numbers.
class RecordingTrainer final : public Trainer {
 public:
  explicit RecordingTrainer(int64_t batch = kBatch) {
    run_.compiled.plan = {.first_layer = {0},
                          .num_layers = 1,
                          .micro_batch_rows = batch,
                          .schedule = {.num_micro_batches = 1}};
  }

  absl::StatusOr<StepResult> Step(const Dataset& data, absl::Span<const int64_t> rows,
                                  absl::Span<const int64_t> next_rows) override {
    if (during_step) during_step(data);
    announced.emplace_back(next_rows.begin(), next_rows.end());
    if (++steps_ == fails_at_step) return absl::DataLossError("step failed");
    const auto count = static_cast<int64_t>(rows.size());
    StepResult result{.correct = 2, .rows = count, .answers = count};
    for (int64_t row : rows) result.loss += static_cast<double>(row);
    visited.insert(visited.end(), rows.begin(), rows.end());
    losses.push_back(result.loss);
    return result;
  }
  absl::StatusOr<Evaluation> Evaluate(const Dataset& data, const StopFunction& stop) override {
    const double loss = evaluations < std::ssize(test_losses)
                            ? test_losses[static_cast<size_t>(evaluations)]
                            : 0.25;
    ++evaluations;
    if (during_evaluation) during_evaluation();
    if (stop && *stop()) return Evaluation{.rows = data.rows() - 1};
    return Evaluation{.loss = loss, .correct = 3, .rows = data.rows(), .answers = data.rows()};
  }
  absl::StatusOr<Evaluation> Predict(const Dataset&, const TakeOutputs&) override {
    return Evaluation{};
  }
  absl::Status BeginSave(const std::string& folder, const SaveOptions& options) override {
    EXPECT_EQ(folder, kFolder);
    EXPECT_FALSE(is_saving_);
    if (fails_to_begin) return absl::ResourceExhaustedError("no memory");
    is_saving_ = true;
    saves.push_back({steps_, options.position});
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> FinishSave() override {
    EXPECT_TRUE(is_saving_);
    is_saving_ = false;
    if (steps_ == fails_to_finish_at) return absl::DataLossError("disk failed");
    return "step";
  }
  bool is_saving() const override { return is_saving_; }
  absl::StatusOr<RestoredCheckpoint> Restore(const std::string&) override {
    return absl::NotFoundError("none");
  }
  const PreparedRun& run() const override { return run_; }
  int64_t steps() const override { return steps_; }
  absl::StatusOr<std::vector<DeviceReport>> Devices() override {
    return std::vector<DeviceReport>();
  }
  absl::StatusOr<schedule::Trace> LastTrace() override { return schedule::Trace(); }
  absl::StatusOr<schedule::Costs> MeasuredCosts() override { return schedule::Costs(); }
  absl::StatusOr<std::string> ParametersHash() override { return std::string(); }
  absl::StatusOr<std::vector<float>> Parameter(const std::string&) override {
    return std::vector<float>();
  }
  absl::Status SetParameters(const ValuesOf&) override { return absl::OkStatus(); }
  absl::Status SetAdapters(const ValuesOf&) override { return absl::OkStatus(); }
  absl::Status SetParameter(const std::string&, absl::Span<const float>) override {
    return absl::OkStatus();
  }

  static constexpr char kFolder[] = "folder";
  // Sets the state that Restore leaves after a run of that many steps.
  void GoOnFrom(int64_t steps) { steps_ = steps; }

  struct BegunSave {
    int64_t step;
    DataPosition position;
  };
  std::vector<BegunSave> saves;
  bool fails_to_begin = false;
  int64_t fails_to_finish_at = -1;  // the number of steps at which Finish fails
  int fails_at_step = -1;
  std::vector<int64_t> visited;                 // rows of all steps
  std::vector<std::vector<int64_t>> announced;  // as the next batch, in each step
  std::vector<double> losses;
  std::function<void(const Dataset&)> during_step;
  std::function<void()> during_evaluation;
  int evaluations = 0;
  std::vector<double> test_losses;  // of the evaluations, in order; after these 0.25

 private:
  PreparedRun run_;
  int64_t steps_ = 0;
  bool is_saving_ = false;
};

TrainTest Data() { return {SmallData(kRows), SmallData(4)}; }

std::vector<int64_t> RowsOfEpoch(const RecordingTrainer& trainer, int64_t epoch, int64_t rows) {
  const auto begin = trainer.visited.begin() + (epoch - 1) * rows;
  return {begin, begin + rows};
}

TEST(Fit, VisitsRowsAtMostOncePerEpochInWholeBatches) {
  RecordingTrainer trainer;
  ASSERT_OK_AND_ASSIGN(const FitResult result, Fit(trainer, Data(), {.epochs = 3}));
  EXPECT_EQ(result.epochs, 3);
  EXPECT_EQ(result.steps, 12);
  EXPECT_FALSE(result.stopped);
  for (int epoch = 1; epoch <= 3; ++epoch) {
    const std::vector<int64_t> rows = RowsOfEpoch(trainer, epoch, 20);
    EXPECT_EQ(std::set<int64_t>(rows.begin(), rows.end()).size(), 20);
    EXPECT_THAT(rows, ::testing::Each(AllOf(::testing::Ge(0), ::testing::Lt(kRows))));
  }
}

TEST(Fit, AnnouncesTheRowsOfTheNextStepOfTheEpoch) {
  RecordingTrainer trainer;
  ASSERT_OK(Fit(trainer, Data(), {.epochs = 2}));
  ASSERT_EQ(trainer.announced.size(), 8);
  for (int64_t step = 0; step < 8; ++step) {
    const auto next = trainer.visited.begin() + (step + 1) * kBatch;
    const bool is_last_of_epoch = step % 4 == 3;
    EXPECT_EQ(
        trainer.announced[static_cast<size_t>(step)],
        is_last_of_epoch ? std::vector<int64_t>() : std::vector<int64_t>(next, next + kBatch));
  }
}

TEST(Fit, ShufflesEveryEpochAnew) {
  RecordingTrainer trainer;
  ASSERT_OK(Fit(trainer, Data(), {.epochs = 2}));
  EXPECT_NE(RowsOfEpoch(trainer, 1, 20), RowsOfEpoch(trainer, 2, 20));
}

TEST(Fit, OrderDependsOnSeedAndEpochAlone) {
  RecordingTrainer small_batches(4), large_batches(10), of_another_seed(4);
  ASSERT_OK(Fit(small_batches, Data(), {.epochs = 2, .seed = 8}));
  ASSERT_OK(Fit(large_batches, Data(), {.epochs = 3, .seed = 8}));
  ASSERT_OK(Fit(of_another_seed, Data(), {.epochs = 2, .seed = 9}));
  EXPECT_EQ(RowsOfEpoch(small_batches, 1, 20), RowsOfEpoch(large_batches, 1, 20));
  EXPECT_EQ(RowsOfEpoch(small_batches, 2, 20), RowsOfEpoch(large_batches, 2, 20));
  EXPECT_NE(RowsOfEpoch(small_batches, 1, 20), RowsOfEpoch(of_another_seed, 1, 20));
}

TEST(Fit, TrainsOnTheRowsOfTheEpochAndEvaluatesThoseThatStay) {
  constexpr int64_t kContext = 8;
  std::vector<int32_t> ids(kRows * kContext + 1);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
  const auto tokens =
      *TokenDataset::Create(*TokenIds::Of(ids), kContext, static_cast<int64_t>(ids.size()));
  const auto first_id = [](const Dataset& data) {
    int32_t row[kContext];
    data.CopyInput(0, 0, absl::MakeSpan(reinterpret_cast<std::byte*>(row), sizeof(row)));
    return row[0];
  };
  const auto of_epoch = [&](int64_t epoch) { return first_id(*tokens->ForEpoch(8, epoch)); };
  ASSERT_NE(of_epoch(1), of_epoch(2));
  RecordingTrainer trainer;
  std::vector<int32_t> seen;
  trainer.during_step = [&](const Dataset& data) { seen.push_back(first_id(data)); };
  ASSERT_OK(Fit(trainer, {tokens, SmallData(4)}, {.epochs = 2, .seed = 8}));
  const int32_t a = of_epoch(1), b = of_epoch(2);
  EXPECT_THAT(seen, ElementsAre(a, a, a, a, b, b, b, b));
  seen.clear();
  trainer.GoOnFrom(6);
  ASSERT_OK(Fit(trainer, {tokens, SmallData(4)},
                {.epochs = 2, .seed = 8, .start = {.epoch = 2, .rows = 10}}));
  EXPECT_THAT(seen, ElementsAre(b, b));
}

TEST(Fit, ReportsItsProgressAfterEachStep) {
  RecordingTrainer trainer;
  std::vector<FitProgress> progress;
  FitOptions options{.epochs = 2};
  options.on_step = [&](const FitProgress& at) { progress.push_back(at); };
  ASSERT_OK(Fit(trainer, Data(), options));
  ASSERT_EQ(progress.size(), 8);
  double sum = 0.0;
  for (size_t i = 0; i < progress.size(); ++i) {
    const FitProgress& at = progress[i];
    const auto step = static_cast<int64_t>(i) % 4 + 1;
    sum = (step == 1 ? 0.0 : sum) + trainer.losses[i];
    EXPECT_EQ(at.epoch, static_cast<int>(i) / 4 + 1);
    EXPECT_EQ(at.step, step);
    EXPECT_EQ(at.steps, 4);
    EXPECT_EQ(at.run_step, static_cast<int64_t>(i) + 1);
    EXPECT_EQ(at.step_result.loss, trainer.losses[i]);
    EXPECT_DOUBLE_EQ(at.loss, sum / static_cast<double>(step));
    EXPECT_GT(at.samples_per_second, 0.0);
    EXPECT_GE(at.remaining, absl::ZeroDuration());
  }
}

TEST(Fit, EvaluatesAfterEachEpoch) {
  RecordingTrainer trainer;
  std::vector<EpochResult> epochs;
  FitOptions options{.epochs = 2};
  options.on_epoch = [&](const EpochResult& epoch) { epochs.push_back(epoch); };
  ASSERT_OK(Fit(trainer, Data(), options));
  ASSERT_EQ(epochs.size(), 2);
  EXPECT_EQ(trainer.evaluations, 2);
  for (int i = 0; i < 2; ++i) {
    const EpochResult& epoch = epochs[static_cast<size_t>(i)];
    const auto losses = absl::MakeConstSpan(trainer.losses).subspan(4 * static_cast<size_t>(i), 4);
    EXPECT_EQ(epoch.epoch, i + 1);
    EXPECT_DOUBLE_EQ(epoch.loss, (losses[0] + losses[1] + losses[2] + losses[3]) / 4.0);
    EXPECT_DOUBLE_EQ(epoch.train_accuracy, 2.0 / kBatch);
    EXPECT_DOUBLE_EQ(epoch.test_accuracy, 3.0 / 4.0);
    EXPECT_DOUBLE_EQ(epoch.test_loss, 0.25);
    EXPECT_GT(epoch.samples_per_second, 0.0);
    EXPECT_NEAR(absl::ToDoubleSeconds(epoch.training) * epoch.samples_per_second, 4.0 * kBatch,
                1e-3 * kBatch);
  }
}

// Returns "3: 0.75 of epoch 1" for each evaluation, at 4 steps an epoch.
std::vector<std::string> EvaluationsOf(RecordingTrainer& trainer, FitOptions options) {
  std::vector<std::string> evaluations;
  const auto note = [&](const EpochResult& row) {
    EXPECT_EQ(row.step, trainer.steps());
    evaluations.push_back(absl::StrCat(row.step, ": ", row.share, " of epoch ", row.epoch));
  };
  options.on_evaluation = note;
  options.on_epoch = note;
  EXPECT_OK(Fit(trainer, Data(), options));
  EXPECT_EQ(trainer.evaluations, std::ssize(evaluations));
  return evaluations;
}

TEST(Fit, EvaluatesAfterMultiplesOfSoManySteps) {
  RecordingTrainer trainer;
  EXPECT_THAT(
      EvaluationsOf(trainer, {.epochs = 2, .evaluate_every_steps = 3}),
      ElementsAre("3: 0.75 of epoch 1", "4: 1 of epoch 1", "6: 0.5 of epoch 2", "8: 1 of epoch 2"));
  // Nothing is prepared that an evaluation would undo.
  for (const size_t step : {3, 4, 6, 8}) EXPECT_THAT(trainer.announced[step - 1], IsEmpty());
  EXPECT_EQ(trainer.announced[4].size(), kBatch);
  RecordingTrainer of_epochs;  // once at each end
  EXPECT_THAT(EvaluationsOf(of_epochs, {.epochs = 2, .evaluate_every_steps = 4}),
              ElementsAre("4: 1 of epoch 1", "8: 1 of epoch 2"));
}

TEST(Fit, EndsAfterSoManyStepsWithAnEvaluation) {
  RecordingTrainer within;
  EXPECT_THAT(EvaluationsOf(within, {.steps = 6}),
              ElementsAre("4: 1 of epoch 1", "6: 0.5 of epoch 2"));
  EXPECT_EQ(within.steps(), 6);
  RecordingTrainer at_the_end;
  EXPECT_THAT(EvaluationsOf(at_the_end, {.steps = 8}),
              ElementsAre("4: 1 of epoch 1", "8: 1 of epoch 2"));
  RecordingTrainer done;
  done.GoOnFrom(6);
  EXPECT_THAT(
      EvaluationsOf(done, {.steps = 6, .start = {.epoch = 2, .rows = 10, .metrics = Metrics()}}),
      IsEmpty());
  RecordingTrainer stopped;  // before it was evaluated
  stopped.GoOnFrom(6);
  EXPECT_THAT(EvaluationsOf(stopped, {.steps = 6, .start = {.epoch = 2, .rows = 10}}),
              ElementsAre("6: 0.5 of epoch 2"));
}

TEST(Fit, EvaluatesOnceWhereItGoesOn) {
  RecordingTrainer before;
  before.GoOnFrom(2);
  FitOptions options = {.steps = 3, .evaluate_every_steps = 2, .start = {.rows = 10}};
  EXPECT_THAT(EvaluationsOf(before, options),
              ElementsAre("2: 0.5 of epoch 1", "3: 0.75 of epoch 1"));
  RecordingTrainer after;
  after.GoOnFrom(2);
  options.start.metrics = Metrics{.test_loss = 1.0};
  EXPECT_THAT(EvaluationsOf(after, options), ElementsAre("3: 0.75 of epoch 1"));
}

// Returns the result of Fit if the stop flag is raised during step `step` of 4 in the first of 3
// epochs.
FitResult StopDuringStep(int64_t step, RecordingTrainer& trainer) {
  bool stop = false;
  FitOptions options{.epochs = 3, .stop = [&] { return stop; }};
  options.on_step = [&](const FitProgress& at) { stop = stop || at.step == step; };
  return Fit(trainer, Data(), options).value();
}

TEST(Fit, StopsAfterThePresentStep) {
  RecordingTrainer trainer;
  const FitResult result = StopDuringStep(2, trainer);
  EXPECT_TRUE(result.stopped);
  EXPECT_EQ(result.steps, 2);
  EXPECT_EQ(result.epochs, 0);
  EXPECT_EQ(trainer.evaluations, 0);
}

TEST(Fit, StopsAfterTheLastStepOfAnEpochWithoutEvaluating) {
  RecordingTrainer trainer;
  const FitResult result = StopDuringStep(4, trainer);
  EXPECT_TRUE(result.stopped);
  EXPECT_EQ(result.steps, 4);
  EXPECT_EQ(trainer.evaluations, 0);
}

TEST(Fit, StopsDuringAnEvaluationWithoutReportingIt) {
  RecordingTrainer trainer;
  bool stop = false;
  trainer.during_evaluation = [&] { stop = true; };
  int reported = 0;
  ASSERT_OK_AND_ASSIGN(const FitResult result,
                       Fit(trainer, Data(),
                           {.epochs = 3,
                            .stop = [&] { return stop; },
                            .on_epoch = [&](const EpochResult&) { ++reported; }}));
  EXPECT_TRUE(result.stopped);
  EXPECT_EQ(result.epochs, 0);
  EXPECT_EQ(reported, 0);
}

TEST(Fit, DoesNothingIfItIsStoppedAtOnce) {
  RecordingTrainer trainer;
  ASSERT_OK_AND_ASSIGN(const FitResult result, Fit(trainer, Data(), {.stop = [] { return true; }}));
  EXPECT_TRUE(result.stopped);
  EXPECT_EQ(trainer.steps(), 0);
}

TEST(Fit, ReturnsTheErrorOfAskingWhetherToStop) {
  RecordingTrainer trainer;
  const auto fails = [] { return absl::DataLossError("no reason"); };
  EXPECT_THAT(Fit(trainer, Data(), {.stop = fails}),
              StatusIs(absl::StatusCode::kDataLoss, ::testing::Eq("no reason")));
  EXPECT_EQ(trainer.steps(), 0);
}

TEST(Fit, HashesTheLossesOfAllSteps) {
  const auto hash = [](int epochs, uint64_t seed) {
    RecordingTrainer trainer;
    return Fit(trainer, Data(), {.epochs = epochs, .seed = seed}).value().step_losses_hash;
  };
  EXPECT_EQ(hash(2, 8), hash(2, 8));
  EXPECT_NE(hash(2, 8), hash(2, 9));
  EXPECT_NE(hash(2, 8), hash(1, 8));
  EXPECT_EQ(hash(2, 8).size(), 32);
}

TEST(Fit, RefusesLessThanOneBatchOfRows) {
  RecordingTrainer trainer(kRows + 1);
  EXPECT_EQ(StepsPerEpoch(*Data().train, trainer.plan()), 0);
  EXPECT_THAT(Fit(trainer, Data(), {}), IsRefused(AllOf(HasSubstr("23 rows"), HasSubstr("24"))));
}

TEST(Fit, TakesExactlyOneBatchOfRows) {
  RecordingTrainer trainer(kRows);
  ASSERT_OK_AND_ASSIGN(const FitResult result, Fit(trainer, Data(), {}));
  EXPECT_EQ(result.steps, 1);
}

// Returns at which steps, and where in the data, a run of 2 epochs of 4 steps is saved.
std::vector<std::string> SavesOf(const RecordingTrainer& trainer) {
  std::vector<std::string> saves;
  for (const RecordingTrainer::BegunSave& save : trainer.saves) {
    saves.push_back(absl::StrCat(save.step, ": epoch ", save.position.epoch, ", row ",
                                 save.position.rows,
                                 save.position.metrics.has_value() ? ", evaluated" : ""));
  }
  return saves;
}

FitOptions WithCheckpoints(int64_t every_steps) {
  FitOptions options = {.epochs = 2, .checkpoints = {.every_steps = every_steps}};
  options.checkpoints.folder = RecordingTrainer::kFolder;
  return options;
}

TEST(Fit, SavesEverySoManyStepsAndAfterEvaluations) {
  RecordingTrainer trainer;
  ASSERT_OK(Fit(trainer, Data(), WithCheckpoints(3)));
  EXPECT_THAT(SavesOf(trainer), ElementsAre("3: epoch 1, row 15", "4: epoch 2, row 0, evaluated",
                                            "6: epoch 2, row 10", "8: epoch 3, row 0, evaluated"));
  EXPECT_FALSE(trainer.is_saving());
  RecordingTrainer never;
  ASSERT_OK(Fit(never, Data(), {.epochs = 2}));
  EXPECT_THAT(SavesOf(never), IsEmpty());
}

TEST(Fit, SavesTheTestLossOfEvaluatedSteps) {
  RecordingTrainer trainer;
  FitOptions options = WithCheckpoints(3);  // does not divide the steps of an epoch
  options.evaluate_every_steps = 3;
  ASSERT_OK(Fit(trainer, Data(), options));
  EXPECT_THAT(SavesOf(trainer),
              ElementsAre("3: epoch 1, row 15, evaluated", "4: epoch 2, row 0, evaluated",
                          "6: epoch 2, row 10, evaluated", "8: epoch 3, row 0, evaluated"));
}

TEST(Fit, SavesWheneverItIsWanted) {
  RecordingTrainer trainer;
  FitOptions options = WithCheckpoints(0);
  options.epochs = 3;
  options.checkpoints.wanted = [&] { return trainer.steps() == 2 || trainer.steps() == 8; };
  ASSERT_OK(Fit(trainer, Data(), options));
  EXPECT_THAT(SavesOf(trainer), ElementsAre("2: epoch 1, row 10", "8: epoch 3, row 0, evaluated",
                                            "12: epoch 4, row 0, evaluated"));
}

TEST(Fit, SavesWhenItIsStopped) {
  RecordingTrainer trainer;
  FitOptions options = WithCheckpoints(100);
  options.stop = [&] { return trainer.steps() == 6; };
  ASSERT_OK_AND_ASSIGN(const FitResult result, Fit(trainer, Data(), options));
  EXPECT_TRUE(result.stopped);
  EXPECT_THAT(SavesOf(trainer), ElementsAre("4: epoch 2, row 0, evaluated", "6: epoch 2, row 10"));
}

TEST(Fit, SavesOnceWhatIsStoppedRightAfterASave) {
  RecordingTrainer trainer;
  FitOptions options = WithCheckpoints(2);
  options.stop = [&] { return trainer.steps() == 2; };
  ASSERT_OK(Fit(trainer, Data(), options));
  EXPECT_THAT(SavesOf(trainer), ElementsAre("2: epoch 1, row 10"));
}

TEST(Fit, EndsAndSavesWhereAnEvaluationMeetsTheCondition) {
  for (const int64_t end : {3, 4, 6}) {  // within an epoch, at its end, and within another
    SCOPED_TRACE(end);
    RecordingTrainer trainer;
    FitOptions options = WithCheckpoints(100);
    options.evaluate_every_steps = 3;
    options.stop_when = [&](const Metrics&) { return trainer.steps() == end; };
    ASSERT_OK_AND_ASSIGN(const FitResult result, Fit(trainer, Data(), options));
    EXPECT_TRUE(result.condition_met);
    EXPECT_FALSE(result.stopped);
    EXPECT_EQ(result.steps, end);
    EXPECT_EQ(result.epochs, end / 4);
    EXPECT_EQ(trainer.saves.back().step, end);
    EXPECT_EQ(trainer.saves.back().position.metrics, result.metrics);
  }
}

// Four steps make an epoch. The evaluation that ends the run is the last of those without a gain.
TEST(Fit, EndsAfterAsManyEvaluationsWithoutAGainAsItHasPatience) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  struct Case {
    std::vector<double> losses;
    int64_t every, patience, steps;
    std::optional<double> best;
  };
  for (const Case& of :
       {Case{{3, 2, 2, 2.5, 1}, 0, 2, 16, 2}, Case{{3, 2, 2, 1, 4}, 0, 2, 20, 1},
        Case{{3, 2, 2, 2.5, 1}, 0, 1, 12, 2}, Case{{3, 4, 5}, 3, 2, 6, 3},
        Case{{kNan, kNan, 1}, 0, 2, 8, std::nullopt}, Case{{kNan, 5, kNan, kNan}, 0, 2, 16, 5}}) {
    SCOPED_TRACE(absl::StrCat(of.steps, ", ", of.patience));
    FitOptions options = WithCheckpoints(1);
    options.epochs = 5;
    options.evaluate_every_steps = of.every;
    options.patience = of.patience;
    RecordingTrainer trainer;
    trainer.test_losses = of.losses;
    ASSERT_OK_AND_ASSIGN(const FitResult result, Fit(trainer, Data(), options));
    EXPECT_EQ(result.steps, of.steps);
    EXPECT_EQ(result.out_of_patience, of.steps < 20);
    EXPECT_EQ(result.best, of.best);
    EXPECT_EQ(trainer.saves.back().step, of.steps);
    if (of.every > 0) continue;
    // From wherever it was saved, it ends at the same step.
    for (const RecordingTrainer::BegunSave& save : trainer.saves) {
      RecordingTrainer resumed;
      resumed.GoOnFrom(save.step);
      resumed.test_losses.assign(of.losses.begin() + save.position.epoch - 1, of.losses.end());
      options.start = save.position;
      ASSERT_OK_AND_ASSIGN(const FitResult same, Fit(resumed, Data(), options));
      EXPECT_EQ(same.steps, of.steps) << save.step;
      EXPECT_EQ(same.best, of.best) << save.step;
    }
  }
}

TEST(Fit, JudgesTheFiguresThatItReports) {
  RecordingTrainer trainer;
  std::vector<Metrics> reported, judged;
  FitOptions options = {.epochs = 2, .evaluate_every_steps = 3};
  options.on_epoch = [&](const EpochResult& row) { reported.push_back(row.metrics()); };
  options.on_evaluation = options.on_epoch;
  options.stop_when = [&](const Metrics& metrics) {
    judged.push_back(metrics);
    return false;
  };
  ASSERT_OK_AND_ASSIGN(const FitResult result, Fit(trainer, Data(), options));
  EXPECT_FALSE(result.condition_met);
  EXPECT_EQ(judged.size(), 4);
  EXPECT_EQ(judged, reported);
  EXPECT_EQ(judged[0], (Metrics{judged[0].train_loss, 2.0 / kBatch, 0.25, 3.0 / 4.0}));
  EXPECT_EQ(result.metrics, judged.back());
}

// A run that was saved where it ended is not trained further.
TEST(Fit, DoesNothingWhereWhatItGoesOnFromMeetsTheCondition) {
  RecordingTrainer trainer;
  trainer.GoOnFrom(4);
  FitOptions options = {.epochs = 2, .start = {.epoch = 2, .metrics = Metrics{.test_loss = 0.5}}};
  options.stop_when = [](const Metrics& metrics) { return metrics.test_loss == 0.5; };
  ASSERT_OK_AND_ASSIGN(const FitResult result, Fit(trainer, Data(), options));
  EXPECT_TRUE(result.condition_met);
  EXPECT_EQ(result.steps, 4);
  EXPECT_EQ(trainer.evaluations, 0);
}

TEST(Fit, GoesOnAsIfItHadNeverStopped) {
  RecordingTrainer whole;
  std::vector<EpochResult> expected;
  FitOptions options = WithCheckpoints(1);
  options.on_epoch = [&](const EpochResult& row) { expected.push_back(row); };
  ASSERT_OK_AND_ASSIGN(const FitResult result, Fit(whole, Data(), options));
  for (const RecordingTrainer::BegunSave& save : whole.saves) {
    SCOPED_TRACE(save.step);
    RecordingTrainer trainer;
    trainer.GoOnFrom(save.step);
    options.start = save.position;
    std::vector<EpochResult> rows;
    options.on_epoch = [&](const EpochResult& row) { rows.push_back(row); };
    ASSERT_OK_AND_ASSIGN(const FitResult rest, Fit(trainer, Data(), options));
    EXPECT_EQ(rest.step_losses_hash, result.step_losses_hash);
    EXPECT_EQ(rest.steps, result.steps);
    EXPECT_EQ(rest.epochs, 2);
    EXPECT_EQ(trainer.visited, std::vector<int64_t>(whole.visited.begin() + save.step * kBatch,
                                                    whole.visited.end()));
    ASSERT_EQ(rows.size(), static_cast<size_t>(3 - save.position.epoch));
    for (const EpochResult& row : rows) {
      const EpochResult& other = expected[static_cast<size_t>(row.epoch - 1)];
      EXPECT_EQ(row.loss, other.loss);
      EXPECT_EQ(row.train_accuracy, other.train_accuracy);
    }
  }
}

// A process was replaced: the newest checkpoint is older than the step at which the run continues.
TEST(Fit, SavesWhereItGoesOnFromIfThatIsNotSaved) {
  const DataPosition in_epoch_2 = {.epoch = 2, .rows = 10};
  FitOptions options = WithCheckpoints(3);
  options.start_is_saved = false;
  options.start = in_epoch_2;
  RecordingTrainer trainer;
  trainer.GoOnFrom(6);
  ASSERT_OK(Fit(trainer, Data(), options));
  EXPECT_THAT(SavesOf(trainer), ElementsAre("7: epoch 2, row 15", "8: epoch 3, row 0, evaluated"));

  RecordingTrainer stopped;
  stopped.GoOnFrom(6);
  options.stop = [] { return true; };
  ASSERT_OK(Fit(stopped, Data(), options));
  EXPECT_THAT(SavesOf(stopped), ElementsAre("6: epoch 2, row 10"));

  RecordingTrainer done;
  done.GoOnFrom(8);
  options.start = {.epoch = 3, .metrics = Metrics{.test_loss = 0.25}};
  ASSERT_OK(Fit(done, Data(), options));
  EXPECT_THAT(SavesOf(done), ElementsAre("8: epoch 3, row 0, evaluated"));
  options.start_is_saved = true;
  RecordingTrainer saved;
  saved.GoOnFrom(8);
  ASSERT_OK(Fit(saved, Data(), options));
  EXPECT_THAT(SavesOf(saved), IsEmpty());
}

TEST(Fit, EvaluatesWhatWasSavedBeforeTheEvaluation) {
  RecordingTrainer trainer;
  trainer.GoOnFrom(4);
  FitOptions options = {.epochs = 1, .start = {.epoch = 1, .rows = 20, .loss_sum = 60}};
  std::vector<EpochResult> rows;
  options.on_epoch = [&](const EpochResult& row) { rows.push_back(row); };
  ASSERT_OK(Fit(trainer, Data(), options));
  EXPECT_EQ(trainer.steps(), 4);
  ASSERT_EQ(rows.size(), 1);
  EXPECT_EQ(rows[0].loss, 3.0);
  EXPECT_EQ(trainer.evaluations, 1);
}

TEST(Fit, GoesOnWhereSavesFail) {
  RecordingTrainer trainer;
  trainer.fails_to_finish_at = 4;
  FitOptions options = WithCheckpoints(2);
  std::vector<absl::Status> reports;
  options.checkpoints.on_save = [&](const SaveReport& report) {
    reports.push_back(report.path.status());
    EXPECT_EQ(report.step, 2 * std::ssize(reports));
  };
  ASSERT_OK_AND_ASSIGN(FitResult result, Fit(trainer, Data(), options));
  EXPECT_EQ(result.steps, 8);
  EXPECT_OK(result.last_save);
  ASSERT_EQ(reports.size(), 4);
  EXPECT_THAT(reports[0], StatusIs(absl::StatusCode::kDataLoss, ::testing::Eq("disk failed")));
  EXPECT_OK(reports[3]);

  RecordingTrainer hopeless;
  hopeless.fails_to_begin = true;
  ASSERT_OK_AND_ASSIGN(result, Fit(hopeless, Data(), WithCheckpoints(2)));
  EXPECT_EQ(result.steps, 8);
  EXPECT_THAT(result.last_save,
              StatusIs(absl::StatusCode::kResourceExhausted, ::testing::Eq("no memory")));
}

TEST(Fit, ReturnsTheErrorOfAStep) {
  RecordingTrainer trainer;
  trainer.fails_at_step = 3;
  DataPosition position;
  EXPECT_THAT(Fit(trainer, Data(), {.position = &position}),
              StatusIs(absl::StatusCode::kDataLoss, ::testing::Eq("step failed")));
  EXPECT_EQ(trainer.steps(), 3);
  EXPECT_EQ(position.epoch, 1);
  EXPECT_EQ(position.rows, 2 * kBatch);
  trainer.fails_at_step = 0;
  ASSERT_OK(Fit(trainer, Data(), {.start = position, .position = &position}));
  EXPECT_EQ(position.epoch, 2);
  EXPECT_EQ(position.rows, 0);
}

}  // namespace
}  // namespace stagecoach::engine
