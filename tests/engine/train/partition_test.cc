// The first two promises of the engine: the partition never changes the answer, and predictions of
// memory come true.
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/random.h"
#include "engine/nn/layers/composite/residual.h"
#include "engine/nn/layers/dropout.h"
#include "engine/nn/layers/layer_norm.h"
#include "engine/nn/layers/linear.h"
#include "engine/nn/layers/swiglu.h"
#include "engine/train/fit.h"
#include "engine/train/trainer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schedule/io/csv.h"
#include "schedule/transforms/lowering.h"
#include "tests/engine/train/runs/small_run.h"
#include "tests/testing/precision.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::StatusIs;
using ::testing::Each;
using ::testing::Gt;

constexpr int kCutMicroBatches = 12;        // every schedule takes this many on 2, 3 and 4 devices
constexpr int64_t kCutMicroBatchRows = 18;  // more than one tile of rows, and not a multiple of it
constexpr int64_t kCutBatchRows = kCutMicroBatches * kCutMicroBatchRows;
constexpr int kSteps = 3;
constexpr float kClipNorm = 0.05F;  // far below the norms that occur
constexpr float kEmaDecay = 0.25F;

// Everything that a run produces and that must not depend on the partition.
struct Answer {
  std::vector<double> losses;
  std::vector<int64_t> correct;
  std::vector<double> gradient_norms;
  double evaluation_loss = 0.0;
  int64_t evaluation_correct = 0;
  std::vector<float> outputs;
  std::string initial_hash, final_hash;

  friend bool operator==(const Answer&, const Answer&) = default;
};

void PrintTo(const Answer& answer, std::ostream* out) {
  *out << "losses " << ::testing::PrintToString(answer.losses) << ", norms "
       << ::testing::PrintToString(answer.gradient_norms) << ", correct "
       << ::testing::PrintToString(answer.correct) << ", evaluation " << answer.evaluation_loss
       << ", parameters " << answer.final_hash;
}

struct Partition {
  int devices = 1;
  std::string schedule = "gpipe";
  int chunks = 0;  // 0: the schedule's own number
  int threads = 1;
  int replicas = 1;
  int blocks = 1;  // of gradients
  bool shards_optimizer = false;
  Precision precision = Precision::kFloat32;
  bool predicts_numbers = false;  // rather than classes
};

Model ModelFor(const Partition& partition) {
  return partition.predicts_numbers ? SmallNumbersModel() : SmallModel();
}

partition::Plan PlanFor(const Partition& partition) {
  return EvenPlan(ModelFor(partition), partition.devices, partition.schedule, kCutMicroBatches,
                  kCutMicroBatchRows, partition.chunks,
                  {partition.replicas, partition.blocks, partition.shards_optimizer});
}

std::unique_ptr<Trainer> TrainerFor(const partition::Plan& plan, const Optimizer& optimizer,
                                    const DeviceSpec& device = {},
                                    const Model& model = SmallModel()) {
  return MakeTrainer(model, plan,
                     {.optimizer = optimizer,
                      .learning_rate = LearningRate::WarmupCosine(0.05F, 2, 10),
                      .device = device});
}

DeviceSpec DeviceOf(const Partition& partition) {
  return {.threads = partition.threads, .precision = partition.precision};
}

std::unique_ptr<Trainer> TrainerOn(const Partition& partition, const Optimizer& optimizer) {
  return TrainerFor(PlanFor(partition), optimizer, DeviceOf(partition), ModelFor(partition));
}

// Returns data with the targets that the trainer's loss takes.
std::shared_ptr<const Dataset> DataFor(const Trainer& trainer, int64_t rows) {
  const TargetSpec& target = trainer.run().profile.loss_spec.target;
  return target.kind == TargetSpec::Kind::kValues ? SmallNumbers(rows) : SmallData(rows);
}

Answer AnswerOf(Trainer& trainer) {
  const auto data = DataFor(trainer, kSteps * kCutBatchRows);
  const auto test_data = DataFor(trainer, kCutBatchRows + 25);  // the second batch is not whole
  Answer answer;
  answer.initial_hash = trainer.ParametersHash().value();
  for (int step = 0; step < kSteps; ++step) {
    const StepResult result =
        trainer.Step(*data, Rows(step * kCutBatchRows, kCutBatchRows)).value();
    answer.losses.push_back(result.loss);
    answer.correct.push_back(result.correct);
    answer.gradient_norms.push_back(result.gradient_norm);
  }
  const Evaluation evaluation = trainer.Evaluate(*test_data).value();
  answer.evaluation_loss = evaluation.loss;
  answer.evaluation_correct = evaluation.correct;
  answer.outputs = trainer.Predict(*test_data).value();
  answer.final_hash = trainer.ParametersHash().value();
  return answer;
}

