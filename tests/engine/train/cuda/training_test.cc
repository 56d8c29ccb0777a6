// The promises of the engine on CUDA devices. Without a GPU, the shipped backend runs on an
// emulated one: $STAGECOACH_CUDA_LIBRARY names the library, which the build sets for this test.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/compare.h"
#include "engine/nn/layers/composite/residual.h"
#include "engine/nn/layers/dropout.h"
#include "engine/nn/layers/image/flatten.h"
#include "engine/nn/layers/image/image_norm.h"
#include "engine/nn/layers/image/pooling.h"
#include "engine/nn/layers/layer_norm.h"
#include "engine/nn/layers/linear.h"
#include "engine/train/trainer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda_backend.h"
#include "tests/engine/train/cuda/run.h"
#include "tests/engine/train/models/image_models.h"
#include "tests/engine/train/runs/planned_runs.h"
#include "tests/engine/train/runs/small_run.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"
#include "tests/testing/tolerance.h"

namespace stagecoach::engine {
namespace {

using kernels::DType;
using ::stagecoach::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

// A test without a GPU is skipped, or fails where one is required.
class CudaTraining : public ::testing::Test {
 protected:
  void SetUp() override {
    if (NumGpus() > 0) return;
    ASSERT_EQ(std::getenv("STAGECOACH_REQUIRE_GPU"), nullptr) << "there is no GPU";
    GTEST_SKIP() << "there is no GPU";
  }
};

enum class Place { kOneGpu, kCopies, kNccl };

TinyRun OnCuda(int devices, const std::string& schedule, Place place,
               const Optimizer& optimizer = Optimizer::AdamW(),
               Precision precision = Precision::kFloat32) {
  TinyRun run{.devices = devices, .schedule = schedule};
  run.options.optimizer = optimizer;
  run.options.device = {.kind = DeviceKind::kCuda, .precision = precision};
  run.options.exchange = place == Place::kNccl ? Exchange::kNccl : Exchange::kCopies;
  if (place == Place::kOneGpu) run.options.device.gpus.assign(static_cast<size_t>(devices), 0);
  return run;
}

std::vector<Optimizer> Optimizers() {
  std::vector<Optimizer> optimizers = {Optimizer::AdamW(), Optimizer::Sgd()};
  optimizers.back().ema_decay = 0.25F;
  for (int i = 0; i < 2; ++i) {
    optimizers.push_back(optimizers[static_cast<size_t>(i)]);
    optimizers.back().clip_norm = 0.05F;  // far below the norms that occur
  }
  return optimizers;
}

std::string Describe(const Optimizer& optimizer, Precision precision) {
  return absl::StrCat(optimizer.kind == Optimizer::Kind::kAdamW ? "AdamW" : "SGD", ", clip norm ",
                      optimizer.clip_norm, ", ", PrecisionName(precision));
}

// A model to train, by name.
struct Subject {
  const char* name;
  Model (*model)();
};
constexpr Subject kLayersOfAllKinds = {"layers of all kinds", TinyModel};
constexpr Subject kGpt2 = {"GPT-2", Gpt2Model};
constexpr Subject kLlama = {"Llama", LlamaModel};
constexpr Subject kGptNeoX = {"GPT-NeoX", GptNeoXModel};
constexpr Subject kGemma = {"Gemma", GemmaModel};
constexpr Subject kImages = {"images", ImageModel};

// Returns the answer of one stage on one device; the same in every call.
const TinyAnswer& Expected(const Subject& subject, const Optimizer& optimizer, Precision precision,
                           int blocks) {
  static auto* const answers = new std::map<std::string, TinyAnswer>;
  TinyAnswer& answer =
      (*answers)[absl::StrCat(subject.name, Describe(optimizer, precision), blocks)];
  if (answer.losses.empty()) {
    TinyRun run = OnCuda(1, "gpipe", Place::kOneGpu, optimizer, precision);
    run.model = subject.model();
    run.replication = {1, blocks};
    answer = AnswerOf(run).value();
  }
  return answer;
}

struct Partition {
  int devices = 1;
  std::string schedule;
  Place place = Place::kOneGpu;
  partition::Replication replication = {};

