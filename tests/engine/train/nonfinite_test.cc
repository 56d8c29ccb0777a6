// Steps with NaN or infinity: which layer and micro-batch is named, and what the steps leave, must
// not depend on how the model is distributed.
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/nn/layers/composite/residual.h"
#include "engine/nn/layers/layer_norm.h"
#include "engine/nn/layers/linear.h"
#include "engine/runtime/nonfinite_search.h"
#include "engine/train/fit.h"
#include "engine/train/trainer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/ops/ops.h"
#include "tests/engine/train/runs/small_run.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::IsRefused;
using ::stagecoach::testing::StatusIs;
using ::testing::IsEmpty;

constexpr int kBadMicroBatches = 8;
constexpr int64_t kBadRows = 3;  // of a micro-batch
constexpr int64_t kBadBatch = kBadMicroBatches * kBadRows;
constexpr float kNotFinite = std::numeric_limits<float>::infinity();

// The place where a layer writes a number of its own.
struct Planted {
  int64_t step = 0;
  int micro_batch = 0;
  Pass pass = Pass::kForward;
  float value = kNotFinite;
};

// A layer that passes everything on unchanged, except what is planted.
class Planter final : public Layer {
 public:
  explicit Planter(std::vector<Planted> planted) : planted_(std::move(planted)) {}

  absl::StatusOr<LayerSpec> Prepare(const LayerContext& context) override {
    elementwise_ = &context.device.ops().elementwise();
    LayerSpec spec;
    spec.description = "planter";
    spec.output = context.input;
    spec.memory.input_last_use = LastUse::kForward;
    return spec;
  }
  absl::Status Forward(const LayerArgs& args) override {
    return PassOn(args, Pass::kForward, args.x, args.y);
  }
  absl::Status BackwardInput(const LayerArgs& args) override {
    return args.dx.empty() ? absl::OkStatus() : PassOn(args, Pass::kBackward, args.dy, args.dx);
  }

 private:
  absl::Status PassOn(const LayerArgs& args, Pass pass, const Tensor& from, const Tensor& to) {
    const absl::Status copied = elementwise_->Copy(args.stream, from, to);
    const SampleNumbers& numbers = *args.call.numbers;
    for (const Planted& planted : planted_) {
      const bool is_here = args.call.is_training && numbers.step == planted.step &&
                           numbers.first_sample % kBadBatch == planted.micro_batch * kBadRows;
      if (is_here && pass == planted.pass) to.f32()[1] = planted.value;
    }
    return copied;
  }

  const std::vector<Planted> planted_;
  kernels::ElementwiseOps* elementwise_ = nullptr;
};

LayerFactory Plant(std::vector<Planted> planted) { return LayerOf<Planter>(std::move(planted)); }

// Returns nine layers, of which layers 2 and 6 plant.
Model PlantedModel(const std::vector<Planted>& at_2, const std::vector<Planted>& at_6) {
  const LayerFactory block = Residual({LayerNorm(), Linear(12, Activation::kGelu)});
  return {.input = Shape{kSmallFeatures},
          .layers = {Linear(12, Activation::kGelu), block, Plant(at_2), block, LayerNorm(), block,
                     Plant(at_6), block, Linear(kSmallClasses)}};
}

struct Layout {
  int devices = 1;
  std::string schedule = "gpipe";
  partition::Replication replication = {.gradient_blocks = 2};
  bool recomputes = false;
};

std::vector<Layout> Layouts() {
  return {{1, "gpipe"},
          {2, "1f1b"},
          {4, "1f1b"},
          {4, "zb-h1"},
          {2, "interleaved"},
          {2, "zb-v", {.gradient_blocks = 2}, true},
          {2, "1f1b", {2, 2}},
          {2, "zb-h1", {2, 2}, true},
          {1, "gpipe", {2, 2, /*shards_optimizer=*/true}}};
}

std::string Text(const Layout& layout) {
  return absl::StrCat(layout.schedule, " over ", layout.devices, ", ", layout.replication.replicas,
                      " replicas");
}

std::unique_ptr<Trainer> PlantedTrainer(const Layout& layout, const Model& model,
                                        const TrainerOptions& options) {
  partition::Plan plan = EvenPlan(model, layout.devices, layout.schedule, kBadMicroBatches,
                                  kBadRows, 0, layout.replication);
  if (layout.recomputes) plan.recomputed = {1, 3, 5};
  return MakeTrainer(model, plan, options);
}

TrainerOptions OptionsFor(OnNonFinite on_nonfinite, const Optimizer& optimizer) {
  TrainerOptions options = {.optimizer = optimizer,
                            .learning_rate = LearningRate::Constant(0.01F),
                            .on_nonfinite = on_nonfinite};
  options.optimizer.checks_gradients = true;
  return options;
}

// Trains on the given steps' rows; returns what was skipped, and the parameters.
struct Left {
  std::vector<std::string> skipped;
  std::string hash;