std::vector<Optimizer> Optimizers() {
  std::vector<Optimizer> optimizers = {Optimizer::AdamW(), Optimizer::Sgd()};
  optimizers.back().ema_decay = kEmaDecay;
  for (int i = 0; i < 2; ++i) {
    optimizers.push_back(optimizers[static_cast<size_t>(i)]);
    optimizers.back().clip_norm = kClipNorm;
  }
  return optimizers;
}

std::string Describe(const Optimizer& optimizer) {
  return absl::StrCat(optimizer.kind == Optimizer::Kind::kAdamW ? "AdamW" : "SGD", ", clip norm ",
                      optimizer.clip_norm, ", EMA ", optimizer.ema_decay);
}

// Returns the answer of one stage on one device with one thread; the same in every call.
const Answer& Expected(const Optimizer& optimizer, int blocks = 1,
                       Precision precision = Precision::kFloat32, bool predicts_numbers = false) {
  static auto* const answers = new std::map<std::string, Answer>;
  Answer& answer = (*answers)[absl::StrCat(Describe(optimizer), blocks, PrecisionName(precision),
                                           predicts_numbers)];
  if (answer.losses.empty()) {
    answer = AnswerOf(
        *TrainerOn({.blocks = blocks, .precision = precision, .predicts_numbers = predicts_numbers},
                   optimizer));
  }
  return answer;
}

class Partitions : public ::testing::TestWithParam<Partition> {
 protected:
  void SetUp() override {
    const absl::Status has = stagecoach::testing::HasOnCpu(GetParam().precision);
    if (!has.ok()) GTEST_SKIP() << has.message();
  }
};

TEST_P(Partitions, NeverChangeTheAnswer) {
  for (const Optimizer& optimizer : Optimizers()) {
    SCOPED_TRACE(Describe(optimizer));
    EXPECT_EQ(
        AnswerOf(*TrainerOn(GetParam(), optimizer)),
        Expected(optimizer, GetParam().blocks, GetParam().precision, GetParam().predicts_numbers));
  }
}

TEST_P(Partitions, TakeThePredictedMemory) {
  for (const Optimizer& optimizer : {Optimizers().front(), Optimizers().back()}) {
    SCOPED_TRACE(Describe(optimizer));
    const auto trainer = TrainerOn(GetParam(), optimizer);
    AnswerOf(*trainer);
    ASSERT_OK_AND_ASSIGN(const std::vector<DeviceReport> devices, trainer->Devices());
    for (const DeviceReport& device : devices) {
      EXPECT_GT(device.predicted_peak_bytes, 0);
      EXPECT_EQ(device.measured_peak_bytes, device.predicted_peak_bytes) << device.device;
      EXPECT_GT(device.predicted_stash_bytes, 0);
      EXPECT_EQ(device.measured_stash_bytes, device.predicted_stash_bytes) << device.device;
      EXPECT_EQ(device.measured_sent, device.predicted_sent) << device.device;
    }
  }
}

// Gradients are clipped, which takes tables for the norms, and parameters are averaged.
TEST_P(Partitions, FitExactlyIntoThePredictedMemory) {
  const partition::Plan plan = PlanFor(GetParam());
  int64_t largest = 0;
  Optimizer optimizer = Optimizer::AdamW();
  optimizer.clip_norm = kClipNorm;
  optimizer.ema_decay = kEmaDecay;
  const std::vector<DeviceReport> devices = TrainerOn(GetParam(), optimizer)->Devices().value();
  for (const DeviceReport& device : devices) {
    largest = std::max(largest, device.predicted_peak_bytes);
  }
  TrainerOptions options{.optimizer = optimizer, .device = DeviceOf(GetParam())};
  options.device.memory_bytes = largest;
  const auto trainer = MakeTrainer(ModelFor(GetParam()), plan, options);
  EXPECT_OK(trainer->Step(*DataFor(*trainer, kCutBatchRows), Rows(0, kCutBatchRows)));
  options.device.memory_bytes -= 1;
  EXPECT_THAT(Trainer::Create(ModelFor(GetParam()), plan, options),
              StatusIs(absl::StatusCode::kResourceExhausted, "cpu:"));
}