  int all_devices() const { return devices * replication.replicas; }
};

TinyRun OnCuda(const Partition& partition, const Subject& subject, const Optimizer& optimizer,
               Precision precision) {
  TinyRun run =
      OnCuda(partition.devices, partition.schedule, partition.place, optimizer, precision);
  run.model = subject.model();
  run.replication = partition.replication;
  if (partition.place == Place::kOneGpu) {
    run.options.device.gpus.assign(static_cast<size_t>(partition.all_devices()), 0);
  }
  return run;
}

class CudaPartitions : public CudaTraining, public ::testing::WithParamInterface<Partition> {
 protected:
  void SetUp() override {
    CudaTraining::SetUp();
    if (IsSkipped()) return;
    if (GetParam().place != Place::kOneGpu && NumGpus() < GetParam().all_devices()) {
      GTEST_SKIP() << "there are " << NumGpus() << " GPUs";
    }
  }
};

// Returns a transformer; every schedule meets one of the two, and most meet both.
const Subject& TransformerFor(const Partition& partition) {
  return partition.devices == 2 ? kLlama : kGpt2;
}

// Expects the answer of one device, and that every byte is as predicted.
void ExpectTheAnswerOfOneDevice(const Partition& partition, const Subject& subject,
                                const Optimizer& optimizer, Precision precision) {
  SCOPED_TRACE(absl::StrCat(subject.name, ", ", Describe(optimizer, precision)));
  ASSERT_OK_AND_ASSIGN(const auto trainer,
                       TinyTrainer(OnCuda(partition, subject, optimizer, precision)));
  ASSERT_OK_AND_ASSIGN(const TinyAnswer answer, AnswerOf(*trainer));
  EXPECT_EQ(answer, Expected(subject, optimizer, precision, partition.replication.gradient_blocks));
  ASSERT_OK_AND_ASSIGN(const std::vector<DeviceReport> devices, trainer->Devices());
  for (const DeviceReport& device : devices) {
    EXPECT_GT(device.predicted_peak_bytes, 0);
    EXPECT_EQ(device.measured_peak_bytes, device.predicted_peak_bytes) << device.device;
    EXPECT_EQ(device.measured_stash_bytes, device.predicted_stash_bytes) << device.device;
    EXPECT_EQ(device.measured_sent, device.predicted_sent) << device.device;
  }
}

// Divides the schedules in two: what takes long is tested in one form with these, and in another
// with the rest.
bool IsOfOneHalf(const Partition& partition) { return partition.schedule.size() % 2 == 0; }

TEST_P(CudaPartitions, NeverChangeTheAnswer) {
  const std::pair<Optimizer, Precision> plain = {Optimizer::AdamW(), Precision::kFloat32};
  const std::pair<Optimizer, Precision> clipped = {Optimizers().back(), Precision::kBfloat16};
  std::vector<std::pair<Optimizer, Precision>> cases = {plain, clipped};
  if (GetParam().place == Place::kOneGpu) {
    // Each of the other two optimizers meets some of the partitions.
    cases.emplace_back(Optimizers()[IsOfOneHalf(GetParam()) ? 1 : 2], Precision::kTf32);
  } else {
    // Only the transfers are different.
    cases = {IsOfOneHalf(GetParam()) ? plain : clipped};
  }
  for (const auto& [optimizer, precision] : cases) {
    ExpectTheAnswerOfOneDevice(GetParam(), kLayersOfAllKinds, optimizer, precision);
  }
}

// The test uses one GPU, where emulated transfers cost least.
TEST_P(CudaPartitions, NeverChangeTheAnswerOfATransformer) {
  if (GetParam().place != Place::kOneGpu) return;
  ExpectTheAnswerOfOneDevice(GetParam(), TransformerFor(GetParam()), Optimizers()[2],
                             Precision::kBfloat16);
  if (GetParam().devices != 2 || !IsOfOneHalf(GetParam())) return;
  ExpectTheAnswerOfOneDevice(GetParam(), kGptNeoX, Optimizers()[2], Precision::kBfloat16);
}

// A ReLU is computed in both ways: a stage of one layer has it apart from the norm.
TEST_P(CudaPartitions, NeverChangeTheAnswerOfImages) {
  if (GetParam().place != Place::kOneGpu) return;
  ExpectTheAnswerOfOneDevice(GetParam(), kImages, Optimizers()[2],
                             IsOfOneHalf(GetParam()) ? Precision::kFloat32 : Precision::kBfloat16);
}

std::vector<Partition> AllPartitions() {
  std::vector<Partition> all = {{1, "1f1b", Place::kOneGpu}};
  const std::vector<std::string> schedules = {"gpipe", "1f1b",      "interleaved", "looped-bfs",
                                              "zb-h1", "zb-h2",     "zb-v",        "v-half",
                                              "v-min", "dualpipe-v"};
  for (const Place place : {Place::kOneGpu, Place::kCopies, Place::kNccl}) {
    for (const std::string& schedule : schedules) {
      all.push_back({2, schedule, place});
      const bool has_room = schedule == "gpipe" || schedule == "1f1b" || schedule == "zb-h1" ||
                            schedule == "zb-h2" || schedule == "zb-v" || schedule == "dualpipe-v";
      if (has_room) all.push_back({4, schedule, place});
    }
    all.push_back({3, "1f1b", place});
    all.push_back({1, "1f1b", place, {.replicas = 2, .gradient_blocks = 4}});
    all.push_back({2, "zb-h1", place, {.replicas = 2, .gradient_blocks = 4}});
    all.push_back({1, "gpipe", place, {.replicas = 4, .gradient_blocks = 4}});
    all.push_back(
        {2, "1f1b", place, {.replicas = 2, .gradient_blocks = 2, .shards_optimizer = true}});
  }
  all.push_back({1, "gpipe", Place::kOneGpu, {.replicas = 2, .gradient_blocks = 6}});
  all.push_back({1, "1f1b", Place::kCopies, {.replicas = 3, .gradient_blocks = 6}});
  all.push_back({1, "1f1b", Place::kNccl, {.replicas = 3, .gradient_blocks = 3}});
  all.push_back({2, "zb-h1", Place::kNccl, {2, 6, /*shards_optimizer=*/true}});
  // These have REDUCEs in the midst of transfers.
  for (const char* schedule : {"interleaved", "looped-bfs", "zb-v"}) {
    all.push_back({2, schedule, Place::kNccl, {.replicas = 2, .gradient_blocks = 2}});
  }
  // The library's sum of two addends is the same as ours.
  all.push_back({2, "1f1b", Place::kNccl, {2, 4, false, partition::ReductionKind::kRing}});
  return all;
}

std::string NameOf(const ::testing::TestParamInfo<Partition>& test) {
  constexpr const char* kPlaces[] = {"OneGpu", "Copies", "Nccl"};
  std::string name = absl::StrCat(test.param.schedule, "_Devices", test.param.devices, "_",
                                  kPlaces[static_cast<int>(test.param.place)]);
  if (test.param.replication.is_needed()) {
    absl::StrAppend(
        &name, "_Replicas", test.param.replication.replicas,
        test.param.replication.shards_optimizer ? "_Sharded" : "",
        test.param.replication.reduction == partition::ReductionKind::kRing ? "_Ring" : "");
  }
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, CudaPartitions, ::testing::ValuesIn(AllPartitions()), NameOf);

// Within a stage a block leaves its final sum to a layer norm that comes next; with one layer per
// stage, none can.
TEST_F(CudaTraining, CutsBetweenResidualBlocksGiveTheSameAnswer) {
  for (const Precision precision : {Precision::kFloat32, Precision::kBfloat16}) {
    SCOPED_TRACE(PrecisionName(precision));
    const auto answer = [&](int stages, const std::vector<int>& first_layer) {
      TinyRun run = OnCuda(stages, "1f1b", Place::kOneGpu, Optimizer::AdamW(), precision);
      run.model = BlocksModel();
      run.first_layer = first_layer;
      return AnswerOf(run).value();
    };
    const int layers = BlocksModel().num_layers();
    const TinyAnswer expected = answer(layers, {});
    EXPECT_EQ(answer(1, {}), expected);
    for (int cut = 1; cut < layers; ++cut) {
      EXPECT_EQ(answer(2, {0, cut}), expected) << "cut before layer " << cut;
    }
  }
}

// The recomputed passes are graphs then, too.
TEST_F(CudaTraining, RecomputationGivesTheSameAnswerInThePredictedMemory) {
  for (const Model& model : {TinyModel(), BlocksModel(), FeedForwardModel(), TokenModel(),
                             LoraModel(), QuantizedModel(), PackedModel()}) {
    for (const char* schedule : {"1f1b", "zb-v"}) {
      for (const Precision precision : {Precision::kFloat32, Precision::kBfloat16}) {
        const Place place = NumGpus() < 2 ? Place::kOneGpu : Place::kNccl;
        TinyRun run = OnCuda(2, schedule, place, Optimizer::AdamW(), precision);
        run.model = model;
        const TinyAnswer expected = AnswerOf(run).value();
        run.recompute = Recompute::kFull;
        const auto trainer = TinyTrainer(run).value();
        EXPECT_GT(trainer->plan().recomputed.size(), 1U);
        EXPECT_EQ(AnswerOf(*trainer).value(), expected) << schedule;
        const std::vector<DeviceReport> reports = trainer->Devices().value();
        for (const DeviceReport& device : reports) {
          EXPECT_EQ(device.measured_peak_bytes, device.predicted_peak_bytes);
          EXPECT_EQ(device.plain_issues, 0) << device.why_plain;
        }
      }
    }
  }
}

// Dropout masks are made anew by recorded work, which must read the numbers of the current step. A
// head computes the loss in B, whole or split from W, and is tied to the embedding, wherever that
// is.
TEST_F(CudaTraining, BlocksOfTransformersAndHeadsGiveTheSameAnswer) {
  for (const Model& model :
       {FeedForwardModel(), TokenModel(), LoraModel(), QuantizedModel(), PackedModel()}) {
    for (const Precision precision : {Precision::kFloat32, Precision::kBfloat16}) {
      SCOPED_TRACE(PrecisionName(precision));
      const auto answer = [&](int stages, const std::string& schedule) {
        TinyRun run = OnCuda(stages, schedule, Place::kOneGpu, Optimizer::AdamW(), precision);
        run.model = model;
        return AnswerOf(run).value();
      };
      const TinyAnswer expected = answer(1, "gpipe");
      EXPECT_EQ(answer(2, "1f1b"), expected);
      EXPECT_EQ(answer(2, "dualpipe-v"), expected);
      EXPECT_EQ(answer(5, "zb-h1"), expected);
    }
  }
}

// At an absurd learning rate the second step overflows.
TEST_F(CudaTraining, StepsThatAreNotFiniteAreSkippedAlike) {
  struct Left {
    std::string skipped, hash;
  };
  const auto train = [](int devices, const std::string& schedule, Place place,
                        Precision precision) {
    TinyRun run = OnCuda(devices, schedule, place, Optimizer::Sgd(), precision);
    run.model = BlocksModel();
    run.options.optimizer.checks_gradients = true;
    run.options.learning_rate = LearningRate::Constant(1e30F);
    run.options.on_nonfinite = OnNonFinite::kSkip;
    const auto trainer = TinyTrainer(run).value();
    const auto data = SmallData(kTinyBatchRows);
    EXPECT_EQ(trainer->Step(*data, Rows(0, kTinyBatchRows)).value().skipped_for, "");
    const std::string after_one = trainer->ParametersHash().value();
    Left left;
    for (int step = 0; step < 2; ++step) {
      left.skipped = trainer->Step(*data, Rows(0, kTinyBatchRows)).value().skipped_for;
    }
    left.hash = trainer->ParametersHash().value();
    EXPECT_EQ(left.hash, after_one);
    return left;
  };
  for (const Precision precision : {Precision::kFloat32, Precision::kBfloat16}) {
    const Left expected = train(1, "gpipe", Place::kOneGpu, precision);
    EXPECT_THAT(expected.skipped, HasSubstr("for micro-batch 0 is not finite"));
    for (const auto& [devices, schedule] : {std::pair(2, "1f1b"), std::pair(3, "zb-h1")}) {
      const Place place = NumGpus() < devices ? Place::kOneGpu : Place::kNccl;
      const Left left = train(devices, schedule, place, precision);
      EXPECT_EQ(left.skipped, expected.skipped) << schedule;
      EXPECT_EQ(left.hash, expected.hash) << schedule;
    }
  }
}

// Returns a run in which one step of plain gradient descent at a learning rate of 1 moves a
// parameter by its gradient.
TinyRun GradientRun(TinyRun run) {
  run.options.optimizer = Optimizer::Sgd(/*momentum=*/0.0F);
  run.options.learning_rate = LearningRate::Constant(1.0F);
  return run;
}

struct Gradients {
  double loss = 0.0;
  std::vector<double> values;  // of all parameters, concatenated
};

Gradients GradientsOf(const TinyRun& run) {
  const auto trainer = TinyTrainer(GradientRun(run)).value();
  const auto data = TinyData(run.model, kTinyBatchRows);
  const auto parameters = [&] {
    std::vector<float> all;
    for (const ModelParameter& parameter : trainer->run().profile.parameters.all()) {
      const std::vector<float> values = trainer->Parameter(parameter.name).value();
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  };
  const std::vector<float> before = parameters();
  Gradients gradients;
  gradients.loss = trainer->Step(*data, Rows(0, kTinyBatchRows)).value().loss;
  const std::vector<float> after = parameters();
  for (size_t i = 0; i < after.size(); ++i) {
    gradients.values.push_back(static_cast<double>(before[i]) - after[i]);
  }
  return gradients;
}

// To first order, the effect of one rounding of a value is passed on like the value itself, and
// what meets on the way to a gradient is no larger than the largest gradients, except that each
// layer norm on a path magnifies by 1 / the standard deviation of a row: below 4 in these networks.
// So the difference is at most the roundings on the longest path times that magnification times the
// largest gradient.
struct GradientCase {
  const char* name;
  Model (*model)();
  int64_t roundings;     // of float32 on the longest path
  int stored;            // tensors on that path that are bfloat16 in that precision
  int products;          // on that path
  double magnification;  // by all layer norms on it, and attention
};

// TameModel: sums have as many roundings as terms, 20 + 3 x 16 forward and 4 + 3 x 16 + 24 rows
//   backward, and layer norms (16 each way) and activations 12 each way; x, z, y, dy, dz, dx and
//   weights of each of 6 operations; two products of each of 4 linear layers.
// TokenModel: 1 + 4 x 8 + 16 forward, 45 in the softmax, 37 + 2 x (8 + 16) + 120 positions back;
//   layer norms and activations as above; attention each way 2 x 4 for rotating, 4 of a score, 3 of
//   its scale, 4 of the exponential and 20 for the sum over positions and heads of a group; 11
//   operations, logits and their gradients, rotated queries and keys each way; two products of each
//   of 4 linear layers, and three of the head. Attention magnifies by its largest score, below 4.
const GradientCase kGradientCases[] = {
    {"TameModel", TameModel, 20 + 48 + 4 + 48 + 24 + 4 * 16 + 6 * 12, 7 * 6, 2 * 4, 16.0},
    {"TokenModel", TokenModel, 49 + 45 + 205 + 6 * 16 + 6 * 12 + 2 * 39, 7 * 11 + 2 + 4, 2 * 4 + 3,
     4 * 64.0}};

double Bound(const GradientCase& of, Precision precision) {
  double roundings = ::stagecoach::testing::Gamma(of.roundings, DType::kFloat32);
  if (precision == Precision::kTf32) {  // both operands
    roundings += 2 * of.products * std::ldexp(1.0, -11);
  } else if (precision == Precision::kBfloat16) {
    roundings += of.stored * std::ldexp(1.0, -9);
  }
  return roundings * of.magnification;
}

class CudaGradients : public CudaTraining,
                      public ::testing::WithParamInterface<std::tuple<GradientCase, Precision>> {};

TEST_P(CudaGradients, AreTheCpuBackends) {
  const auto& [of, precision] = GetParam();
  const Gradients expected = GradientsOf({.model = of.model(), .devices = 1, .schedule = "gpipe"});
  TinyRun run = OnCuda(2, "zb-h1", Place::kOneGpu, Optimizer::Sgd(), precision);
  run.model = of.model();
  const Gradients actual = GradientsOf(run);
  const double bound = Bound(of, precision);
  EXPECT_NEAR(actual.loss, expected.loss, bound * expected.loss);
  double largest = 0.0;
  double worst = 0.0;
  for (size_t i = 0; i < expected.values.size(); ++i) {
    largest = std::max(largest, std::fabs(expected.values[i]));
    worst = std::max(worst, std::fabs(actual.values[i] - expected.values[i]));
  }
  EXPECT_LE(worst, bound * largest);
  // A smaller difference means that it was not computed in that precision. (TF32 is a permission,
  // which the library need not use for products as small as these.)
  if (precision == Precision::kBfloat16) {
    EXPECT_GT(worst, std::ldexp(largest, -16));
  }
}

INSTANTIATE_TEST_SUITE_P(Precisions, CudaGradients,
                         ::testing::Combine(::testing::ValuesIn(kGradientCases),
                                            ::testing::Values(Precision::kFloat32, Precision::kTf32,
                                                              Precision::kBfloat16)),
                         [](const auto& test) {
                           return absl::StrCat(std::get<0>(test.param).name, "_",
                                               PrecisionName(std::get<1>(test.param)));
                         });

// Moving averages are included, which an update moves at any learning rate.
TEST_F(CudaTraining, StartsFromTheParametersOfTheCpuBackend) {
  for (const bool shards : {false, true}) {
    for (const Subject& subject : {kLayersOfAllKinds, kImages}) {
      SCOPED_TRACE(subject.name);
      const auto cpu =
          TinyTrainer({.model = subject.model(), .devices = 1, .schedule = "gpipe"}).value();
      const Partition partition = {
          2, "1f1b", Place::kOneGpu, {shards ? 2 : 1, /*gradient_blocks=*/2, shards}};
      ASSERT_OK_AND_ASSIGN(
          const auto cuda,
          TinyTrainer(OnCuda(partition, subject, Optimizer::AdamW(), Precision::kFloat32)));
      EXPECT_EQ(cuda->ParametersHash().value(), cpu->ParametersHash().value());
    }
  }
}

// Trains a step on the rows after those of the previous steps.
absl::Status TrainOn(Trainer& trainer) {
  const auto data = TinyData(trainer.run().model, 4 * kTinyBatchRows);
  return trainer.Step(*data, Rows(trainer.steps() * kTinyBatchRows, kTinyBatchRows)).status();
}

TEST_F(CudaTraining, GoesOnFromACheckpointWithTheSameBits) {
  const stagecoach::testing::TestFolder folder;
  for (const Precision precision : {Precision::kFloat32, Precision::kBfloat16}) {
    SCOPED_TRACE(PrecisionName(precision));
    const std::string run = (folder.path() / PrecisionName(precision)).string();
    const Optimizer optimizer = Optimizers().back();
    ASSERT_OK_AND_ASSIGN(const auto whole,
                         TinyTrainer(OnCuda(1, "gpipe", Place::kOneGpu, optimizer, precision)));
    ASSERT_OK_AND_ASSIGN(const auto first,
                         TinyTrainer(OnCuda(3, "1f1b", Place::kOneGpu, optimizer, precision)));
    ASSERT_OK_AND_ASSIGN(const auto second,
                         TinyTrainer(OnCuda(2, "zb-v", Place::kOneGpu, optimizer, precision)));
    for (int step = 0; step < 3; ++step) ASSERT_OK(TrainOn(*whole));
    ASSERT_OK(TrainOn(*first));
    ASSERT_OK(TrainOn(*first));
    ASSERT_OK(first->Save(run));
    ASSERT_OK(second->Restore(run));
    ASSERT_OK(TrainOn(*second));
    EXPECT_EQ(second->ParametersHash().value(), whole->ParametersHash().value());
  }
}

void ExpectCheckpointsOfTheCpuBackendAreTaken(const Subject& subject) {
  SCOPED_TRACE(subject.name);
  const stagecoach::testing::TestFolder folder;
  const std::string of_cpu = (folder.path() / "cpu").string();
  const std::string of_cuda = (folder.path() / "cuda").string();
  ASSERT_OK_AND_ASSIGN(const auto cpu,
                       TinyTrainer(TinyRun{.model = subject.model(), .devices = 2}));
  ASSERT_OK(TrainOn(*cpu));
  ASSERT_OK_AND_ASSIGN(const std::string saved, cpu->Save(of_cpu));
  for (const Precision precision : {Precision::kFloat32, Precision::kBfloat16}) {
    TinyRun run = OnCuda(3, "gpipe", Place::kOneGpu, Optimizer::AdamW(), precision);
    run.model = subject.model();
    ASSERT_OK_AND_ASSIGN(const auto cuda, TinyTrainer(run));
    ASSERT_OK(cuda->Restore(saved));
    EXPECT_EQ(cuda->ParametersHash().value(), cpu->ParametersHash().value());
    // All of the state is restored: it is saved again as it was.
    ASSERT_OK_AND_ASSIGN(const std::string again, cuda->Save(of_cuda));
    ASSERT_OK_AND_ASSIGN(const Checkpoint left, Checkpoint::Open(saved));
    ASSERT_OK_AND_ASSIGN(const Checkpoint right, Checkpoint::Open(again));
    ASSERT_OK_AND_ASSIGN(const CheckpointDifference difference, Compare(left, right));
    EXPECT_TRUE(difference.empty());
    EXPECT_GT(difference.compared, 30);
    ASSERT_OK(TrainOn(*cuda));
    ASSERT_OK(cuda->Save(of_cuda));
  }
  ASSERT_OK(cpu->Restore(of_cuda));
  EXPECT_EQ(cpu->steps(), 2);
  EXPECT_OK(TrainOn(*cpu));
}

TEST_F(CudaTraining, TakesCheckpointsOfTheCpuBackendAndGivesItsOwn) {
  for (const Subject& subject : {kLayersOfAllKinds, kGpt2, kLlama, kGptNeoX, kGemma, kImages}) {
    ExpectCheckpointsOfTheCpuBackendAreTaken(subject);
  }
}

TEST_F(CudaTraining, NeedsExactlyThePredictedMemory) {
  TinyRun run = OnCuda(2, "1f1b", Place::kOneGpu);
  int64_t largest = 0;
  const std::vector<DeviceReport> devices = TinyTrainer(run).value()->Devices().value();
  for (const DeviceReport& device : devices) {
    largest = std::max(largest, device.predicted_peak_bytes);
  }
  run.options.device.memory_bytes = largest;
  EXPECT_OK(AnswerOf(run));
  run.options.device.memory_bytes = largest - 1;
  EXPECT_THAT(TinyTrainer(run), StatusIs(absl::StatusCode::kResourceExhausted, "cuda:"));
}

// With one layer per stage a ReLU is apart from its norm, and a block's input may have another
// order of channels than in the stage before.
void ExpectTheSameAnswerAtEveryCut(const Model& model) {
  const auto answer = [&](int stages, const std::vector<int>& first_layer, const char* schedule) {
    TinyRun run =
        OnCuda(stages, schedule, Place::kOneGpu, Optimizer::AdamW(), Precision::kBfloat16);
    run.model = model;
    run.first_layer = first_layer;
    return AnswerOf(run).value();
  };
  const int layers = model.num_layers();
  const TinyAnswer expected = answer(layers, {}, "1f1b");
  EXPECT_EQ(answer(1, {}, "1f1b"), expected);
  for (int cut = 1; cut < layers; ++cut) {
    EXPECT_EQ(answer(2, {0, cut}, cut % 2 == 0 ? "zb-h1" : "1f1b"), expected)
        << "cut before layer " << cut;
  }
}

TEST_F(CudaTraining, CutsBetweenLayersOfImagesGiveTheSameAnswer) {
  ExpectTheSameAnswerAtEveryCut(ImageModel());
}

TEST_F(CudaTraining, CutsBetweenBlocksOfImagesGiveTheSameAnswer) {
  ExpectTheSameAnswerAtEveryCut(ResidualBlocksModel());
}

// The layers alternate between features, images with channels first in memory, and images with
// channels last.
TEST_F(CudaTraining, ImagesMayBeInAnyOrderBetweenLayers) {
  const auto answer = [&](int stages) {
    TinyRun run = OnCuda(stages, "1f1b", Place::kOneGpu);
    run.model = {.input = Shape{1, 5, 4},
                 .layers = {Linear(6), Dropout(0.1F), MaxPool({.kernel = 2, .stride = 1}),
                            Residual({LayerNorm(), Linear(5)}), GroupNorm(1), Flatten(),
                            Linear(kSmallClasses)}};
    return AnswerOf(run).value();
  };
  const TinyAnswer expected = answer(1);
  for (const int stages : {2, 7}) EXPECT_EQ(answer(stages), expected);
}

TEST_F(CudaTraining, ImagesMatchPyTorch) {
  for (const Precision precision : {Precision::kFloat32, Precision::kBfloat16}) {
    SCOPED_TRACE(PrecisionName(precision));
    ExpectImagesToMatchPyTorch({.kind = DeviceKind::kCuda, .precision = precision, .gpus = {0, 0}});
  }
}

TEST_F(CudaTraining, TracesEveryAction) {
  TinyRun run = OnCuda(3, "1f1b", Place::kOneGpu);
  run.options.trace = true;
  const auto trainer = TinyTrainer(run).value();
  ASSERT_OK(AnswerOf(*trainer));
  ASSERT_OK_AND_ASSIGN(const schedule::Trace trace, trainer->LastTrace());
  ASSERT_EQ(trace.actions.size(), 3U);
  for (const std::vector<schedule::TimedAction>& list : trace.actions) {
    int64_t last_end_ns = 0;
    for (const schedule::TimedAction& timed : list) {
      EXPECT_LE(timed.reached_ns, timed.start_ns) << ToString(timed.action);
      EXPECT_LE(timed.start_ns, timed.end_ns) << ToString(timed.action);
      if (!schedule::IsCompute(timed.action.op)) continue;
      EXPECT_TRUE(timed.as_graph) << ToString(timed.action);
      EXPECT_LE(last_end_ns, timed.start_ns) << ToString(timed.action);
      last_end_ns = timed.end_ns;
    }
    EXPECT_GT(last_end_ns, 0);
  }
  ASSERT_OK_AND_ASSIGN(const std::vector<DeviceReport> devices, trainer->Devices());
  for (const DeviceReport& device : devices) {
    EXPECT_GT(device.busy, 0.0) << device.device;
    EXPECT_LE(device.busy, 1.0) << device.device;
  }
}

// The trainer's own counts of correct rows are computed from the same outputs.
TEST_F(CudaTraining, PredictsWhatItEvaluates) {
  const auto data = SmallData(kTinyBatchRows + 5);
  for (const Precision precision : {Precision::kFloat32, Precision::kBfloat16}) {
    const auto trainer =
        TinyTrainer(OnCuda(2, "1f1b", Place::kOneGpu, Optimizer::AdamW(), precision)).value();
    const std::vector<float> outputs = trainer->Predict(*data).value();
    ASSERT_EQ(static_cast<int64_t>(outputs.size()), data->rows() * kSmallClasses);
    int64_t correct = 0;
    for (int64_t row = 0; row < data->rows(); ++row) {
      const auto first = outputs.begin() + row * kSmallClasses;
      correct += std::max_element(first, first + kSmallClasses) - first == data->label(row) ? 1 : 0;
    }
    EXPECT_EQ(correct, trainer->Evaluate(*data).value().correct) << PrecisionName(precision);
  }
}

TEST_F(CudaTraining, PredictsByAPlanThatDoesNotTrain) {
  const stagecoach::testing::TestFolder folder;
  const auto data = SmallData(3 * kTinyBatchRows + 5);
  for (const Precision precision : {Precision::kFloat32, Precision::kBfloat16}) {
    const TinyRun run = OnCuda(3, "1f1b", Place::kOneGpu, Optimizer::AdamW(), precision);
    const auto trained = TinyTrainer(run).value();
    ASSERT_OK(TrainOn(*trained));
    ASSERT_OK(trained->Save(folder.path().string()));
    PlanOptions options = {.devices = 2,
                           .predicts = true,
                           .micro_batches = 5,
                           .micro_batch_rows = trained->plan().micro_batch_rows,
                           .device = run.options.device,
                           .exchange = run.options.exchange};
    ASSERT_OK_AND_ASSIGN(PreparedRun prepared, PrepareRun(trained->run().model, options));
    ASSERT_OK_AND_ASSIGN(const auto trainer,
                         Trainer::Create(std::move(prepared), {.device = run.options.device,
                                                               .exchange = run.options.exchange}));
    ASSERT_OK(trainer->Restore(folder.path().string()));
    EXPECT_EQ(trainer->Predict(*data).value(), trained->Predict(*data).value())
        << PrecisionName(precision);
    ASSERT_OK_AND_ASSIGN(const std::vector<DeviceReport> devices, trainer->Devices());
    for (const DeviceReport& device : devices) {
      EXPECT_EQ(device.measured_peak_bytes, device.predicted_peak_bytes);
      EXPECT_EQ(device.plain_issues, 0) << device.why_plain;
      EXPECT_GT(device.graph_issues, 0);
    }
  }
}

TEST_F(CudaTraining, IssuesEveryComputationAsAGraph) {
  for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe-v"}) {
    const auto trainer = TinyTrainer(OnCuda(2, schedule, Place::kOneGpu)).value();
    ASSERT_OK(AnswerOf(*trainer));
    const partition::LoweredSchedules& lowered = *trainer->run().compiled.lowered;
    const int64_t trained = ComputeActions(lowered.training);
    const int64_t evaluated = ComputeActions(lowered.evaluation);
    int64_t graphs = 0, issues = 0;
    ASSERT_OK_AND_ASSIGN(const std::vector<DeviceReport> devices, trainer->Devices());
    for (const DeviceReport& device : devices) {
      EXPECT_EQ(device.plain_issues, 0) << schedule << ", " << device.why_plain;
      graphs += device.graphs;
      issues += device.graph_issues;
    }
    EXPECT_EQ(graphs, trained + evaluated) << schedule;
    // Two batches are evaluated, and the same two predicted.
    EXPECT_EQ(issues, kTinySteps * trained + 4 * evaluated) << schedule;
  }
}

// Recorded work reads the inputs of the current run: targets that were copied ahead, or not, or of
// another batch than was announced, or of an evaluation in between.
TEST_F(CudaTraining, WhatIsAnnouncedChangesNoBit) {
  const auto data = SmallData(6 * kTinyBatchRows);
  const auto batch = [](int64_t number) { return Rows(number * kTinyBatchRows, kTinyBatchRows); };
  const auto train = [&](int devices, const std::string& schedule, bool announces) {
    const auto trainer = TinyTrainer(OnCuda(devices, schedule, Place::kOneGpu)).value();
    std::vector<double> losses;
    for (int step = 0; step < 5; ++step) {
      std::vector<int64_t> next;
      if (announces) next = batch(step == 1 ? 5 : step + 1);  // the second one is wrong
      losses.push_back(trainer->Step(*data, batch(step), next).value().loss);
      if (step == 3) losses.push_back(trainer->Evaluate(*SmallData(5)).value().loss);
    }
    return std::pair(losses, trainer->ParametersHash().value());
  };
  EXPECT_EQ(train(1, "1f1b", true), train(1, "1f1b", false));
  EXPECT_EQ(train(2, "zb-v", true), train(2, "zb-v", false));
}

// The same graphs serve every number of valid rows, and a prediction without targets.
TEST_F(CudaTraining, EvaluatesAnyNumberOfRowsAsTheCpuBackend) {
  TinyRun run = OnCuda(2, "1f1b", Place::kOneGpu);
  run.model = TameModel();
  const auto cuda = TinyTrainer(run).value();
  run.options.device = {};
  run.options.exchange = Exchange::kAuto;
  const auto cpu = TinyTrainer(run).value();
  for (const int64_t rows : {int64_t{1}, kTinyMicroBatchRows, kTinyMicroBatchRows + 1,
                             kTinyBatchRows - 1, 2 * kTinyBatchRows, int64_t{2}}) {
    const auto data = SmallData(rows);
    const double expected = cpu->Evaluate(*data).value().loss;
    const double bound = Bound(kGradientCases[0], Precision::kFloat32) * expected;
    EXPECT_NEAR(cuda->Evaluate(*data).value().loss, expected, bound) << rows;
    std::vector<float> features(static_cast<size_t>(rows * kSmallFeatures));
    for (int64_t row = 0; row < rows; ++row) {
      data->CopyNumbers(0, row,
                        absl::MakeSpan(features).subspan(static_cast<size_t>(row * kSmallFeatures),
                                                         kSmallFeatures));
    }
    const auto unlabelled = TableDataset::Create({kSmallFeatures}, 0, features, {}).value();
    EXPECT_EQ(cuda->Predict(*unlabelled).value(), cuda->Predict(*data).value()) << rows;
  }
  ASSERT_OK_AND_ASSIGN(const std::vector<DeviceReport> devices, cuda->Devices());
  for (const DeviceReport& device : devices) EXPECT_EQ(device.plain_issues, 0);
}

TEST_F(CudaTraining, RefusesNcclBetweenDevicesOfOneGpu) {
  TinyRun run = OnCuda(2, "1f1b", Place::kNccl);
  run.options.device.gpus = {0, 0};
  run.options.deadline = absl::Seconds(20);
  EXPECT_THAT(TinyTrainer(run).status().message(),
              AllOf(HasSubstr(" of 2: nccl"), HasSubstr("Duplicate GPU detected")));
}

// Transfers are grouped, which receive at other times than separate ones.
TEST_F(CudaTraining, TakesExactlyThePredictedMemoryUnderARandomPlan) {
  if (NumGpus() < 4) GTEST_SKIP() << "there are " << NumGpus() << " GPUs";
  const PlannedRuns runs =
      ExpectPlansToRun(/*seed=*/8, /*trials=*/12, OnCuda(4, "auto", Place::kNccl).options);
  EXPECT_GT(runs.planned, 6);
  EXPECT_GT(runs.tightened, 10);
}

}  // namespace
}  // namespace stagecoach::engine
