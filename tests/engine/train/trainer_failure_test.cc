// The third promise of the engine: it never hangs, and a failure says where it happened.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/system/guard_pages.h"
#include "engine/nn/layers/composite/residual.h"
#include "engine/nn/layers/linear.h"
#include "engine/train/trainer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/train/runs/small_run.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using schedule::Op;
using ::stagecoach::testing::IsRefused;
using ::stagecoach::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kStages = 4;
constexpr int kFailingMicroBatches = 6;
constexpr int64_t kFailingMicroBatchRows = 2;
constexpr int64_t kFailingBatchRows = kFailingMicroBatches * kFailingMicroBatchRows;

// Returns one linear layer per stage, each followed by a probe, whose hooks are those of `probes`.
Model ProbedModel(const std::vector<ProbeHooks>& probes) {
  Model model{.input = Shape{kSmallFeatures}};
  for (const ProbeHooks& hooks : probes) {
    model.layers.push_back(Linear(kSmallClasses, Activation::kGelu));
    model.layers.push_back(Probe(&hooks));
  }
  return model;
}

// Expects that a trainer refuses what a plan can say.

void ExpectUnsupported(const partition::Plan& plan, const std::string& reason) {
  EXPECT_THAT(CheckSupported(plan), StatusIs(absl::StatusCode::kUnimplemented, reason));
  EXPECT_THAT(Trainer::Create(SmallModel(), plan, {}),
              StatusIs(absl::StatusCode::kUnimplemented, reason));
}

TEST(Trainer, RefusesAnotherOrderOfLayers) {
  partition::Plan plan = EvenPlan(SmallModel(), 2, "1f1b", 4, 4);
  for (int layer = 0; layer < plan.num_layers; ++layer) plan.order.push_back(layer);
  ExpectUnsupported(plan, "changes the order of the layers");
}

// The place that fails: operation `op` of micro-batch `micro_batch` on stage `stage`.
using Failure =
    std::tuple<std::string /*schedule*/, bool /*clips*/, int /*stage*/, Op, int /*micro_batch*/>;

class FailingLayer : public ::testing::TestWithParam<Failure> {
 protected:
  FailingLayer() : probes_(kStages), data_(SmallData(kFailingBatchRows)) {
    const auto& [schedule, clips, stage, op, micro_batch] = GetParam();
    probes_[static_cast<size_t>(stage)].before = [op = op, micro_batch = micro_batch](Op present,
                                                                                      int call) {
      return present == op && call == micro_batch ? absl::DataLossError("the disk is on fire")
                                                  : absl::OkStatus();
    };
    TrainerOptions options;
    options.optimizer.clip_norm = clips ? 1.0F : 0.0F;
    const Model model = ProbedModel(probes_);
    trainer_ = MakeTrainer(
        model, EvenPlan(model, kStages, schedule, kFailingMicroBatches, kFailingMicroBatchRows),
        options);
  }

  absl::Status Step() { return trainer_->Step(*data_, Rows(0, kFailingBatchRows)).status(); }

  std::vector<ProbeHooks> probes_;
  const std::shared_ptr<const Dataset> data_;
  std::unique_ptr<Trainer> trainer_;
};

// The deadline of five minutes is also that of the test, so if the test ends, the other ranks were
// told.
TEST_P(FailingLayer, IsNamedByTheStep) {
  const auto& [schedule, clips, stage, op, micro_batch] = GetParam();
  EXPECT_THAT(Step(),
              StatusIs(absl::StatusCode::kDataLoss,
                       ::testing::Eq(absl::StrCat(
                           "rank ", stage, ", stage ", stage, op == Op::kForward ? " F" : " BW",
                           " micro-batch ", micro_batch, ": layer ", 2 * stage + 1, " (probe): ",
                           op == Op::kForward ? "Forward" : "Backward", ": the disk is on fire"))));
}

