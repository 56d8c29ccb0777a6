// partition_test.cc and cuda_training_test.cc check that the outputs do not depend on the plan.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "engine/comm/rendezvous.h"
#include "engine/nn/layers/linear.h"
#include "engine/train/trainer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/comm/on_ranks.h"
#include "tests/engine/train/runs/small_run.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::IsOk;
using ::stagecoach::testing::IsRefused;
using ::stagecoach::testing::StatusIs;
using ::testing::Each;
using ::testing::ElementsAre;

constexpr int64_t kPredictedBatchRows = 16;

// Returns a plan of two stages of two replicas, each with two micro-batches of four samples.
partition::Plan MeshPlan(const Model& model) {
  return EvenPlan(model, 2, "1f1b", 4, kPredictedBatchRows / 4, 0, {2, 2});
}

// Returns a model whose outputs are its inputs.
Model PassingModel() {
  static const ProbeHooks kNothing;
  return {.input = Shape{kSmallFeatures}, .layers = {Probe(&kNothing), Probe(&kNothing)}};
}

// Samples without targets; feature f of row r is r + f / 32.
class Unlabeled final : public Dataset {
 public:
  explicit Unlabeled(int64_t rows, int64_t features = kSmallFeatures)
      : Dataset({.inputs = {{.name = "features", .shape = Shape{features}}}}), rows_(rows) {}
  int64_t rows() const override { return rows_; }

 private:
  void ReadInput(int, int64_t row, std::byte* out) const override {
    for (int64_t f = 0; f < spec().inputs[0].shape.elements(); ++f) {
      reinterpret_cast<float*>(out)[f] = static_cast<float>(row) + static_cast<float>(f) / 32.0F;
    }
  }
  void ReadTarget(int64_t, std::byte*) const override { ADD_FAILURE() << "there is no target"; }

  const int64_t rows_;
};

std::vector<float> ValuesOf(const Dataset& data) {
  std::vector<float> values;
  std::vector<float> row(kSmallFeatures);
  for (int64_t i = 0; i < data.rows(); ++i) {
    data.CopyNumbers(0, i, absl::MakeSpan(row));
    values.insert(values.end(), row.begin(), row.end());
  }
  return values;
}

TEST(Predict, GivesTheRowsInOrderAndNeedsNoTargets) {
  const auto trainer = MakeTrainer(PassingModel(), MeshPlan(PassingModel()), {});
  // The numbers are less than a replica's share of a batch, a whole batch, and batches that end
  // within each share.
  for (const int64_t rows : {1, 16, 21, 2 * 16 + 11}) {
    const Unlabeled data(rows);
    EXPECT_EQ(trainer->Predict(data).value(), ValuesOf(data)) << rows << " rows";
  }
}

TEST(Predict, HandsOverABatchAtATime) {
  const auto trainer = MakeTrainer(PassingModel(), MeshPlan(PassingModel()), {});
  std::vector<std::string> taken;
  ASSERT_OK(trainer->Predict(Unlabeled(37), [&](const Outputs& outputs) {
    taken.push_back(absl::StrCat(outputs.first_row, "+", outputs.rows, ":", outputs.values.size()));
    return absl::OkStatus();
  }));
  EXPECT_THAT(taken, ElementsAre("0+16:320", "16+16:320", "32+5:100"));
}

TEST(Predict, ChangesNothingAndTakesNoMemoryThatIsNotInThePlan) {
  const Model model = SmallModel();
  const auto data = SmallData(kPredictedBatchRows);
  const auto train = [&](bool predicts) {
    const auto trainer = MakeTrainer(model, MeshPlan(model), {});
    for (int step = 0; step < 2; ++step) {
      EXPECT_OK(trainer->Step(*data, Rows(0, kPredictedBatchRows)));
      if (predicts) {
        EXPECT_OK(trainer->Predict(*data));
      }
    }
    const std::vector<DeviceReport> devices = trainer->Devices().value();
    for (const DeviceReport& device : devices) {
      EXPECT_EQ(device.measured_peak_bytes, device.predicted_peak_bytes);
    }
    return trainer->ParametersHash().value();
  };
  EXPECT_EQ(train(true), train(false));
}

