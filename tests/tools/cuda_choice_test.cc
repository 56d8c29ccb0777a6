// Which devices a run gets, and what it prints if they are missing. GPUs are emulated
// (tests/testing/cuda/stand_in.h).
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tools/child.h"
#include "tests/tools/cuda_machine.h"
#include "tests/tools/cuda_run.h"
#include "tests/tools/scoped_variable.h"

namespace stagecoach::tools {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// ---- Missing devices.

TEST(CudaUnavailable, MoreStagesThanGpus) {
  const CudaMachine machine("gpus=2");
  ExpectFailure({"--device", "cuda", "--layers", "4", "--stages", "4"}, kStatusUnavailable,
                AllOf(HasSubstr("device 2 is to be on GPU 2, but there are 2 GPUs"),
                      HasSubstr("use fewer stages, or --gpus 0,0,0,0")));
}

TEST(CudaUnavailable, AGpuThatIsNotThere) {
  const CudaMachine machine("gpus=1");
  ExpectFailure(
      {"--device", "cuda", "--gpus", "0,1"}, kStatusUnavailable,
      AllOf(HasSubstr("device 1 is to be on GPU 1, but there is 1 GPU"), HasSubstr("--gpus 0,0")));
}

TEST(CudaUnavailable, NoGpu) {
  const CudaMachine machine("gpus=0");
  ExpectFailure({"--device", "cuda"}, kStatusUnavailable,
                AllOf(HasSubstr("sees no GPU"), HasSubstr("nvidia-smi")));
}

TEST(CudaUnavailable, NoDriver) {
  const CudaMachine machine("driver=0");
  ExpectFailure({"--device", "cuda"}, kStatusUnavailable,
                AllOf(HasSubstr("no NVIDIA driver"), HasSubstr("install one for CUDA")));
}

TEST(CudaUnavailable, NoBackend) {
  const CudaMachine machine("", "/no/such/library.so");
  ExpectFailure({"--device", "cuda"}, kStatusUnavailable,
                AllOf(HasSubstr("/no/such/library.so"), HasSubstr("set STAGECOACH_CUDA_LIBRARY")));
}

TEST(CudaUnavailable, ALibraryThatIsNoBackend) {
  const CudaMachine machine("", "libm.so.6");
  ExpectFailure({"--device", "cuda"}, kStatusUnavailable,
                HasSubstr("is not Stagecoach's CUDA backend"));
}

TEST(CudaUnavailable, ABuildWithoutCodeForTheGpu) {
  const CudaMachine machine("launch_error=209");  // cudaErrorNoKernelImageForDevice
  ExpectFailure({"--device", "cuda"}, kStatusUnavailable,
                AllOf(HasSubstr("has no code for GPUs of compute capability 9.0"),
                      HasSubstr("build it with -DCMAKE_CUDA_ARCHITECTURES=90")));
}

TEST(CudaUnavailable, BeforeAnyDataIsRead) {
  const CudaMachine machine("gpus=0");
  ExpectFailure({"--device", "cuda", "--data", "/no/such/place"}, kStatusUnavailable,
                HasSubstr("sees no GPU"));
}

// ---- Flags that do not go together.

TEST(CudaUsage, BadValues) {
  const CudaMachine machine("gpus=0");  // the run should not need them
  ExpectFailure({"--gpus", "0,x"}, kStatusUsage,
                AllOf(HasSubstr("--gpus: \"x\""), HasSubstr("0 to")));
  ExpectFailure({"--gpus", "0,"}, kStatusUsage, HasSubstr("--gpus: \"\""));
  ExpectFailure({"--gpus", "-1"}, kStatusUsage, HasSubstr("--gpus: \"-1\""));
  ExpectFailure({"--precision", "fp16"}, kStatusUsage,
                AllOf(HasSubstr("fp32, tf32, bf16"), HasSubstr("did you mean fp32?")));
  ExpectFailure({"--device", "gpu"}, kStatusUsage, HasSubstr("cpu, cuda, auto"));
  ExpectFailure({"--exchange", "nncl"}, kStatusUsage, HasSubstr("did you mean nccl?"));
}

TEST(CudaUsage, CpuDevicesDoNotHaveTf32) {
  ExpectFailure({"--device", "cpu", "--precision", "tf32"}, kStatusUsage,
                AllOf(HasSubstr("tf32"), HasSubstr("--device cuda")));
}

TEST(CudaUsage, GpusAndNcclAreForCuda) {
  ExpectFailure({"--gpus", "0,1"}, kStatusUsage, HasSubstr("--device cuda"));
  ExpectFailure({"--exchange", "nccl"}, kStatusUsage, HasSubstr("--device cuda"));
}

TEST(CudaUsage, AVariableThatChangesResults) {
  const CudaMachine machine("gpus=2");
  const ScopedVariable variable("NVIDIA_TF32_OVERRIDE", "1");
  for (const char* kind : {"cuda", "auto"}) {
    ExpectFailure({"--device", kind}, kStatusBadConfiguration,
                  AllOf(HasSubstr("NVIDIA_TF32_OVERRIDE is set to \"1\""), HasSubstr("unset it")));
  }
  EXPECT_EQ(RunStagecoach(SmallRun({"--device", "cpu"})).exit_status, 0);
}

TEST(CudaUsage, AGpuForEachDeviceIsNeeded) {
  for (const char* kind : {"cuda", "auto"}) {
    const CudaMachine machine("gpus=2");
    ExpectFailure({"--device", kind, "--gpus", "1"}, kStatusUsage,
                  HasSubstr("--gpus names 1 GPU for 2 devices"));
  }
}

// ---- Devices chosen by what is available.

TEST(CudaAuto, WithoutGpusIsTheCpuAndSaysSo) {
  const CudaMachine machine("gpus=0");
  const nlohmann::json cpu = EventsOf({"--device", "cpu"}).back();
  const Finished run = RunStagecoach(SmallRun({"--device", "auto", "--json"}));
  ASSERT_EQ(run.exit_status, 0) << run.err;
  ExpectOneLine(run.err, AllOf(StartsWith("stagecoach: --device auto: using CPU devices, since "),
                               HasSubstr("sees no GPU")));
  const nlohmann::json end = run.Events().back();
  EXPECT_EQ(end["step_losses_hash"], cpu["step_losses_hash"]);
  EXPECT_EQ(end["parameters_hash"], cpu["parameters_hash"]);
  EXPECT_EQ(end["devices"][1]["device"], "cpu:1");
}

TEST(CudaAuto, WithTooFewGpusIsTheCpu) {
  const CudaMachine machine("gpus=1");
  const Finished run = RunStagecoach(SmallRun({"--device", "auto", "--json"}));
  ASSERT_EQ(run.exit_status, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr("there is 1 GPU"));
  EXPECT_EQ(run.Events().back()["devices"][0]["device"], "cpu:0");
}

TEST(CudaAuto, WithoutTheBackendIsTheCpu) {
  const CudaMachine machine("", "/no/such/library.so");
  const Finished run = RunStagecoach(SmallRun({"--device", "auto"}));
  EXPECT_EQ(run.exit_status, 0);
  EXPECT_THAT(run.err, HasSubstr("/no/such/library.so"));
}

TEST(CudaAuto, WithTooLittleMemoryIsTheCpu) {
  const CudaMachine machine("gpus=2,memory=500KB");
  const Finished run =
      RunStagecoach(SmallRun({"--device", "auto", "--width", "256", "--tuning", "none", "--json"}));
  ASSERT_EQ(run.exit_status, 0) << run.err;
  ExpectOneLine(run.err, AllOf(StartsWith("stagecoach: --device auto: using CPU devices, since "),
                               HasSubstr("are needed on GPU 1")));
  EXPECT_EQ(run.Events().back()["devices"][1]["device"], "cpu:1");
}

// Images and a model for them whose layer 1 has no CUDA kernel. Settings for GPUs do not apply on
// CPU devices, nor on another number of GPUs.
TEST(CudaChoice, ARunOnGpusGoesOnOnOtherDevices) {
  const CudaMachine machine("gpus=3");
  const std::string saved = machine.home() + "/moved";
  const auto train = [&](const Arguments& more) {
    const Finished run = RunStagecoach(Joined({"train", "--checkpoint", saved}, more));
    EXPECT_EQ(run.exit_status, 0) << run.err;
  };
  train({"--data",
         "synthetic:64x16x4",
         "--layers",
         "4",
         "--width",
         "8",
         "--global-batch-size",
         "16",
         "--epochs",
         "1",
         "--devices",
         "2",
         "--device",
         "cuda",
         "--gpus",
         "0,0",
         "--exchange",
         "copies",
         "--tuning",
         machine.home() + "/tuning"});
  train({"--resume", "--epochs", "2", "--device", "cpu", "--devices", "1"});
  train({"--resume", "--epochs", "3", "--device", "cuda", "--devices", "3"});
}

Arguments ModelWithConvolution(const CudaMachine& machine) {
  const std::string model = machine.home() + "/model.toml";
  std::ofstream(model) << R"(input = [1, 4, 4]
layer = [
  { type = "relu" },
  { type = "conv2d", outputs = 2, kernel = 3 },
  { type = "flatten" },
  { type = "linear", outputs = "classes" },
]
)";
  return {"--data", "synthetic:256x16x4", "--model", model};
}