std::vector<Partition> AllPartitions() {
  std::vector<Partition> all;
  for (const int devices : {1, 2, 3, 4, 7}) {
    for (const char* schedule : {"gpipe", "1f1b"}) all.push_back({devices, schedule});
  }
  for (const int devices : {2, 3, 4}) {
    for (const char* schedule :
         {"interleaved", "looped-bfs", "zb-h1", "zb-h2", "zb-v", "v-half", "v-min", "dualpipe-v"}) {
      all.push_back({devices, schedule});
    }
  }
  for (const auto& [devices, chunks] : {std::pair(1, 3), std::pair(2, 3), std::pair(2, 4)}) {
    for (const char* schedule : {"interleaved", "looped-bfs"}) {
      all.push_back({devices, schedule, chunks});
    }
  }
  for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zb-h2", "dualpipe-v"}) {
    all.push_back({2, schedule, 0, /*threads=*/2});
  }
  for (const auto& [blocks, replicas] :
       {std::pair(2, 1), std::pair(2, 2), std::pair(4, 1), std::pair(4, 2), std::pair(4, 4),
        std::pair(3, 3), std::pair(6, 2), std::pair(6, 3), std::pair(6, 6), std::pair(12, 4)}) {
    all.push_back({1, "gpipe", 0, 1, replicas, blocks});
    if (blocks <= 6) all.push_back({2, "1f1b", 0, 1 + replicas % 2, replicas, blocks});
  }
  for (const char* schedule :
       {"interleaved", "looped-bfs", "zb-h1", "zb-h2", "zb-v", "v-half", "v-min", "dualpipe-v"}) {
    all.push_back({2, schedule, 0, 1, /*replicas=*/2, /*blocks=*/4});
  }
  all.push_back({4, "zb-h1", 0, 1, /*replicas=*/4, /*blocks=*/4});
  all.push_back({2, "zb-v", 0, 1, /*replicas=*/2, /*blocks=*/6});
  for (const auto& [devices, schedule, replicas, blocks] :
       {std::tuple(1, "gpipe", 4, 4), std::tuple(2, "1f1b", 2, 4), std::tuple(2, "zb-v", 4, 4),
        std::tuple(1, "1f1b", 3, 3), std::tuple(2, "1f1b", 2, 6), std::tuple(2, "zb-h1", 3, 6)}) {
    all.push_back({devices, schedule, 0, 1, replicas, blocks, /*shards_optimizer=*/true});
  }
  for (Partition partition : std::vector<Partition>{{1, "1f1b"},
                                                    {3, "gpipe"},
                                                    {7, "1f1b"},
                                                    {2, "zb-v"},
                                                    {2, "interleaved", 0, /*threads=*/2},
                                                    {2, "1f1b", 0, 1, /*replicas=*/2, 4},
                                                    {2, "1f1b", 0, 1, /*replicas=*/3, 3},
                                                    {2, "1f1b", 0, 1, /*replicas=*/2, 4, true},
                                                    {1, "1f1b", 0, 1, /*replicas=*/2, 6, true}}) {
    partition.precision = Precision::kBfloat16;
    all.push_back(partition);
  }
  for (Partition partition : std::vector<Partition>{{1, "gpipe"},
                                                    {3, "1f1b"},
                                                    {7, "gpipe"},
                                                    {2, "zb-v"},
                                                    {4, "zb-h2"},
                                                    {2, "interleaved", 0, /*threads=*/2},
                                                    {2, "1f1b", 0, 1, /*replicas=*/2, 4, true}}) {
    partition.predicts_numbers = true;
    all.push_back(partition);
    partition.precision = Precision::kBfloat16;
    all.push_back(partition);
  }
  return all;
}

std::string NameOfPartition(const ::testing::TestParamInfo<Partition>& test) {
  const Partition& partition = test.param;
  std::string name =
      absl::StrCat(partition.schedule, "_Devices", partition.devices,
                   partition.chunks > 0 ? absl::StrCat("_Chunks", partition.chunks) : "",
                   partition.threads > 1 ? absl::StrCat("_Threads", partition.threads) : "",
                   partition.blocks > 1
                       ? absl::StrCat("_Replicas", partition.replicas, "_Blocks", partition.blocks)
                       : "",
                   partition.shards_optimizer ? "_Sharded" : "",
                   partition.precision == Precision::kBfloat16 ? "_Bfloat16" : "",
                   partition.predicts_numbers ? "_Numbers" : "");
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, Partitions, ::testing::ValuesIn(AllPartitions()), NameOfPartition);

