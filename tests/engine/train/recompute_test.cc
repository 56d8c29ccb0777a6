// Layers that repeat F within B: the same bits, in exactly the predicted memory.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/data/tokens/tokens.h"
#include "engine/nn/layers/attention.h"
#include "engine/nn/layers/composite/residual.h"
#include "engine/nn/layers/dropout.h"
#include "engine/nn/layers/embedding.h"
#include "engine/nn/layers/layer_norm.h"
#include "engine/nn/layers/linear.h"
#include "engine/nn/layers/swiglu.h"
#include "engine/runtime/stage/profile.h"
#include "engine/train/trainer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/train/runs/small_run.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::IsRefused;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int kAgainMicroBatches = 12;  // every schedule here takes this many
constexpr int64_t kAgainRows = 5;       // of a micro-batch
constexpr int64_t kAgainBatch = kAgainMicroBatches * kAgainRows;
constexpr int64_t kAgainSteps = 2;

struct NamedModel {
  std::string name;
  Model model;
};

// Returns residual blocks that leave their sums to each other, dropout and attention: the cases in
// which repeating F takes care.
std::vector<NamedModel> Models() {
  constexpr int64_t kWidth = 24;
  constexpr int64_t kVocabulary = 11;
  const LayerFactory feed_forward =
      Residual({RmsNorm(), Linear(2 * kWidth), SwiGlu(), Dropout(0.3F), Linear(kWidth)});
  return {
      {"small", SmallModel()},
      {"dropout",
       {.input = Shape{kSmallFeatures},
        .layers = {Dropout(0.1F), Linear(kWidth, Activation::kGelu), feed_forward, feed_forward,
                   Dropout(0.2F), LayerNorm(), Linear(kSmallClasses)}}},
      {"tokens",
       {.input = Shape{6},
        .vocabulary = kVocabulary,
        .layers = {Embedding({.vocabulary = kVocabulary, .features = 8, .positions = true}),
                   Residual({LayerNorm(), Linear(24), Attention({.heads = 2}), Linear(8)}),
                   Residual({LayerNorm(), Linear(16, Activation::kGelu), Linear(8)}), Linear(24),
                   Attention({.heads = 2}), Linear(8, Activation::kGelu), LayerNorm(),
                   Linear(kVocabulary)}}},
      {"tied",
       {.input = Shape{kSmallFeatures},
        .layers = {Linear(kWidth), feed_forward, Linear(kWidth, Activation::kGelu), LayerNorm(),
                   Linear(kWidth, Activation::kGelu), feed_forward, Linear(kSmallClasses)},
        .ties = {{{2, "weight"}, {4, "weight"}}, {{1, "1.weight"}, {5, "1.weight"}}}}},
  };
}

std::shared_ptr<const Dataset> DataFor(const Model& model) {
  if (model.vocabulary == 0) return SmallData(kAgainSteps * kAgainBatch);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i <= kAgainSteps * kAgainBatch * model.input.dim(0); ++i) {
    ids.push_back(static_cast<int32_t>(i * i % 23 % model.vocabulary));
  }
  return TokenDataset::Create(TokenIds::Of(std::move(ids)).value(), model.input.dim(0),
                              model.vocabulary)
      .value();
}

// Everything that a run produces and that recomputation must not change.
struct Outcome {
  std::vector<double> losses, norms;
  double evaluation_loss = 0.0;
  std::string hash;

  friend bool operator==(const Outcome&, const Outcome&) = default;
};

void PrintTo(const Outcome& outcome, std::ostream* out) {
  *out << "losses " << absl::StrJoin(outcome.losses, " ") << ", norms "
       << absl::StrJoin(outcome.norms, " ") << ", evaluation " << outcome.evaluation_loss
       << ", parameters " << outcome.hash;
}

Outcome OutcomeOf(const Model& model, const partition::Plan& plan, float clip_norm) {
  TrainerOptions options;
  options.optimizer.clip_norm = clip_norm;
  const auto trainer = MakeTrainer(model, plan, options);
  const auto data = DataFor(model);
  Outcome outcome;
  for (int64_t step = 0; step < kAgainSteps; ++step) {
    const StepResult taken = trainer->Step(*data, Rows(step * kAgainBatch, kAgainBatch)).value();
    outcome.losses.push_back(taken.loss);
    outcome.norms.push_back(taken.gradient_norm);
  }
  outcome.evaluation_loss = trainer->Evaluate(*data).value().loss;
  outcome.hash = trainer->ParametersHash().value();
  const std::vector<DeviceReport> devices = trainer->Devices().value();
  for (const DeviceReport& device : devices) {
    EXPECT_EQ(device.measured_peak_bytes, device.predicted_peak_bytes) << device.device;
    EXPECT_EQ(device.measured_stash_bytes, device.predicted_stash_bytes) << device.device;
  }
  return outcome;
}

ModelProfile ProfileOf(const Model& model) {
  return AnalyzeModel(model, {.micro_batch_rows = kAgainRows}).value();
}