TEST_P(FailingLayer, PoisonsTheTrainer) {
  const absl::Status failure = Step();
  ASSERT_THAT(failure, StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_EQ(Step(), failure);
  EXPECT_EQ(trainer_->Evaluate(*data_).status(), failure);
  EXPECT_EQ(trainer_->ParametersHash().status(), failure);
  EXPECT_EQ(trainer_->Parameter("layer 0: weight").status(), failure);
  EXPECT_EQ(trainer_->steps(), 0);
}

std::string NameOfFailure(const ::testing::TestParamInfo<Failure>& test) {
  const auto& [schedule, clips, stage, op, micro_batch] = test.param;
  return absl::StrCat(schedule, clips ? "_clipping" : "", "_stage", stage,
                      op == Op::kForward ? "_F" : "_BW", micro_batch);
}

INSTANTIATE_TEST_SUITE_P(Everywhere, FailingLayer,
                         ::testing::Combine(::testing::Values("gpipe", "1f1b"), ::testing::Bool(),
                                            ::testing::Range(0, kStages),
                                            ::testing::Values(Op::kForward, Op::kBackwardInput),
                                            ::testing::Values(0, 3, kFailingMicroBatches - 1)),
                         NameOfFailure);

// A layer that passes everything on, and throws an exception foreign to the engine from one
// operation.
class Throws final : public Layer {
 public:
  explicit Throws(absl::string_view operation) : operation_(operation) {}

  absl::StatusOr<LayerSpec> Prepare(const LayerContext& context) override {
    RETURN_IF_ERROR(MayThrow("Prepare"));
    return LayerSpec{.description = "throws", .output = context.input};
  }
  absl::Status Forward(const LayerArgs& args) override {
    std::copy_n(args.x.f32(), args.x.elements(), args.y.f32());
    return MayThrow("Forward");
  }
  absl::Status BackwardInput(const LayerArgs& args) override {
    std::copy_n(args.dy.f32(), args.dy.elements(), args.dx.f32());
    return MayThrow("BackwardInput");
  }
  absl::Status BackwardWeight(const LayerArgs&) override { return MayThrow("BackwardWeight"); }
  absl::Status Backward(const LayerArgs& args) override {
    RETURN_IF_ERROR(BackwardInput(args));
    return MayThrow("Backward");
  }

 private:
  absl::Status MayThrow(absl::string_view operation) const {
    if (operation == operation_) throw std::out_of_range("of a map");
    return absl::OkStatus();
  }

  const std::string operation_;
};

Model ModelThatThrows(absl::string_view operation) {
  return {.input = Shape{kSmallFeatures},
          .layers = {Linear(8), Linear(kSmallClasses), LayerOf<Throws>(std::string(operation))}};
}

// The other rank is told, too.
TEST(Trainer, AWrongLearningRateEndsTheRunBeforeItsStep) {
  const auto trainer = MakeTrainer(SmallModel(), EvenPlan(SmallModel(), 2, "1f1b", 4, 8),
                                   {.learning_rate = LearningRate::Function(
                                        [](int64_t step) { return step < 2 ? 1e-3F : -1.0F; })});
  const auto data = SmallData(32);
  ASSERT_OK(trainer->Step(*data, Rows(0, 32)));
  const auto is_named = IsRefused("step 2: learning rate: -1");
  EXPECT_THAT(trainer->Step(*data, Rows(0, 32)), is_named);
  EXPECT_THAT(trainer->Step(*data, Rows(0, 32)), is_named);
}

TEST(Trainer, TurnsWhatALayerThrowsIntoAnError) {
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"1f1b", "Forward", "F"},
      {"1f1b", "Backward", "BW"},
      {"zb-h1", "BackwardInput", "B"},
      {"zb-h1", "BackwardWeight", "W"}};
  for (const auto& [schedule, operation, action] : cases) {
    const Model model = ModelThatThrows(operation);
    const auto trainer = MakeTrainer(model, EvenPlan(model, 2, schedule, 4, 2), {});
    const absl::Status failure = trainer->Step(*SmallData(8), Rows(0, 8)).status();
    EXPECT_THAT(failure, StatusIs(absl::StatusCode::kInternal,
                                  ::testing::Eq(absl::StrCat("rank 1, stage 1 ", action,
                                                             " micro-batch 0: layer 2 (throws): ",
                                                             operation, " throws: of a map"))));
    EXPECT_EQ(trainer->ParametersHash().status(), failure);
  }
}

