// `generate` on CUDA devices, as a user sees it. GPUs are emulated (tests/testing/cuda/stand_in.h).
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tools/child.h"
#include "tests/tools/cuda_machine.h"

namespace stagecoach::tools {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

// Trains a small text model on the CPU and returns its checkpoint folder.
std::string TrainedRun(const CudaMachine& machine, const std::string& model) {
  const std::string text = machine.home() + "/text.txt", run = machine.home() + "/run";
  std::ofstream lines(text);
  for (int i = 0; i < 400; ++i) lines << "abcdefgh ";
  lines.close();
  const Finished trained = RunStagecoach(
      {"train", "--data", text, "--model", model, "--stages", "1", "--global-batch-size", "4",
       "--epochs", "8", "--learning-rate", "1e-2", "--checkpoint", run, "--json"});
  STAGECOACH_CHECK(trained.exit_status == 0, trained.err);
  return run;
}

// Trains a model with heads of that size, whose last layer does not compute the loss.
std::string TrainedRun(const CudaMachine& machine, int head_size) {
  const std::string model = machine.home() + "/model.toml";
  std::ofstream(model) << absl::StrCat(R"(context = 80
layer = [
  { type = "embedding", vocabulary = "classes", features = 16, positions = true },
  { type = "residual", layers = [
    { type = "layer_norm" },
    { type = "linear", outputs = )",
                                       4 * head_size, R"( },
    { type = "attention", heads = 2, kv_heads = 1, rotary_base = 100.0 },
    { type = "linear", outputs = 16 } ] },
  { type = "layer_norm" },
  { type = "linear", outputs = "classes" },
]
)");
  return TrainedRun(machine, model);
}

constexpr char kPrompt[] = "abcdefgh abc", kText[] = "abcdefgh abcdefgh \n";

Finished Generate(const std::string& run, const Arguments& more,
                  const std::string& prompt = kPrompt) {
  return RunStagecoach(Joined({"generate", "--checkpoint", run, "--prompt", prompt, "--temperature",
                               "0", "--tokens", "6", "--tuning", "none"},
                              more));
}

TEST(CudaGenerate, ContinuesThePromptAsTheCpuDoesOnAnyStages) {
  const CudaMachine machine("gpus=2,memory=64MB");
  const std::string run = TrainedRun(machine, 8);
  for (const Arguments& more :
       {Arguments{}, Arguments{"--stages", "2"}, Arguments{"--stages", "3", "--gpus", "1,1,0"},
        Arguments{"--precision", "bf16"}, Arguments{"--precision", "tf32"}}) {
    const Finished text = Generate(run, Joined({"--device", "cuda"}, more));
    EXPECT_EQ(text.exit_status, 0) << text.err;
    EXPECT_EQ(text.out, kText);
  }
  // The prompt is so long that several tokens pass at a time.
  std::string prompt;
  for (int i = 0; i < 7; ++i) absl::StrAppend(&prompt, "abcdefgh ");
  EXPECT_EQ(Generate(run, {"--device", "cuda"}, prompt + kPrompt).out, prompt + kText);
  // Each text ends early, and the next one begins anew.
  const std::string prompts = machine.home() + "/prompts";
  std::ofstream(prompts) << prompt << kPrompt << "\n" << kPrompt << "\n";
  EXPECT_EQ(
      RunStagecoach({"generate", "--checkpoint", run, "--prompts", prompts, "--temperature", "0",
                     "--tokens", "6", "--stop", "gh", "--device", "cuda", "--tuning", "none"})
          .out,
      absl::StrCat(prompt, kPrompt, "def\n\n", kPrompt, "def\n"));
  const Finished run_of_two =
      Generate(run, {"--device", "auto", "--stages", "2", "--exchange", "nccl", "--json"});
  EXPECT_THAT(run_of_two.err, IsEmpty());
  const nlohmann::json end = run_of_two.Events().back();
  EXPECT_EQ(end["devices"][1]["device"], "cuda:1");
  for (const nlohmann::json& device : end["devices"]) {
    EXPECT_EQ(device["measured_peak_bytes"], device["predicted_peak_bytes"]);
  }
}

// The GPU itself chooses tokens, and stops at the end of the context.
TEST(CudaGenerate, OfAGpt2IsTheTextOfTheCpuToTheEndOfTheContext) {
  const CudaMachine machine("gpus=2,memory=64MB");
  const std::string run =
      TrainedRun(machine, "gpt2:blocks=1,width=32,heads=2,context=24,vocabulary=256");
  const Arguments whole = {"--tokens", "100", "--json"};
  const Finished on_cpu = RunStagecoach(
      Joined({"generate", "--checkpoint", run, "--prompt", kPrompt, "--temperature", "0"}, whole));
  ASSERT_EQ(on_cpu.exit_status, 0) << on_cpu.err;
  const nlohmann::json expected = on_cpu.Events().back();
  EXPECT_EQ(expected["tokens"], 24 - 12 + 1);
  for (const std::string stages : {"1", "2"}) {
    const Finished text = Generate(run, Joined(whole, {"--device", "cuda", "--stages", stages}));
    ASSERT_EQ(text.exit_status, 0) << text.err;
    EXPECT_THAT(text.err, HasSubstr("context of 24 tokens is full"));
    const nlohmann::json end = text.Events().back();
    for (const char* const same : {"text", "tokens", "ended_by"}) {
      EXPECT_EQ(end[same], expected[same]);
    }
  }
}

TEST(CudaGenerate, WithoutAGpuIsRefusedOrOnTheCpu) {
  const CudaMachine machine("gpus=0");
  const std::string run = TrainedRun(machine, 8);
  const Finished refused = Generate(run, {"--device", "cuda"});
  EXPECT_EQ(refused.exit_status, kStatusUnavailable);
  EXPECT_THAT(refused.out, IsEmpty());
  ExpectOneLine(refused.err, AllOf(StartsWith("stagecoach generate: "), HasSubstr("sees no GPU")));
  const Finished text = Generate(run, {"--device", "auto"});
  EXPECT_EQ(text.out, kText);
  EXPECT_THAT(text.err, StartsWith("stagecoach: --device auto: using CPU devices, since "));
}

TEST(CudaGenerate, WithTooLittleMemoryIsRefused) {
  const CudaMachine machine("gpus=1,memory=40KB");
  const Finished refused = Generate(TrainedRun(machine, 8), {"--device", "cuda"});
  EXPECT_EQ(refused.exit_status, kStatusUnavailable);
  EXPECT_THAT(refused.out, IsEmpty());
  ExpectOneLine(refused.err, HasSubstr("are needed on GPU 0, which has "));
}

TEST(CudaGenerate, NamesTheLayerWhoseHeadsNoKernelTakes) {
  const CudaMachine machine("gpus=1,memory=64MB");
  const std::string run = TrainedRun(machine, 130);
  const std::string line = "layer 2: attention with a cache has no CUDA kernel for heads of 130";
  const Finished refused = Generate(run, {"--device", "cuda"});
  EXPECT_EQ(refused.exit_status, kStatusBadConfiguration);
  EXPECT_THAT(refused.out, IsEmpty());
  ExpectOneLine(refused.err, HasSubstr(line));
  const Finished text = Generate(run, {"--device", "auto", "--tokens", "1"});
  EXPECT_EQ(text.exit_status, 0) << text.err;
  EXPECT_THAT(text.err, AllOf(HasSubstr("using CPU devices, since "), HasSubstr(line)));
}

}  // namespace
}  // namespace stagecoach::tools