std::vector<int> AbleLayers(const Model& model) {
  const ModelProfile profile = ProfileOf(model);
  std::vector<int> able;
  for (int i = 0; i < model.num_layers(); ++i) {
    if (profile.layers[static_cast<size_t>(i)].recompute_stash_bytes.has_value()) able.push_back(i);
  }
  return able;
}

struct Spread {
  int devices;
  const char* schedule;
  partition::Replication replication = {};
};

void PrintTo(const Spread& spread, std::ostream* out) {
  *out << spread.schedule << " over " << spread.devices << ", " << spread.replication.replicas
       << " replicas";
}

class Recomputation : public ::testing::TestWithParam<Spread> {};

TEST_P(Recomputation, ChangesNoBitAndTakesThePredictedMemory) {
  const Spread& spread = GetParam();
  for (const NamedModel& named : Models()) {
    const Model& model = named.model;
    partition::Plan plan = EvenPlan(model, spread.devices, spread.schedule, kAgainMicroBatches,
                                    kAgainRows, 0, spread.replication);
    for (const float clip_norm : {0.0F, 0.05F}) {
      plan.recomputed.clear();
      const Outcome expected = OutcomeOf(model, plan, clip_norm);
      const std::vector<int> able = AbleLayers(model);
      ASSERT_GE(able.size(), 4U);
      // All of them are recomputed, then every other one.
      plan.recomputed = able;
      EXPECT_EQ(OutcomeOf(model, plan, clip_norm), expected) << named.name << " with all";
      for (size_t i = able.size(); i-- > 0;) {
        if (i % 2 == 1) plan.recomputed.erase(plan.recomputed.begin() + static_cast<ptrdiff_t>(i));
      }
      EXPECT_EQ(OutcomeOf(model, plan, clip_norm), expected) << named.name << " with some";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, Recomputation,
    ::testing::Values(Spread{1, "gpipe"}, Spread{2, "1f1b"}, Spread{4, "1f1b"}, Spread{7, "gpipe"},
                      Spread{3, "interleaved"}, Spread{2, "looped-bfs"}, Spread{2, "zb-h1"},
                      Spread{3, "zb-h2"}, Spread{2, "zb-v"}, Spread{2, "v-half"},
                      Spread{3, "v-min"}, Spread{2, "dualpipe-v"}, Spread{1, "gpipe", {2, 4}},
                      Spread{2, "1f1b", {2, 2}}, Spread{2, "zb-h1", {2, 4}},
                      Spread{2, "zb-v", {2, 2, /*shards_optimizer=*/true}}),
    [](const auto& test) {
      std::string name = absl::StrCat(test.param.schedule, "_Devices", test.param.devices,
                                      "_Replicas", test.param.replication.replicas, "_Blocks",
                                      test.param.replication.gradient_blocks);
      std::replace(name.begin(), name.end(), '-', '_');
      return name;
    });

// The layer is first, last, in the middle, and alone in a stage.
TEST(RecomputationTest, OfEachLayerAloneChangesNoBit) {
  for (const NamedModel& named : Models()) {
    for (const char* schedule : {"1f1b", "zb-h1"}) {
      for (const int devices : {1, 3}) {
        partition::Plan plan =
            EvenPlan(named.model, devices, schedule, kAgainMicroBatches, kAgainRows);
        const Outcome expected = OutcomeOf(named.model, plan, 0.0F);
        for (const int layer : AbleLayers(named.model)) {
          plan.recomputed = {layer};
          EXPECT_EQ(OutcomeOf(named.model, plan, 0.0F), expected)
              << named.name << ", " << schedule << " over " << devices << ", layer " << layer;
        }
      }
    }
  }
}

TEST(RecomputationTest, DoesOneMoreForwardPassOfTheLayerAndNoOther) {
  for (const char* schedule : {"1f1b", "zb-h1"}) {
    int forward = 0, backward = 0;
    const ProbeHooks hooks = {.on_prepare = {}, .before = [&](schedule::Op op, int) {
                                ++(op == schedule::Op::kForward ? forward : backward);
                                return absl::OkStatus();
                              }};
    const Model model = {
        .input = Shape{kSmallFeatures},
        .layers = {LayerNorm(), Residual({LayerNorm(), Probe(&hooks)}), Linear(kSmallClasses)}};
    partition::Plan plan = EvenPlan(model, 1, schedule, kAgainMicroBatches, kAgainRows);
    for (const bool again : {false, true}) {
      plan.recomputed = again ? std::vector<int>{1} : std::vector<int>{};
      const auto trainer = MakeTrainer(model, plan, {});
      forward = backward = 0;
      ASSERT_OK(trainer->Step(*SmallData(kAgainBatch), Rows(0, kAgainBatch)));
      EXPECT_EQ(forward, (again ? 2 : 1) * kAgainMicroBatches) << schedule;
      EXPECT_EQ(backward, kAgainMicroBatches) << schedule;
    }
  }
}

// The blocks are GPT-2's: each keeps only its input.
TEST(RecomputationTest, CutsWhatTransformersKeepToAFifthOrLess) {
  constexpr int64_t kWidth = 64;
  Model model = {.input = Shape{32, kWidth}, .layers = {}};
  for (int block = 0; block < 4; ++block) {
    model.layers.push_back(Residual(
        {LayerNorm(), Linear(3 * kWidth), Attention({.heads = 4}), Linear(kWidth), Dropout(0.1F)}));
    model.layers.push_back(Residual(
        {LayerNorm(), Linear(4 * kWidth, Activation::kGelu), Linear(kWidth), Dropout(0.1F)}));
  }
  const auto stash = [&](Recompute recompute) {
    return PrepareRun(
               model,
               PlanOptions{
                   .devices = 2, .micro_batches = 8, .micro_batch_rows = 4, .recompute = recompute})
        .value()
        .compiled.ranks[0]
        .training.peak_stash_bytes;
  };
  EXPECT_GE(stash(Recompute::kNone), 5 * stash(Recompute::kFull));
  EXPECT_LT(stash(Recompute::kFull), stash(Recompute::kAttention));
  EXPECT_LT(stash(Recompute::kAttention), stash(Recompute::kNone));
}

TEST(RecomputationTest, IsOfTheLayersThatAreAskedFor) {
  const Model model = Models()[2].model;
  partition::Plan plan = EvenPlan(model, 2, "1f1b", kAgainMicroBatches, kAgainRows);
  plan.recomputed = {2};
  const auto of_given = [&](Recompute recompute) {
    return PrepareRun(model, GivenPlan{.plan = plan, .recompute = recompute})
        .value()
        .plan()
        .recomputed;
  };
  EXPECT_THAT(of_given(Recompute::kPlanned), ElementsAre(2));
  EXPECT_THAT(of_given(Recompute::kNone), IsEmpty());
  EXPECT_THAT(of_given(Recompute::kAttention), ElementsAre(1, 4));
  EXPECT_THAT(of_given(Recompute::kFull), ElementsAre(1, 2, 4, 5, 6));

  for (const char* schedule : {"1f1b", "auto"}) {
    const auto of_found = [&](Recompute recompute) {
      return PrepareRun(model, PlanOptions{.devices = 2,
                                           .schedule = schedule,
                                           .micro_batches = kAgainMicroBatches,
                                           .micro_batch_rows = kAgainRows,
                                           .recompute = recompute})
          .value();
    };
    EXPECT_THAT(of_found(Recompute::kPlanned).plan().recomputed, IsEmpty());
    const PreparedRun found = of_found(Recompute::kFull);
    EXPECT_THAT(found.plan().recomputed, ElementsAre(1, 2, 4, 5, 6)) << schedule;
    // The plan was found together with the memory that it takes.
    const PreparedRun given = PrepareRun(model, GivenPlan{.plan = found.plan()}).value();
    for (size_t rank = 0; rank < given.compiled.ranks.size(); ++rank) {
      EXPECT_EQ(found.compiled.ranks[rank].peak_bytes(), given.compiled.ranks[rank].peak_bytes());
    }
  }
}

TEST(RecomputationTest, OfALayerThatKeepsNothingIsRefused) {
  partition::Plan plan = EvenPlan(SmallModel(), 2, "1f1b", 4, 4);
  plan.recomputed = {7};
  EXPECT_THAT(Trainer::Create(SmallModel(), plan, {}),
              IsRefused("recomputes layer 7 (linear 30 -> 4)"));
}

TEST(RecomputationTest, MayChangeWhenARunIsResumed) {
  const testing::TestFolder folder;
  const auto data = SmallData(2 * kAgainBatch);
  partition::Plan without = EvenPlan(SmallModel(), 2, "1f1b", kAgainMicroBatches, kAgainRows);
  partition::Plan with = EvenPlan(SmallModel(), 3, "zb-h1", kAgainMicroBatches, kAgainRows);
  with.recomputed = AbleLayers(SmallModel());
  const auto whole = MakeTrainer(SmallModel(), without, {});
  for (int64_t step = 0; step < 2; ++step) {
    ASSERT_OK(whole->Step(*data, Rows(step * kAgainBatch, kAgainBatch)));
  }
  for (const bool first : {false, true}) {
    const std::string path = absl::StrCat(folder.path().string(), "/", first);
    const auto before = MakeTrainer(SmallModel(), first ? with : without, {});
    ASSERT_OK(before->Step(*data, Rows(0, kAgainBatch)));
    ASSERT_OK(before->Save(path));
    const auto after = MakeTrainer(SmallModel(), first ? without : with, {});
    ASSERT_OK(after->Restore(path));
    ASSERT_OK(after->Step(*data, Rows(kAgainBatch, kAgainBatch)));
    EXPECT_EQ(after->ParametersHash().value(), whole->ParametersHash().value());
  }
}

}  // namespace
}  // namespace stagecoach::engine
