// Replicas that have diverged are detected.
#include <atomic>
#include <memory>
#include <string>

#include "engine/nn/layers/linear.h"
#include "engine/train/trainer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/ops/ops.h"
#include "tests/engine/train/runs/small_run.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::StatusIs;

constexpr int64_t kReplicaRows = 8;

// A layer that passes everything on. Once `is_due` is true, the next forward pass changes the only
// parameter, which has no gradient, in one of the replicas.
class DamagedLayer final : public Layer {
 public:
  explicit DamagedLayer(std::atomic<bool>* is_due) : is_due_(*is_due) {}

  absl::StatusOr<LayerSpec> Prepare(const LayerContext& context) override {
    elementwise_ = &context.device.ops().elementwise();
    LayerSpec spec;
    spec.description = "damaged";
    spec.output = context.input;
    spec.parameters.push_back({.name = "value", .shape = Shape{1}, .decays = false});
    return spec;
  }
  absl::Status Forward(const LayerArgs& args) override {
    if (is_due_.exchange(false)) *args.parameters.front().f32() += 1.0F;
    return elementwise_->Copy(args.stream, args.x, args.y);
  }
  absl::Status BackwardInput(const LayerArgs& args) override {
    return args.dx.empty() ? absl::OkStatus() : elementwise_->Copy(args.stream, args.dy, args.dx);
  }
  absl::Status BackwardWeight(const LayerArgs& args) override {
    if (!args.accumulate) *args.gradients.front().f32() = 0.0F;
    return absl::OkStatus();
  }

 private:
  std::atomic<bool>& is_due_;
  kernels::ElementwiseOps* elementwise_ = nullptr;
};

class DamagedReplica : public ::testing::Test {
 protected:
  void Make(int64_t check_steps, int replicas = 2) {
    const Model model = {.input = Shape{kSmallFeatures},
                         .layers = {Linear(kSmallClasses), LayerOf<DamagedLayer>(&is_due_)}};
    trainer_ = MakeTrainer(model,
                           EvenPlan(model, 1, "1f1b", 4, kReplicaRows / 4, /*chunks=*/1,
                                    {.replicas = replicas, .gradient_blocks = 2}),
                           {.replica_check_steps = check_steps});
  }
  absl::Status Step() { return trainer_->Step(*data_, Rows(0, kReplicaRows)).status(); }

  std::atomic<bool> is_due_ = false;
  const std::shared_ptr<const Dataset> data_ = SmallData(kReplicaRows);
  std::unique_ptr<Trainer> trainer_;
};

MATCHER(NamesTheTensor, "") {
  return ::testing::ExplainMatchResult(
      StatusIs(absl::StatusCode::kDataLoss,
               "replica 1 has other values than replica 0 of the parameter layer 1: value"),
      arg, result_listener);
}

TEST_F(DamagedReplica, IsFoundAtTheNextCheck) {
  Make(/*check_steps=*/3);
  is_due_ = true;
  EXPECT_OK(Step());
  EXPECT_OK(Step());
  EXPECT_THAT(Step(), NamesTheTensor());
  EXPECT_THAT(Step(), NamesTheTensor());  // nothing repairs it
}

TEST_F(DamagedReplica, IsFoundByTheFingerprintOfTheParameters) {
  Make(/*check_steps=*/0);
  is_due_ = true;
  for (int step = 0; step < 4; ++step) EXPECT_OK(Step());
  EXPECT_THAT(trainer_->ParametersHash(), NamesTheTensor());
}

TEST_F(DamagedReplica, IsNoneWithoutDamage) {
  Make(/*check_steps=*/1);
  for (int step = 0; step < 4; ++step) EXPECT_OK(Step());
}

TEST_F(DamagedReplica, IsNoneOfOne) {
  Make(/*check_steps=*/1, /*replicas=*/1);
  is_due_ = true;
  EXPECT_OK(Step());
}

}  // namespace
}  // namespace stagecoach::engine