TEST(CudaAuto, WithALayerWithoutKernelIsTheCpuAndNamesIt) {
  const CudaMachine machine("gpus=2,cudnn_version=91002");  // too old
  const Arguments model = ModelWithConvolution(machine);
  const std::string saved = machine.home() + "/run";
  const std::vector<Arguments> commands = {Joined({"train", "--global-batch-size", "16", "--epochs",
                                                   "1", "--stages", "2", "--checkpoint", saved},
                                                  model),
                                           Joined({"plan"}, model),
                                           Joined({"profile"}, model),
                                           {"predict", "--checkpoint", saved}};
  for (const Arguments& command : commands) {
    const Finished run = RunStagecoach(Joined(command, {"--device", "auto"}));
    EXPECT_EQ(run.exit_status, 0) << command[0] << ": " << run.err;
    ExpectOneLine(run.err, AllOf(StartsWith("stagecoach: --device auto: using CPU devices, since "),
                                 HasSubstr("layer 1: a convolution has no CUDA kernel")));
  }
}

TEST(CudaAuto, WithALayerWithoutKernelIsAnErrorOnCuda) {
  const CudaMachine machine("gpus=2,cudnn_version=91002");  // too old
  const Arguments model = ModelWithConvolution(machine);
  for (const Arguments& command : std::vector<Arguments>{
           {"train", "--global-batch-size", "16", "--stages", "2"}, {"plan"}, {"profile"}}) {
    const Finished run = RunStagecoach(Joined(command, Joined(model, {"--device", "cuda"})));
    EXPECT_EQ(run.exit_status, kStatusBadConfiguration);
    EXPECT_EQ(run.out, "");
    ExpectOneLine(run.err, HasSubstr("layer 1: a convolution has no CUDA kernel"));
  }
}