// The loss is then on rank 0, and the data on the last rank.
TEST(PartitionsTest, StagesMayBeOnAnyRank) {
  partition::Plan plan = PlanFor({3, "1f1b"});
  std::reverse(plan.schedule.rank_of_stage.begin(), plan.schedule.rank_of_stage.end());
  std::reverse(plan.schedule.actions.begin(), plan.schedule.actions.end());
  for (const Optimizer& optimizer : Optimizers()) {
    SCOPED_TRACE(Describe(optimizer));
    EXPECT_EQ(AnswerOf(*TrainerFor(plan, optimizer)), Expected(optimizer));
  }
}

// PyTorch's lowered files have gathers and sums over replicas, whether or not there are replicas.
TEST(PartitionsTest, AScheduleOfPyTorchTrainsToTheSameBits) {
  partition::Plan plan = PlanFor({2, "1f1b"});
  const schedule::Schedule lowered =
      schedule::Lower(plan.schedule, {.reduce_gradients = true}).value();
  const std::vector<std::string> rows =
      absl::StrSplit(schedule::ToScheduleCsv(lowered), '\n', absl::SkipEmpty());
  ASSERT_OK_AND_ASSIGN(
      plan.schedule,
      schedule::ParseScheduleCsv(
          absl::StrFormat("0UNSHARD,%s,0RESHARD\n1UNSHARD,%s,1RESHARD\n", rows.at(0), rows.at(1)),
          "torch"));
  for (const Optimizer& optimizer : Optimizers()) {
    EXPECT_EQ(AnswerOf(*TrainerFor(plan, optimizer)), Expected(optimizer));
  }
}

// The schedule is as if read from a file: the exchange of norms is added to it if gradients are
// clipped.
TEST(PartitionsTest, ALoweredScheduleGetsTheCollectivesThatItLacks) {
  partition::Plan plan = PlanFor({2, "1f1b"});
  plan.schedule = schedule::Lower(plan.schedule).value();
  const Optimizer optimizer = Optimizers().back();
  EXPECT_EQ(AnswerOf(*TrainerFor(plan, optimizer)), Expected(optimizer));
}

TEST(PartitionsTest, CollectivesThatTheRunDoesNotWantAreRefused) {
  partition::Plan plan = PlanFor({2, "1f1b"});
  const schedule::Schedule compute = plan.schedule;
  plan.schedule = schedule::Lower(compute, {.exchange_norms = true}).value();
  EXPECT_THAT(Trainer::Create(SmallModel(), plan, {}),
              StatusIs(absl::StatusCode::kFailedPrecondition, "has a NORM"));
  plan.schedule = schedule::Lower(compute, {.results = schedule::ResultsPlace::kEnd}).value();
  EXPECT_THAT(Trainer::Create(SmallModel(), plan, {}),
              StatusIs(absl::StatusCode::kFailedPrecondition, "has a RESULTS"));
}

TEST(PartitionsTest, AnotherNumberOfGradientBlocksGivesAnotherAnswer) {
  const Optimizer optimizer = Optimizer::AdamW();
  EXPECT_NE(Expected(optimizer, 2).final_hash, Expected(optimizer, 1).final_hash);
  EXPECT_NE(Expected(optimizer, 4).final_hash, Expected(optimizer, 2).final_hash);
}

TEST(PartitionsTest, ClippingActsInTheseRuns) {
  for (const Optimizer& optimizer : Optimizers()) {
    if (optimizer.clip_norm == 0.0F) continue;
    EXPECT_THAT(AnswerOf(*TrainerOn(Partition{}, optimizer)).gradient_norms, Each(Gt(kClipNorm)));
  }
}

TEST(PartitionsTest, UnevenCutsGiveTheSameAnswer) {
  const Optimizer optimizer = Optimizer::AdamW();
  partition::Plan plan = PlanFor({3, "1f1b"});
  for (const std::vector<int>& first_layer :
       {std::vector<int>{0, 1, 7}, std::vector<int>{0, 6, 7}, std::vector<int>{0, 1, 2}}) {
    plan.first_layer = first_layer;
    EXPECT_EQ(AnswerOf(*TrainerFor(plan, optimizer)), Expected(optimizer))
        << ::testing::PrintToString(first_layer);
  }
}