  friend bool operator==(const Left&, const Left&) = default;
};

Left Train(Trainer& trainer, const std::vector<int64_t>& batches) {
  const auto data = SmallData(4 * kBadBatch);
  Left left;
  for (const int64_t batch : batches) {
    const StepResult taken = trainer.Step(*data, Rows(batch * kBadBatch, kBadBatch)).value();
    left.skipped.push_back(taken.skipped_for);
    EXPECT_EQ(taken.skipped_for.empty(), std::isfinite(taken.gradient_norm));
  }
  left.hash = trainer.ParametersHash().value();
  return left;
}

std::string OutputOf(int layer, const std::string& name, int micro_batch) {
  return absl::StrCat("the output of layer ", layer, " (", name, ") for micro-batch ", micro_batch,
                      " is not finite; it is the first in the forward pass");
}

TEST(NonFiniteTraining, SkipsTheStepAndNamesTheSameLayerHoweverItIsSpread) {
  // The first is determined by micro-batch, then by layer.
  const Model model = PlantedModel({{2, 5}}, {{2, 3}, {2, 5}, {3, 7, Pass::kBackward}});
  for (Optimizer optimizer : {Optimizer::AdamW(), Optimizer::Sgd()}) {
    for (const float clip_norm : {0.0F, 0.05F}) {
      optimizer.clip_norm = clip_norm;
      const TrainerOptions options = OptionsFor(OnNonFinite::kSkip, optimizer);
      const Left expected = Train(*PlantedTrainer({}, model, options), {0, 1, 2, 3});
      EXPECT_EQ(expected.skipped[1], OutputOf(6, "planter", 3));
      EXPECT_EQ(expected.skipped[2],
                "a gradient of layer 6 (planter) for micro-batch 7 is not finite; it is the first "
                "in the backward pass");
      for (const Layout& layout : Layouts()) {
        const Left left = Train(*PlantedTrainer(layout, model, options), {0, 1, 2, 3});
        EXPECT_EQ(left.skipped, expected.skipped) << Text(layout);
        EXPECT_EQ(left.hash, expected.hash) << Text(layout);
      }
    }
  }
}

// If two layers fail in one micro-batch, the earlier one is named.
TEST(NonFiniteTraining, NamesTheFirstLayerOfTheForwardPass) {
  const Model model = PlantedModel({{1, 4}}, {{1, 4}, {1, 4, Pass::kBackward}});
  for (const Layout& layout : Layouts()) {
    const auto trainer =
        PlantedTrainer(layout, model, OptionsFor(OnNonFinite::kSkip, Optimizer::AdamW()));
    EXPECT_EQ(Train(*trainer, {0}).skipped[0], OutputOf(2, "planter", 4)) << Text(layout);
  }
}

// A final sum that is left to the next layer still belongs to the first.
TEST(NonFiniteTraining, NamesTheResidualBlockWhoseSumOverflows) {
  constexpr float kLarge = 3e38F;
  const Model model = {
      .input = Shape{kSmallFeatures},
      .layers = {Linear(12), Plant({{1, 2, Pass::kForward, kLarge}}), Residual({Plant({})}),
                 LayerNorm(), Linear(12), Linear(kSmallClasses)}};
  for (const auto& [devices, schedule] :
       {std::pair(1, "gpipe"), std::pair(2, "1f1b"), std::pair(3, "zb-h1"), std::pair(6, "1f1b")}) {
    const auto trainer = PlantedTrainer({devices, schedule}, model,
                                        OptionsFor(OnNonFinite::kSkip, Optimizer::AdamW()));
    EXPECT_EQ(Train(*trainer, {0}).skipped[0], OutputOf(2, "residual(planter)", 2)) << devices;
  }
}

// Momentum is included: everything is as if the batch had never existed.
TEST(NonFiniteTraining, ASkippedStepLeavesNothingBehind) {
  const Model model = PlantedModel({{2, 0}}, {});
  const TrainerOptions options = OptionsFor(OnNonFinite::kSkip, Optimizer::Sgd());
  for (const Layout& layout : Layouts()) {
    const Left with = Train(*PlantedTrainer(layout, model, options), {0, 3, 1});
    const Left without = Train(*PlantedTrainer(layout, PlantedModel({}, {}), options), {0, 1});
    EXPECT_EQ(with.hash, without.hash) << Text(layout);
  }
}

// Checking gradients changes no bit by itself.
TEST(NonFiniteTraining, ACheckThatFindsNothingChangesNothing) {
  const Model model = PlantedModel({}, {});
  for (const Optimizer& optimizer : {Optimizer::AdamW(), Optimizer::Sgd()}) {
    const Left checked =
        Train(*PlantedTrainer({}, model, OptionsFor(OnNonFinite::kStop, optimizer)), {0, 1, 2});
    const auto plain = MakeTrainer(
        model, EvenPlan(model, 1, "gpipe", kBadMicroBatches, kBadRows, 0, {.gradient_blocks = 2}),
        {.optimizer = optimizer, .learning_rate = LearningRate::Constant(0.01F)});
    const auto data = SmallData(3 * kBadBatch);
    for (int64_t step = 0; step < 3; ++step) {
      ASSERT_OK(plain->Step(*data, Rows(step * kBadBatch, kBadBatch)));
    }
    EXPECT_EQ(plain->ParametersHash().value(), checked.hash);
    EXPECT_THAT(checked.skipped[2], IsEmpty());
  }
}

