// Layers that read an earlier layer's output, on stages on GPUs.
#include <memory>
#include <string>

#include "engine/nn/layers/linear.h"
#include "engine/nn/layers/skip.h"
#include "engine/train/trainer.h"
#include "gtest/gtest.h"
#include "tests/engine/train/cuda/run.h"
#include "tests/engine/train/runs/small_run.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

TinyRun SkippingRun(int devices, const std::string& schedule) {
  TinyRun run{
      .model = {.input = Shape{kSmallFeatures},
                .layers = {Linear(16, Activation::kGelu), Linear(16), Linear(16), AddSkip(),
                           Linear(16, Activation::kGelu), ConcatSkip(), Linear(kSmallClasses)},
                .skips = {{1, 3}, {0, 5}}},
      .devices = devices,
      .schedule = schedule};
  run.options.device.kind = DeviceKind::kCuda;
  return run;
}

TEST(CudaSkips, GiveTheSameBitsWhereverTheStagesAre) {
  if (NumGpus() < 3) GTEST_SKIP() << "needs 3 GPUs, and there are " << NumGpus();
  ASSERT_OK_AND_ASSIGN(const TinyAnswer expected, AnswerOf(SkippingRun(1, "gpipe")));
  for (const TinyRun& run : {SkippingRun(2, "1f1b"), SkippingRun(3, "zb-h1")}) {
    ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Trainer> trainer, TinyTrainer(run));
    EXPECT_EQ(AnswerOf(*trainer).value(), expected) << run.devices << " " << run.schedule;
    const std::vector<DeviceReport> devices = trainer->Devices().value();
    for (const DeviceReport& device : devices) {
      EXPECT_EQ(device.measured_peak_bytes, device.predicted_peak_bytes);
      EXPECT_EQ(device.measured_sent, device.predicted_sent);
    }
  }
}

}  // namespace
}  // namespace stagecoach::engine