TEST(Trainer, TurnsWhatALayerThrowsWhenItIsPreparedIntoAnError) {
  const auto plan = EvenPlan(ModelThatThrows(""), 2, "1f1b", 4, 2);
  EXPECT_THAT(
      Trainer::Create(ModelThatThrows("Prepare"), plan, {}),
      StatusIs(absl::StatusCode::kInternal, ::testing::Eq("layer 2: Prepare throws: of a map")));
  Model model = ModelThatThrows("");
  model.layers[2] = []() -> std::unique_ptr<Layer> { throw 1; };
  EXPECT_THAT(Trainer::Create(model, plan, {}),
              StatusIs(absl::StatusCode::kInternal,
                       ::testing::Eq("layer 2: its factory throws what is no std::exception")));
  model.layers[2] = []() -> std::unique_ptr<Layer> { throw std::bad_alloc(); };
  EXPECT_THAT(Trainer::Create(model, plan, {}),
              StatusIs(absl::StatusCode::kResourceExhausted, "refused memory; see"));
}

// A layer y = max(x, 0), whose BackwardInput reads y, which Prepare has not declared.
class ForgetfulRelu final : public Layer {
 public:
  absl::StatusOr<LayerSpec> Prepare(const LayerContext& context) override {
    LayerSpec spec{.description = "forgetful", .output = context.input};
    spec.memory.input_last_use = LastUse::kForward;
    return spec;
  }
  absl::Status Forward(const LayerArgs& args) override {
    for (int64_t i = 0; i < args.y.elements(); ++i) {
      args.y.f32()[i] = std::max(args.x.f32()[i], 0.0F);
    }
    return absl::OkStatus();
  }
  absl::Status BackwardInput(const LayerArgs& args) override {
    for (int64_t i = 0; i < args.dx.elements(); ++i) {
      args.dx.f32()[i] = args.y.f32()[i] > 0.0F ? args.dy.f32()[i] : 0.0F;
    }
    return absl::OkStatus();
  }
};

// The layer is between two layers, at the end of a stage, where y is not there at all, and inside
// another layer.
TEST(Trainer, NamesALayerThatReadsWhatItDidNotDeclare) {
  if (!base::GuardPages::Create(1).ok()) GTEST_SKIP() << "the system does not tell";
  const LayerFactory relu = LayerOf<ForgetfulRelu>();
  const std::pair<std::vector<LayerFactory>, const char*> cases[] = {
      {{Linear(8), Linear(8), relu, Linear(kSmallClasses)}, "layer 2 (forgetful): Backward"},
      {{Linear(8), relu, Linear(8), Linear(kSmallClasses)}, "layer 1 (forgetful): Backward"},
      {{Linear(8), Linear(8), Residual({Linear(8), relu}), Linear(kSmallClasses)},
       ": Backward: layer 1 (forgetful): Backward"}};
  for (const auto& [layers, where] : cases) {
    const Model model = {.input = Shape{kSmallFeatures}, .layers = layers};
    const auto trainer = MakeTrainer(model, EvenPlan(model, 2, "1f1b", 4, 2), {});
    EXPECT_THAT(trainer->Step(*SmallData(8), Rows(0, 8)),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         absl::StrCat(where, " reads y, but memory.output_last_use is kForward")));
  }
}