TEST(NonFiniteTraining, StopsAndSaysWhere) {
  const Model model = PlantedModel({}, {{1, 6}});
  for (const Layout& layout : Layouts()) {
    const auto trainer =
        PlantedTrainer(layout, model, OptionsFor(OnNonFinite::kStop, Optimizer::AdamW()));
    const auto data = SmallData(kBadBatch);
    const auto error = StatusIs(absl::StatusCode::kOutOfRange,
                                absl::StrCat("step 1: ", OutputOf(6, "planter", 6)));
    EXPECT_THAT(trainer->Step(*data, Rows(0, kBadBatch)), error) << Text(layout);
    EXPECT_THAT(trainer->Step(*data, Rows(0, kBadBatch)), error) << "the error stays";
  }
}

TEST(NonFiniteTraining, WithoutACheckStopsByTheLoss) {
  const Model model = PlantedModel({{1, 6}}, {{1, 4}});
  for (const Layout& layout : Layouts()) {
    TrainerOptions options = OptionsFor(OnNonFinite::kStop, Optimizer::AdamW());
    options.optimizer.checks_gradients = false;
    EXPECT_THAT(
        PlantedTrainer(layout, model, options)->Step(*SmallData(kBadBatch), Rows(0, kBadBatch)),
        StatusIs(absl::StatusCode::kOutOfRange, "step 1: the loss of micro-batch 4 is not finite"))
        << Text(layout);
  }
}

TEST(NonFiniteTraining, SkippingNeedsUpdatesThatWait) {
  TrainerOptions options = OptionsFor(OnNonFinite::kSkip, Optimizer::AdamW());
  options.optimizer.checks_gradients = false;
  const Model model = PlantedModel({}, {});
  EXPECT_THAT(Trainer::Create(model, EvenPlan(model, 1, "gpipe", 4, 4), options),
              IsRefused("checks_gradients"));
}

TEST(NonFiniteTraining, FitCountsWhatWasSkippedAndLeavesItOutOfMeans) {
  const TrainTest data{SmallData(4 * kBadBatch), SmallData(10)};
  const auto fit = [&](const Model& model, std::vector<EpochResult>& epochs) {
    const auto trainer =
        PlantedTrainer({2, "1f1b"}, model, OptionsFor(OnNonFinite::kSkip, Optimizer::AdamW()));
    return Fit(*trainer, data,
               {.epochs = 2, .on_epoch = [&](const EpochResult& row) { epochs.push_back(row); }})
        .value();
  };
  std::vector<EpochResult> epochs;
  const FitResult result = fit(PlantedModel({{3, 1}, {6, 1}}, {{8, 0, Pass::kBackward}}), epochs);
  EXPECT_EQ(result.steps, 8);
  EXPECT_EQ(result.skipped_steps, 3);
  for (const EpochResult& epoch : epochs) {
    EXPECT_GT(epoch.loss, 0.5);  // of four classes; finite
    EXPECT_LT(epoch.loss, 3.0);
  }
  epochs.clear();
  fit(PlantedModel({{1, 1}, {2, 1}, {3, 1}, {4, 1}}, {}), epochs);
  EXPECT_TRUE(std::isnan(epochs[0].loss)) << "there is none";
  EXPECT_FALSE(std::isnan(epochs[1].loss));
}

TEST(NonFinite, IsOrderedAsMicroBatchesPassThroughTheLayers) {
  const std::vector<NonFinite> ordered = {{1, Pass::kForward, 4},   {1, Pass::kForward, 5},
                                          {1, Pass::kLoss, 6},      {1, Pass::kBackward, -5},
                                          {1, Pass::kBackward, -4}, {2, Pass::kForward, 0}};
  for (size_t i = 0; i + 1 < ordered.size(); ++i) EXPECT_LT(ordered[i], ordered[i + 1]) << i;
  for (const NonFinite& one : ordered) EXPECT_EQ(ParseNonFinite(ToText(one)).value(), one);
  EXPECT_EQ(ParseNonFinite(ToText(std::optional<NonFinite>())).value(), std::nullopt);
  for (const char* text : {"1", "1 2", "1 3 0", "1 -1 0", "a 0 0", "1 0 0 0"}) {
    EXPECT_THAT(ParseNonFinite(text), StatusIs(absl::StatusCode::kInvalidArgument)) << text;
  }
}

}  // namespace
}  // namespace stagecoach::engine