TEST(CudaAuto, WithGpusEnoughIsCuda) {
  const CudaMachine machine("gpus=2");
  const nlohmann::json end = EventsOf({"--device", "auto"}).back();
  EXPECT_EQ(end["devices"][0]["device"], "cuda:0");
  EXPECT_EQ(end["devices"][1]["device"], "cuda:1");
}

TEST(CudaAuto, DoesNotDropThePrecision) {
  const CudaMachine machine("gpus=0");
  ExpectFailure({"--device", "auto", "--precision", "tf32"}, kStatusUnavailable,
                AllOf(HasSubstr("no CUDA devices, and --precision tf32 needs them"),
                      HasSubstr("sees no GPU")));
}

// ---- Memory.

TEST(CudaMemory, ABudgetThatIsTooSmallIsABadConfiguration) {
  const CudaMachine machine("gpus=2");
  const Finished run = RunStagecoach(SmallRun({"--device", "cuda", "--device-memory", "4kB"}));
  EXPECT_EQ(run.exit_status, kStatusBadConfiguration);
  EXPECT_THAT(run.err, AllOf(HasSubstr("does not fit"), HasSubstr("4.0 kB")));
}

TEST(CudaMemory, AGpuThatIsTooSmallIsUnavailable) {
  const CudaMachine machine("gpus=2,memory=500KB");
  ExpectFailure({"--device", "cuda", "--width", "256", "--tuning", "none"}, kStatusUnavailable,
                AllOf(HasSubstr("are needed on GPU 1, which has 468.8 kB available; "),
                      HasSubstr("more GPUs")));
}

TEST(CudaMemory, DevicesOnOneGpuShareItsMemory) {
  const CudaMachine machine("gpus=2,memory=32KB");
  const Arguments small = {"--device", "cuda", "--tuning", "none"};
  EventsOf(small);
  ExpectFailure(Joined(small, {"--layers", "4", "--gpus", "1,1"}), kStatusUnavailable,
                HasSubstr("are needed on GPU 1, which has 30.0 kB available; "));
}

TEST(CudaMemory, TooLittleForTheSmallestModelIsUnavailable) {
  const CudaMachine machine("gpus=2,memory=5KB");
  ExpectFailure({"--device", "cuda"}, kStatusUnavailable,
                AllOf(HasSubstr("are needed on GPU 0, which has 4.7 kB available; "),
                      HasSubstr("more GPUs")));
}

}  // namespace
}  // namespace stagecoach::tools
