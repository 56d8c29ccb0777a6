// That the outputs do not depend on the plan is for partition_test.cc and cuda_training_test.cc.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "engine/launch/rendezvous.h"
#include "engine/model/layers/linear.h"
#include "engine/train/trainer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/train/small_run.h"
#include "tests/engine/transport/on_ranks.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::IsOk;
using ::stagecoach::testing::StatusIs;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kPredictedBatchRows = 16;

// Two stages of two replicas, each with two micro-batches of four rows.
partition::Plan MeshPlan(const Model& model) {
  return EvenPlan(model, 2, "1f1b", 4, kPredictedBatchRows / 4, 0, {2, 2});
}

// Its outputs are its inputs.
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
  // Less than a replica's share of a batch, a whole batch, and batches that end within each share.
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

TEST(Predict, EndsWithTheErrorOfTheOneThatTakes) {
  const auto trainer = MakeTrainer(PassingModel(), MeshPlan(PassingModel()), {});
  int calls = 0;
  EXPECT_THAT(trainer->Predict(Unlabeled(40),
                               [&](const Outputs&) {
                                 ++calls;
                                 return absl::DataLossError("the disk is full");
                               }),
              StatusIs(absl::StatusCode::kDataLoss, "the disk is full"));
  EXPECT_EQ(calls, 1);
  EXPECT_OK(trainer->Predict(Unlabeled(3)));
}

TEST(Predict, RefusesDataOfOtherFeatures) {
  const auto trainer = MakeTrainer(PassingModel(), MeshPlan(PassingModel()), {});
  EXPECT_THAT(trainer->Predict(Unlabeled(4, kSmallFeatures + 1)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("takes 20")));
}

std::unique_ptr<Trainer> TrainerOfProcess(const Model& model, Rendezvous& own) {
  return MakeTrainer(model, MeshPlan(model), {.rendezvous = &own, .deadline = absl::Minutes(5)});
}

// One sample's outputs are so many that those of a replica pass the limit of one message.
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
    return TrainerOfProcess(PassingModel(), own)->Predict(Unlabeled(40), [&](const Outputs&) {
      return own.rank() == 1 ? absl::DataLossError("the disk is full") : absl::OkStatus();
    });
  });
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_THAT(ends[static_cast<size_t>(rank)],
                StatusIs(rank == 1 ? absl::StatusCode::kDataLoss : absl::StatusCode::kAborted,
                         HasSubstr("the disk is full")));
  }
}

}  // namespace
}  // namespace stagecoach::engine
