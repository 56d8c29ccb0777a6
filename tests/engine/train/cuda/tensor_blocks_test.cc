// Layers that several devices share, on GPUs.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/train/trainer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/train/cuda/run.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using kernels::Precision;
using ::stagecoach::testing::StatusIs;
using ::testing::HasSubstr;

TinyRun RunOn(const Model& model, int devices, int tensor_parts, const std::string& schedule,
              const partition::Replication& replication = {.gradient_blocks = 2}) {
  TinyRun run{
      .model = model, .devices = devices, .tensor_parts = tensor_parts, .schedule = schedule};
  run.replication = replication;
  run.options.device.kind = DeviceKind::kCuda;
  run.options.device.gpus.assign(static_cast<size_t>(devices * tensor_parts * replication.replicas),
                                 0);
  run.options.optimizer.clip_norm = 0.05F;
  return run;
}

TEST(CudaTensorBlocks, HaveTheSameBitsOnAnyNumberOfDevices) {
  if (NumGpus() == 0) GTEST_SKIP() << "needs a GPU";
  const std::vector<std::pair<Model, Precision>> cases = {
      {BlockedGpt2Model(), Precision::kFloat32},
      {BlockedLlamaModel(), Precision::kFloat32},
      {BlockedGemmaModel(), Precision::kBfloat16}};
  for (const auto& [model, precision] : cases) {
    TinyRun one = RunOn(model, 1, 1, "gpipe");
    one.options.device.precision = precision;
    ASSERT_OK_AND_ASSIGN(TinyAnswer expected, AnswerOf(one));
    expected.outputs.clear();
    for (TinyRun run :
         {RunOn(model, 1, 2, "gpipe"), RunOn(model, 1, 4, "gpipe"), RunOn(model, 2, 2, "zb-h1"),
          RunOn(model, 1, 2, "gpipe", {2, 2, /*shards_optimizer=*/true})}) {
      SCOPED_TRACE(run.devices * 10 + run.tensor_parts);
      run.options.device.precision = precision;
      ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Trainer> trainer, TinyTrainer(run));
      EXPECT_EQ(AnswerOf(*trainer).value(), expected);
      const std::vector<DeviceReport> devices = trainer->Devices().value();
      for (const DeviceReport& device : devices) {
        EXPECT_EQ(device.measured_peak_bytes, device.predicted_peak_bytes);
        EXPECT_EQ(device.measured_sent, device.predicted_sent);
      }
    }
  }
}

TEST(CudaTensorBlocks, AreExchangedByNccl) {
  if (NumGpus() < 4) GTEST_SKIP() << "needs 4 GPUs, and there are " << NumGpus();
  for (const Model& model : {BlockedLlamaModel(), BlockedGemmaModel()}) {
    ASSERT_OK_AND_ASSIGN(TinyAnswer expected, AnswerOf(RunOn(model, 1, 1, "gpipe")));
    expected.outputs.clear();
    for (TinyRun run : {RunOn(model, 1, 4, "gpipe"), RunOn(model, 2, 2, "1f1b"),
                        RunOn(model, 1, 2, "gpipe", {2, 2})}) {
      SCOPED_TRACE(run.devices * 10 + run.tensor_parts);
      run.options.device.gpus.clear();
      EXPECT_EQ(AnswerOf(run).value(), expected);
    }
  }
}

TEST(CudaTensorBlocks, RefuseBlocksThatAreNotAligned) {
  if (NumGpus() == 0) GTEST_SKIP() << "needs a GPU";
  TinyRun run = RunOn(BlockedGpt2Model(), 1, 2, "gpipe");
  run.model = UnalignedModel();
  EXPECT_THAT(TinyTrainer(run), StatusIs(absl::StatusCode::kInvalidArgument,
                                         HasSubstr("on GPUs needs a multiple of")));
}

}  // namespace
}  // namespace stagecoach::engine