// The results of an evaluation are included if the data has labels.
TEST(Predict, EvaluatesWhatHasTargets) {
  const auto data = SmallData(kPredictedBatchRows + 5);
  const auto trainer = MakeTrainer(SmallModel(), MeshPlan(SmallModel()), {});
  const Evaluation expected = trainer->Evaluate(*data).value();
  const auto take = [](const Outputs&) { return absl::OkStatus(); };
  const Evaluation evaluation = trainer->Predict(*data, take).value();
  EXPECT_EQ(evaluation.rows, data->rows());
  EXPECT_EQ(evaluation.loss, expected.loss);
  EXPECT_EQ(evaluation.correct, expected.correct);
  EXPECT_GT(evaluation.loss, 0.0);
  const auto passing = MakeTrainer(PassingModel(), MeshPlan(PassingModel()), {});
  EXPECT_EQ(passing->Predict(Unlabeled(7), take).value().rows, 7);
}

// A plan for prediction is made from a training plan.
class InferencePlan : public ::testing::Test {
 protected:
  InferencePlan() {
    const auto trainer = MakeTrainer(SmallModel(), MeshPlan(SmallModel()), {});
    EXPECT_OK(trainer->Step(*data_, Rows(0, kPredictedBatchRows)));
    EXPECT_OK(trainer->Save(folder_.path().string()));
    hash_ = trainer->ParametersHash().value();
    outputs_ = trainer->Predict(*data_).value();
    loss_ = trainer->Evaluate(*data_).value().loss;
  }

  static PlanOptions Options(int devices, int micro_batches, int replicas = 1) {
    return {.devices = devices,
            .replication = {.replicas = replicas, .gradient_blocks = replicas},
            .predicts = true,
            .micro_batches = micro_batches,
            .micro_batch_rows = kPredictedBatchRows / 4};
  }
  static std::unique_ptr<Trainer> MakePredictor(const PlanOptions& options) {
    return Trainer::Create(PrepareRun(SmallModel(), options).value(),
                           {.optimizer = options.optimizer})
        .value();
  }

  const testing::TestFolder folder_;
  const std::shared_ptr<const Dataset> data_ = SmallData(2 * kPredictedBatchRows + 5);
  std::string hash_;
  std::vector<float> outputs_;
  double loss_ = 0.0;
};

TEST_F(InferencePlan, GivesTheSameBitsHoweverItIsCut) {
  for (const PlanOptions& options :
       {Options(1, 1), Options(1, 16), Options(2, 3), Options(3, 7), Options(8, 2),
        Options(1, 4, 2), Options(3, 4, 2), Options(2, 4, 4)}) {
    SCOPED_TRACE(absl::StrCat(options.devices, " devices, ", options.micro_batches,
                              " micro-batches, ", options.replication.replicas, " replicas"));
    const auto trainer = MakePredictor(options);
    ASSERT_OK(trainer->Restore(folder_.path().string()));
    EXPECT_EQ(trainer->ParametersHash().value(), hash_);
    EXPECT_EQ(trainer->Predict(*data_).value(), outputs_);
    EXPECT_EQ(trainer->Evaluate(*data_).value().loss, loss_);
    const std::vector<DeviceReport> devices = trainer->Devices().value();
    for (const DeviceReport& device : devices) {
      EXPECT_EQ(device.measured_peak_bytes, device.predicted_peak_bytes);
    }
  }
}

TEST_F(InferencePlan, TakesNoMemoryForTraining) {
  const PlanOptions options = Options(1, 4);
  PlanOptions training = options;
  training.predicts = false;
  training.schedule = "gpipe";
  const auto peak = [](const PlanOptions& plan) {
    return PrepareRun(SmallModel(), plan).value().compiled.of(Rank(0)).peak_bytes();
  };
  int64_t parameter_bytes = 0;
  const PreparedRun run = PrepareRun(SmallModel(), options).value();
  for (const ModelParameter& parameter : run.profile.parameters.all()) {
    parameter_bytes += partition::AlignTensor(4 * parameter.shape.elements());
  }
  const schedule::StageMemory& memory = run.compiled.of(StageId(0)).memory;
  EXPECT_EQ(memory.parameter_bytes, parameter_bytes);
  EXPECT_EQ(memory.gradient_bytes + memory.optimizer_bytes, 0);
  // Inference has neither gradients nor the two optimizer states.
  EXPECT_LT(peak(options), peak(training) - 3 * parameter_bytes);
}