TEST(Trainer, NamesTheRankOfAFailingStageWhereRanksHaveSeveral) {
  std::vector<ProbeHooks> probes(4);
  probes[2].before = [](Op op, int call) {
    return op == Op::kBackwardInput && call == 3 ? absl::DataLossError("the disk is on fire")
                                                 : absl::OkStatus();
  };
  const Model model = ProbedModel(probes);
  const auto trainer = MakeTrainer(
      model, EvenPlan(model, 2, "zb-v", kFailingMicroBatches, kFailingMicroBatchRows), {});
  EXPECT_THAT(trainer->Step(*SmallData(kFailingBatchRows), Rows(0, kFailingBatchRows)),
              StatusIs(absl::StatusCode::kDataLoss,
                       ::testing::Eq("rank 1, stage 2 B micro-batch 3: layer 5 (probe): "
                                     "BackwardInput: the disk is on fire")));
}

TEST(Trainer, AFailingEvaluationPoisonsItToo) {
  std::vector<ProbeHooks> probes(2);
  probes[1].before = [](Op, int call) {
    return call == kFailingMicroBatches - 1 ? absl::DataLossError("the disk is on fire")
                                            : absl::OkStatus();
  };
  const Model model = ProbedModel(probes);
  const auto trainer = MakeTrainer(
      model, EvenPlan(model, 2, "1f1b", kFailingMicroBatches, kFailingMicroBatchRows), {});
  const auto data = SmallData(kFailingBatchRows);
  const absl::Status failure = trainer->Evaluate(*data).status();
  EXPECT_THAT(failure,
              StatusIs(absl::StatusCode::kDataLoss,
                       absl::StrCat("rank 1, stage 1 F micro-batch ", kFailingMicroBatches - 1)));
  EXPECT_EQ(trainer->Step(*data, Rows(0, kFailingBatchRows)).status(), failure);
}

// A user's data set may return any label; the file readers check theirs.
TEST(Trainer, RefusesALabelThatIsNoClassOfTheLoss) {
  const Model model = SmallModel();
  for (const int32_t label : {-1, static_cast<int32_t>(kSmallClasses)}) {
    const auto data = Mislabeled(SmallData(kFailingBatchRows), 5, label);
    const auto refuses =
        IsRefused(absl::StrCat("rank 1, stage 1 F micro-batch 2: label of row 5 is ", label,
                               ", expected 0 to 3: the loss is of 4 classes"));
    for (const bool trains : {false, true}) {
      const auto trainer = MakeTrainer(
          model, EvenPlan(model, 2, "1f1b", kFailingMicroBatches, kFailingMicroBatchRows), {});
      EXPECT_THAT(trains ? trainer->Step(*data, Rows(0, kFailingBatchRows)).status()
                         : trainer->Evaluate(*data).status(),
                  refuses);
    }
  }
}

// The last stage blocks in its first forward pass until the first stage has given up waiting for
// it, however long that takes.
TEST(Trainer, ARankThatBlocksLetsTheOthersMissTheirDeadline) {
  std::vector<ProbeHooks> probes(2);
  std::atomic<kernels::Device*> first_device{nullptr};
  probes[0].on_prepare = [&](kernels::Device& device) { first_device = &device; };
  probes[1].before = [&](Op, int) {
    first_device.load()->stream().Run([] {});  // after the first stage's part of the step
    return absl::OkStatus();
  };
  const Model model = ProbedModel(probes);
  const auto data = SmallData(kFailingBatchRows);
  {
    const auto trainer =
        MakeTrainer(model, EvenPlan(model, 2, "1f1b", kFailingMicroBatches, kFailingMicroBatchRows),
                    {.deadline = absl::Milliseconds(500)});
    EXPECT_THAT(trainer->Step(*data, Rows(0, kFailingBatchRows)),
                StatusIs(absl::StatusCode::kDeadlineExceeded,
                         AllOf(HasSubstr("rank 0, stage 0 "),
                               HasSubstr("rank 0 timed out waiting for rank 1 to "),
                               HasSubstr("; rank 1 (stage 1, replica 0) stopped first: in the "
                                         "forward pass of micro-batch 0 in step 1"))));
  }
}

}  // namespace
}  // namespace stagecoach::engine