// Returns residual blocks and layer norms in random order: within a stage a block leaves its final
// sum to a layer norm that comes next; with one layer per stage, none can.
Model RandomBlocks(uint64_t seed) {
  constexpr int64_t kWidth = 24;
  const std::vector<LayerFactory> kinds = {
      LayerNorm(),
      Residual({LayerNorm(), Linear(kWidth, Activation::kGelu)}),
      Residual({LayerNorm(), Linear(kWidth, Activation::kRelu)}),
      Residual({Linear(kWidth, Activation::kGelu)}),
      Residual({Residual({LayerNorm(), Linear(kWidth)}), LayerNorm(), Linear(kWidth)}),
      Residual({LayerNorm(), Residual({LayerNorm(), Linear(kWidth)})})};
  Model model{.input = Shape{kSmallFeatures}, .layers = {Linear(kWidth)}};
  const base::RandomStream random(seed, /*stream=*/0);
  for (uint64_t i = 0; i < 6; ++i) {
    model.layers.push_back(kinds[random.Below(i, kinds.size())]);
  }
  model.layers.push_back(Linear(kSmallClasses));
  return model;
}

// Masks are made anew on each rank.
TEST(PartitionsTest, DropoutGivesTheSameAnswer) {
  constexpr int64_t kWidth = 24;
  const Model model{.input = Shape{kSmallFeatures},
                    .layers = {Dropout(0.1F), Linear(kWidth),
                               Residual({RmsNorm(), Linear(2 * kWidth), SwiGlu(), Dropout(0.3F)}),
                               Dropout(0.2F), Linear(kSmallClasses)}};
  const auto answer = [&](const Model& of, int stages, const std::string& schedule) {
    return AnswerOf(
        *MakeTrainer(of, EvenPlan(of, stages, schedule, kCutMicroBatches, kCutMicroBatchRows), {}));
  };
  const Answer expected = answer(model, 1, "gpipe");
  for (const std::string schedule : {"gpipe", "1f1b", "zb-h1"}) {
    for (const int stages : {2, 3, 5}) {
      EXPECT_EQ(answer(model, stages, schedule), expected) << schedule << " on " << stages;
    }
  }
  Model without = model;
  without.layers[0] = Dropout(0.0F);
  EXPECT_FALSE(answer(without, 1, "gpipe") == expected) << "nothing was dropped";
}

TEST(PartitionsTest, CutsBetweenResidualBlocksGiveTheSameAnswer) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    const Model model = RandomBlocks(seed);
    const auto answer = [&](int stages, int cut, int threads) {
      partition::Plan plan = EvenPlan(model, stages, "1f1b", kCutMicroBatches, kCutMicroBatchRows);
      if (cut > 0) plan.first_layer = {0, cut};
      return AnswerOf(*MakeTrainer(model, plan, {.device = {.threads = threads}}));
    };
    const Answer expected = answer(model.num_layers(), 0, 1);
    for (int threads = 1; threads <= 3; ++threads) {
      EXPECT_EQ(answer(1, 0, threads), expected) << threads << " threads";
    }
    for (int cut = 1; cut < model.num_layers(); ++cut) {
      EXPECT_EQ(answer(2, cut, 1), expected) << "cut before layer " << cut;
    }
  }
}

TEST(PartitionsTest, AnotherSeedGivesAnotherAnswer) {
  const Model model = SmallModel();
  const partition::Plan plan = PlanFor({2, "1f1b"});
  const Answer one = AnswerOf(*MakeTrainer(model, plan, {.seed = 1}));
  const Answer two = AnswerOf(*MakeTrainer(model, plan, {.seed = 2}));
  EXPECT_NE(one.initial_hash, two.initial_hash);
  EXPECT_NE(one.losses, two.losses);
}

TEST(PartitionsTest, AWholeFitHasTheSameHash) {
  const TrainTest data{SmallData(3 * kCutBatchRows + 5), SmallData(50)};
  const auto fit = [&](const Partition& partition) {
    const auto trainer = TrainerOn(partition, Optimizer::AdamW());
    return Fit(*trainer, data, {.epochs = 2}).value().step_losses_hash;
  };
  const std::string expected = fit({});
  EXPECT_EQ(fit({4, "1f1b"}), expected);
  EXPECT_EQ(fit({2, "dualpipe-v"}), expected);
}

}  // namespace
}  // namespace stagecoach::engine