TEST_F(InferencePlan, IsBalancedByWhatTheForwardPassTakes) {
  const PreparedRun run = PrepareRun(SmallModel(), Options(2, 4)).value();
  double all_ns = 0.0;
  for (const partition::LayerCost& layer : run.profile.layers) all_ns += layer.forward_ns;
  for (int stage = 0; stage < 2; ++stage) {
    double own_ns = 0.0;
    for (int layer = run.plan().first(stage); layer <= run.plan().last(stage); ++layer) {
      own_ns += run.profile.layers[static_cast<size_t>(layer)].forward_ns;
    }
    EXPECT_NEAR(run.compiled.of(StageId(stage)).time_share, own_ns / all_ns, 1e-9);
  }
}

TEST_F(InferencePlan, CannotTrain) {
  const auto trainer = MakePredictor(Options(2, 4));
  const auto refused =
      StatusIs(absl::StatusCode::kFailedPrecondition, "no backward pass: it can only predict");
  EXPECT_THAT(trainer->Step(*data_, Rows(0, kPredictedBatchRows)), refused);
  EXPECT_THAT(trainer->Save(folder_.path().string()), refused);
  EXPECT_OK(trainer->Evaluate(*data_));
}

TEST_F(InferencePlan, RefusesTheCheckpointOfAnotherModel) {
  Model shorter = SmallModel();
  shorter.layers.pop_back();
  const auto trainer =
      Trainer::Create(PrepareRun(shorter, Options(2, 4)).value(), TrainerOptions{}).value();
  EXPECT_THAT(trainer->Restore(folder_.path().string()),
              StatusIs(absl::StatusCode::kFailedPrecondition, "of another model"));
}

TEST(Predict, EndsWithTheErrorOfTheOneThatTakes) {
  const auto trainer = MakeTrainer(PassingModel(), MeshPlan(PassingModel()), {});
  int calls = 0;
  EXPECT_THAT(trainer->Predict(Unlabeled(40),
                               [&](const Outputs&) {
                                 ++calls;
                                 return absl::DataLossError("the disk is full");
                               }),
              StatusIs(absl::StatusCode::kDataLoss, ::testing::Eq("the disk is full")));
  EXPECT_EQ(calls, 1);
  EXPECT_OK(trainer->Predict(Unlabeled(3)));
}

TEST(Predict, RefusesDataOfOtherFeatures) {
  const auto trainer = MakeTrainer(PassingModel(), MeshPlan(PassingModel()), {});
  EXPECT_THAT(trainer->Predict(Unlabeled(4, kSmallFeatures + 1)), IsRefused("takes 20"));
}

std::unique_ptr<Trainer> TrainerOfProcess(const Model& model, Rendezvous& own) {
  return MakeTrainer(model, MeshPlan(model), {.rendezvous = &own, .deadline = absl::Minutes(5)});
}

// One sample's outputs are so many that those of a replica exceed the limit of one message.
TEST(Predict, GivesEveryProcessAllRows) {
  const Model wide = {.input = Shape{kSmallFeatures}, .layers = {Linear(8), Linear(50'000)}};
  const Unlabeled data(kPredictedBatchRows + 13);
  const auto expected = MakeTrainer(wide, MeshPlan(wide), {})->Predict(data).value();
  std::vector<std::vector<float>> outputs(4);
  EXPECT_THAT(OnRanks(4,
                      [&](Rendezvous& own) -> absl::Status {
                        const auto trainer = TrainerOfProcess(wide, own);
                        ASSIGN_OR_RETURN(outputs[static_cast<size_t>(own.rank())],
                                         trainer->Predict(data));
                        return absl::OkStatus();
                      }),
              Each(IsOk()));
  for (const std::vector<float>& all : outputs) EXPECT_TRUE(all == expected);
}

TEST(Predict, AProcessThatCannotTakeThemEndsAllCalls) {
  const std::vector<absl::Status> ends = OnRanks(4, [](Rendezvous& own) -> absl::Status {
    const auto take = [&](const Outputs&) {
      return own.rank() == 1 ? absl::DataLossError("the disk is full") : absl::OkStatus();
    };
    return TrainerOfProcess(PassingModel(), own)->Predict(Unlabeled(40), take).status();
  });
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_THAT(ends[static_cast<size_t>(rank)],
                StatusIs(rank == 1 ? absl::StatusCode::kDataLoss : absl::StatusCode::kAborted,
                         "the disk is full"));
  }
}

}  // namespace
}  // namespace stagecoach::engine
