// The calls that the host makes to have actions performed, in a step that is not measured, and to
// save.
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/generate/generator.h"
#include "engine/models/model_file.h"
#include "engine/models/presets.h"
#include "engine/nn/layers/composite/residual.h"
#include "engine/nn/layers/layer_norm.h"
#include "engine/nn/layers/linear.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schedule/ir/schedule.h"
#include "tests/engine/train/cuda/run.h"
#include "tests/engine/train/runs/small_run.h"
#include "tests/testing/cuda/stand_in.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"

namespace stagecoach::engine {
namespace {

namespace cuda = ::stagecoach::testing::cuda;

using Calls = std::map<std::string, int64_t>;

// Returns the calls that `work` makes.
template <typename Work>
Calls CallsOf(Work work) {
  const Calls before = cuda::CallsByName();
  work();
  Calls calls = cuda::CallsByName();
  for (const auto& [name, number] : before) calls[name] -= number;
  return calls;
}

// Returns the calls of one step. The steps before it are measured (RunSchedule), and record graphs.
Calls CallsOfAStep(Trainer& trainer) {
  const auto data = SmallData(kTinyBatchRows);
  const std::vector<int64_t> rows = Rows(0, kTinyBatchRows);
  for (int step = 0; step < 3; ++step) EXPECT_OK(trainer.Step(*data, rows, rows));
  return CallsOf([&] { EXPECT_OK(trainer.Step(*data, rows, rows)); });
}

class CudaFixedCosts : public ::testing::TestWithParam<Exchange> {
 protected:
  void SetUp() override { cuda::Reset({}); }
};

TEST_P(CudaFixedCosts, AreFewCallsAnAction) {
  TinyRun run{.devices = 2, .schedule = "1f1b"};
  run.options.device = {.kind = DeviceKind::kCuda};
  run.options.exchange = GetParam();
  const auto trainer = TinyTrainer(run).value();
  const int64_t actions = ComputeActions(trainer->run().compiled.lowered->training);
  Calls calls = CallsOfAStep(*trainer);

  EXPECT_EQ(calls["cudaGraphLaunch"], actions);
  EXPECT_EQ(calls["cudaEventElapsedTime"], 0) << "times are read";
  // There is one for each action, each rank's step, and the start of each list.
  EXPECT_EQ(calls["cuStreamWriteValue32"], actions + 2 + 2);
  EXPECT_EQ(calls["cudaLaunchKernelEx"], 2) << "only each stage's update is a plain kernel";
  // The copies are inputs, results, numbers of samples; and two copies ahead, of inputs and of
  // targets.
  EXPECT_LE(calls["cudaMemcpyAsync"], kTinyMicroBatches + 5);

  // A process measures the GPU's clock now and then, with marks of its own that it waits for.
  int64_t sum = -2 * calls["cudaEventSynchronize"];
  for (const auto& [name, number] : calls) {
    // How often the host polls for the end of the step depends on the machine.
    if (name != "cudaEventQuery" && name != "cudaStreamQuery") sum += number;
  }
  const double each = static_cast<double>(sum) / static_cast<double>(actions);
  RecordProperty("calls_per_compute_action", std::to_string(each));
  EXPECT_LT(each, GetParam() == Exchange::kCopies ? 7.0 : 7.9);
}

TEST(CudaGeneration, CostsOneCallATokenWhereTheGpuChoosesIt) {
  cuda::Reset({});
  {
    const Model model =
        ParseModel(
            ModelFileNamed("gpt2:blocks=1,width=16,heads=2,context=70,vocabulary=11").value(),
            {.input = Shape{70}, .vocabulary = 11, .classes = 11})
            .value();
    const DeviceSpec device = {.kind = DeviceKind::kCuda};
    const auto trainer = Trainer::Create(PrepareRun(ModelForGeneration(model).value(),
                                                    PlanOptions{.predicts = true, .device = device})
                                             .value(),
                                         {.device = device})
                             .value();
    Generator generator = Generator::Create(*trainer).value();
    const auto continued = [&](int64_t tokens) {
      return CallsOf(
          [&] { EXPECT_OK(generator.Continue({1}, tokens, [](int32_t /*id*/) { return true; })); });
    };
    // Runs are measured until then.
    for (int i = 0; i < 17; ++i) ASSERT_OK(generator.Append({1}));
    Calls few = continued(2), many = continued(32);
    for (const auto& [name, number] : many) {
      if (name == "cudaEventQuery" || name == "cudaStreamQuery" || name == "cudaEventRecord" ||
          name == "cudaEventSynchronize") {
        continue;
      }
      EXPECT_EQ(number - few[name], name == "cudaGraphLaunch" ? 30 : 0) << name;
    }
    EXPECT_LE(many["cudaEventRecord"], few["cudaEventRecord"] + many["cudaEventSynchronize"]);
    // If the host chooses tokens, it passes an id and its position.
    Calls drawn = CallsOf([&] { ASSERT_OK(generator.Append({1})); });
    EXPECT_EQ(drawn["cudaGraphLaunch"], 1);
    EXPECT_EQ(drawn["cudaMemcpyAsync"], 2);
    EXPECT_EQ(drawn["cudaLaunchKernelEx"], 0);
  }
  cuda::Reset({});
}

// Returns the waits of saving and restoring; a process measures the GPU's clock now and then, with
// marks of its own.
std::map<std::string, int64_t> WaitsForCheckpoints(int layers) {
  TinyRun run;
  run.model.layers.assign(static_cast<size_t>(layers), Linear(16));
  run.model.layers.push_back(Linear(kSmallClasses));
  run.options.device = {.kind = DeviceKind::kCuda};
  const auto trainer = TinyTrainer(run).value();
  const stagecoach::testing::TestFolder folder;
  Calls calls = CallsOf([&] {
    EXPECT_OK(trainer->Save(folder.path().string()));
    EXPECT_OK(trainer->Restore(folder.path().string()));
  });
  EXPECT_GE(calls["cudaMemcpyAsync"], 2 * 2 * 3 * layers) << "weights, biases, and their states";
  return {{"marks", calls["cudaEventRecord"] - calls["cudaEventSynchronize"]},
          {"buffers", calls["cudaHostAlloc"]},
          {"waits", calls["cudaStreamSynchronize"]}};
}

TEST(CudaCheckpoints, DoNotWaitForEveryTensor) {
  cuda::Reset({});
  // A buffer is marked in each direction, and restoring ends with the marks of a Finish.
  const std::map<std::string, int64_t> expected = {{"marks", 4}, {"buffers", 2}, {"waits", 0}};
  EXPECT_EQ(WaitsForCheckpoints(1), expected);
  EXPECT_EQ(WaitsForCheckpoints(20), expected);
  cuda::Reset({});
}

// Returns what the driver finds in $CUDA_DEVICE_MAX_CONNECTIONS when a trainer with devices on
// `gpus` is made and it was `value` before; null: not set.
std::string ConnectionsWith(const std::vector<int>& gpus, const char* value) {
  constexpr char kName[] = "CUDA_DEVICE_MAX_CONNECTIONS";
  unsetenv(kName);
  if (value != nullptr) setenv(kName, value, /*replace=*/1);
  cuda::Reset({});
  TinyRun run{.devices = static_cast<int>(gpus.size()), .schedule = "1f1b"};
  run.options.device = {.kind = DeviceKind::kCuda, .gpus = gpus};
  run.options.exchange = Exchange::kCopies;
  EXPECT_OK(TinyTrainer(run));
  unsetenv(kName);
  return cuda::MaxConnections();
}

TEST(CudaConnections, DevicesThatShareAGpuHaveQueuesOfTheirOwn) {
  constexpr char kUsual[] = "8";
  EXPECT_EQ(ConnectionsWith({0, 1}, nullptr), kUsual);
  EXPECT_EQ(ConnectionsWith({1, 0, 1}, nullptr), "16");
  EXPECT_EQ(ConnectionsWith({0, 0, 0}, nullptr), "24");
  EXPECT_EQ(ConnectionsWith({0, 0, 0, 0, 0}, nullptr), "32");
}

TEST(CudaConnections, TheUsersSettingStays) { EXPECT_EQ(ConnectionsWith({0, 0}, "4"), "4"); }

INSTANTIATE_TEST_SUITE_P(By, CudaFixedCosts, ::testing::Values(Exchange::kCopies, Exchange::kNccl),
                         [](const ::testing::TestParamInfo<Exchange>& tested) {
                           return tested.param == Exchange::kCopies ? "Copies" : "Nccl";
                         });

// A GPU that cannot reach another is thus detected before the first step, which waits for nothing.
TEST(CudaPeerCopies, AreMadeBeforeTheFirstStep) {
  cuda::Reset({});
  {
    TinyRun run{.devices = 2, .schedule = "1f1b", .replication = {.replicas = 2}};
    run.replication.gradient_blocks = 2;
    run.options.device = {.kind = DeviceKind::kCuda};
    run.options.exchange = Exchange::kCopies;
    run.options.optimizer = Optimizer::AdamW();
    run.options.optimizer.clip_norm = 0.5F;
    const auto trainer = TinyTrainer(run).value();
    Calls before = cuda::CallsByName();
    EXPECT_GT(before["cudaDeviceEnablePeerAccess"], 0);
    CallsOfAStep(*trainer);
    Calls after = cuda::CallsByName();
    for (const char* call :
         {"cudaDeviceCanAccessPeer", "cudaDeviceEnablePeerAccess", "cudaEventCreateWithFlags"}) {
      EXPECT_EQ(after[call], before[call]) << call;
    }
  }
  cuda::Reset({});
}

TEST(CudaAside, TheGradientOfAWeightIsBesideTheRestOfAResidualBlock) {
  for (const bool is_in_block : {false, true}) {
    cuda::Reset({});
    {
      TinyRun run;
      run.options.device = {.kind = DeviceKind::kCuda};
      const LayerFactory linear = Linear(kSmallFeatures, Activation::kGelu);
      run.model.layers = {is_in_block ? Residual({LayerNorm(), linear}) : linear,
                          Linear(kSmallClasses)};
      const auto trainer = TinyTrainer(run).value();
      ASSERT_OK(trainer->Step(*SmallData(kTinyBatchRows), Rows(0, kTinyBatchRows)));
      // Nothing else makes a stream wait if there is one device.
      EXPECT_EQ(cuda::CallsByName()["cudaStreamWaitEvent"] > 0, is_in_block);
    }
    cuda::Reset({});
  }
}

TEST(CudaGraphs, ThatCannotBeAreCountedWithTheReason) {
  TinyRun run{.devices = 2, .schedule = "1f1b"};
  run.options.device = {.kind = DeviceKind::kCuda};
  cuda::Reset({.graphs = false});
  {
    const auto trainer = TinyTrainer(run).value();
    ASSERT_OK(AnswerOf(*trainer));
    ASSERT_OK_AND_ASSIGN(const std::vector<DeviceReport> devices, trainer->Devices());
    for (const DeviceReport& device : devices) {
      EXPECT_EQ(device.graphs, 0);
      EXPECT_EQ(device.graph_issues, 0);
      EXPECT_GT(device.plain_issues, 0);
      EXPECT_THAT(device.why_plain, ::testing::HasSubstr("cudaStreamBeginCapture"));
    }
  }
  cuda::Reset({});
}

// The driver has no memory operations, so kernels report.
TEST(CudaProgress, IsReportedByKernelsWhereTheDriverHasNothing) {
  TinyRun run{.devices = 2, .schedule = "1f1b"};
  run.options.device = {.kind = DeviceKind::kCuda};
  cuda::Reset({});
  const TinyAnswer expected = AnswerOf(run).value();
  cuda::Reset({.memory_operations = false});
  ASSERT_OK_AND_ASSIGN(const TinyAnswer answer, AnswerOf(run));
  EXPECT_EQ(answer, expected);
  EXPECT_EQ(cuda::CallsByName()["cuStreamWriteValue32"], 0);
  cuda::Reset({});
}

}  // namespace
}  // namespace stagecoach::engine
