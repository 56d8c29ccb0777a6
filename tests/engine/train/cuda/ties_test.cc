// Layers that share a parameter, on stages on GPUs.
#include <string>
#include <vector>

#include "engine/nn/layers/composite/residual.h"
#include "engine/nn/layers/layer_norm.h"
#include "engine/nn/layers/linear.h"
#include "engine/train/trainer.h"
#include "gtest/gtest.h"
#include "tests/engine/train/cuda/run.h"
#include "tests/engine/train/runs/small_run.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

// The tie is longer than a part of its exchange.
Model TinyTiedModel() {
  return {.input = Shape{kSmallFeatures},
          .layers = {Linear(16, Activation::kGelu), Linear(16), LayerNorm(),
                     Residual({Linear(16, Activation::kGelu)}), Linear(16), Linear(kSmallClasses)},
          .ties = {{{1, "weight"}, {4, "weight"}}}};
}

TinyRun RunOf(int devices, const std::string& schedule, float clip_norm,
              const partition::Replication& replication = {.gradient_blocks = 2}) {
  TinyRun run{.model = TinyTiedModel(), .devices = devices, .schedule = schedule};
  run.replication = replication;
  run.options.device.kind = DeviceKind::kCuda;
  run.options.optimizer.clip_norm = clip_norm;
  return run;
}

// The exchange uses NCCL if there is a GPU for each device, and copies if there is not.
TEST(CudaTies, GiveTheSameBitsWhereverTheStagesAre) {
  if (NumGpus() < 4) GTEST_SKIP() << "needs 4 GPUs, and there are " << NumGpus();
  for (const float clip_norm : {0.0F, 0.05F}) {
    ASSERT_OK_AND_ASSIGN(const TinyAnswer expected, AnswerOf(RunOf(1, "gpipe", clip_norm)));
    for (const TinyRun& run : {RunOf(2, "1f1b", clip_norm), RunOf(3, "zb-h1", clip_norm),
                               RunOf(2, "1f1b", clip_norm, {2, 2}),
                               RunOf(2, "zb-v", clip_norm, {2, 2, /*shards_optimizer=*/true})}) {
      ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Trainer> trainer, TinyTrainer(run));
      EXPECT_EQ(AnswerOf(*trainer).value(), expected) << run.devices << " " << run.schedule;
      const std::vector<DeviceReport> devices = trainer->Devices().value();
      for (const DeviceReport& device : devices) {
        EXPECT_EQ(device.measured_peak_bytes, device.predicted_peak_bytes);
        EXPECT_EQ(device.measured_sent, device.predicted_sent);
      }
      EXPECT_EQ(trainer->Parameter("layer 1: weight").value(),
                trainer->Parameter("layer 4: weight").value());
    }
  }
}

}  // namespace
}  // namespace stagecoach::engine
