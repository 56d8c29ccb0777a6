#include "engine/train/fingerprint.h"

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "engine/nn/layers/layer_norm.h"
#include "engine/nn/layers/linear.h"
#include "gtest/gtest.h"
#include "partition/plan/plan.h"
#include "tests/engine/train/runs/small_run.h"

namespace stagecoach::engine {
namespace {

struct Subject {
  Model model = {.input = Shape{kSmallFeatures},
                 .layers = {Linear(8, Activation::kGelu), Linear(8), Linear(kSmallClasses)}};
  std::string schedule = "1f1b";
  int micro_batches = 4;
  int64_t micro_batch_rows = 3;
  std::vector<int> first_layer = {0, 1};
  partition::Replication replication;
  TrainerOptions options = {.optimizer = Optimizer::Sgd(), .fingerprint = "data"};
};

std::string FingerprintOf(const Subject& subject) {
  partition::Plan plan =
      EvenPlan(subject.model, 2, subject.schedule, subject.micro_batches, subject.micro_batch_rows);
  plan.first_layer = subject.first_layer;
  plan.replication = subject.replication;
  const PreparedRun run =
      PrepareRun(subject.model, GivenPlan{.plan = plan,
                                          .optimizer = subject.options.optimizer,
                                          .device = subject.options.device})
          .value();
  return FingerprintOf(run, subject.options);
}

TEST(Fingerprint, IsThatOfAnEqualRun) {
  EXPECT_EQ(FingerprintOf(Subject()), FingerprintOf(Subject()));
}

TEST(Fingerprint, IsAnotherOfARunThatDiffersInAnything) {
  const std::vector<std::function<void(Subject&)>> changes = {
      [](Subject& s) { s.model.layers[0] = Linear(8, Activation::kRelu); },
      [](Subject& s) { s.model.layers[1] = LayerNorm(); },
      // The spread of the initial weights differs, but the description is the same.
      [](Subject& s) { s.model.layers[1] = Linear(8, Activation::kNone, 2.0F); },
      [](Subject& s) { s.model.loss = MeanSquaredError(); },
      [](Subject& s) { s.schedule = "gpipe"; },
      [](Subject& s) { s.micro_batches = 6; },
      [](Subject& s) { s.micro_batch_rows = 2; },
      [](Subject& s) {
        s.first_layer = {0, 2};
      },
      [](Subject& s) { s.replication = {.replicas = 2, .gradient_blocks = 2}; },
      [](Subject& s) { s.replication.gradient_blocks = 2; },
      [](Subject& s) {
        s.replication = {.replicas = 2, .gradient_blocks = 2, .shards_optimizer = true};
      },
      [](Subject& s) {
        s.replication = {2, 2, false, partition::ReductionKind::kRing};
      },
      [](Subject& s) { s.replication = {.replicas = 2, .gradient_blocks = 2, .part_bytes = 4096}; },
      [](Subject& s) { s.options.optimizer = Optimizer::AdamW(); },
      [](Subject& s) { s.options.optimizer.momentum = 0.5F; },
      [](Subject& s) { s.options.optimizer.weight_decay = 0.5F; },
      [](Subject& s) { s.options.optimizer.beta1 = 0.5F; },
      [](Subject& s) { s.options.optimizer.beta2 = 0.5F; },
      [](Subject& s) { s.options.optimizer.epsilon = 0.5F; },
      [](Subject& s) { s.options.optimizer.clip_norm = 0.5F; },
      [](Subject& s) { s.options.optimizer.ema_decay = 0.5F; },
      [](Subject& s) { s.options.learning_rate = LearningRate::Constant(0.1F); },
      // Only the last bit differs.
      [](Subject& s) { s.options.learning_rate = LearningRate::Constant(0.10000001F); },
      [](Subject& s) { s.options.learning_rate = LearningRate::WarmupCosine(0.1F, 1, 10); },
      [](Subject& s) { s.options.learning_rate = LearningRate::WarmupCosine(0.1F, 2, 10); },
      [](Subject& s) { s.options.learning_rate = LearningRate::WarmupCosine(0.1F, 1, 11); },
      [](Subject& s) { s.options.learning_rate = LearningRate::WarmupCosine(0.1F, 1, 11, 0.01F); },
      [](Subject& s) { s.options.seed = 2; },
      // The two seeds are one number as a float.
      [](Subject& s) { s.options.seed = 1 << 24; },
      [](Subject& s) { s.options.seed = (1 << 24) + 1; },
      [](Subject& s) { s.options.replica_check_steps = 2; },
      [](Subject& s) { s.options.fingerprint = "other data"; },
  };
  std::set<std::string> all = {FingerprintOf(Subject())};
  for (size_t i = 0; i < changes.size(); ++i) {
    Subject subject;
    changes[i](subject);
    EXPECT_TRUE(all.insert(FingerprintOf(subject)).second) << "change " << i;
  }
}

}  // namespace
}  // namespace stagecoach::engine
