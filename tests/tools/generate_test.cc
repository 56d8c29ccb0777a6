// `generate`, as a user has it.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "tests/testing/test_folder.h"
#include "tests/tools/child.h"
#include "tests/tools/scoped_variable.h"

namespace stagecoach::tools {
namespace {

using ::stagecoach::testing::TestFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::StartsWith;

constexpr int kContext = 24;
const char* const kGpt2Tokenizer = STAGECOACH_TOKENIZER_FIXTURES "/gpt2.json";

// A run of a small GPT on bytes of text.
class GenerateCommandTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ofstream text(Path("a.txt"));
    for (int i = 0; i < 400; ++i) text << "abcdefgh ";
    text.close();
    const Finished run = RunStagecoach(
        {"train", "--model", "gpt2:blocks=1,width=32,heads=2,context=24,vocabulary=256", "--data",
         Path("a.txt"), "--stages", "2", "--batch", "4", "--microbatches", "2", "--epochs", "2",
         "--learning-rate", "1e-2", "--checkpoint", Path("run"), "--json"});
    ASSERT_EQ(run.exit_status, 0) << run.err;
  }

  std::string Path(const std::string& name) const { return folder_.path() / name; }
  Finished Generate(const Arguments& more) const {
    return RunStagecoach(
        Joined({"generate", "--checkpoint", Path("run"), "--threads-per-device", "1"}, more));
  }
  static void ExpectRefused(const Finished& run, int status, const std::string& part) {
    EXPECT_EQ(run.exit_status, status);
    ExpectOneLine(run.err, HasSubstr(part));
    EXPECT_EQ(run.out, "");
  }

  const TestFolder folder_;
};

TEST_F(GenerateCommandTest, ContinuesThePromptAsItWasTrained) {
  const Finished run =
      Generate({"--prompt", "abcdefgh abc", "--temperature", "0", "--tokens", "6"});
  EXPECT_EQ(run.exit_status, 0) << run.err;
  EXPECT_EQ(run.out, "abcdefgh abcdefgh \n");
  ExpectOneLine(run.err,
                MatchesRegex("stagecoach: 6 tokens, .* tokens/s; prompt 12 tokens, .*tokens/s\n?"));
}

TEST_F(GenerateCommandTest, WritesTheSameTextForAnyStages) {
  const auto text = [this](const std::string& stages, const std::string& seed) {
    return Generate({"--prompt", "abcd", "--temperature", "3", "--top-p", "1", "--top-k", "0",
                     "--tokens", "17", "--seed", seed, "--stages", stages})
        .out;
  };
  const std::string one = text("1", "1");
  EXPECT_THAT(one, StartsWith("abcd"));
  EXPECT_EQ(text("2", "1"), one);
  EXPECT_EQ(text("3", "1"), one);
  EXPECT_NE(text("1", "2"), one);
}

TEST_F(GenerateCommandTest, ComputesInBfloat16WhereTheProcessorDoes) {
  const Arguments rounded = {"--prompt", "abcdefgh abc", "--temperature", "0", "--tokens",
                             "6",        "--precision",  "bf16"};
  if (kernels::CheckBfloat16OnCpu().ok()) {
    const Finished run = Generate(rounded);
    EXPECT_EQ(run.exit_status, 0) << run.err;
    EXPECT_EQ(run.out, "abcdefgh abcdefgh \n");
  }
  const ScopedVariable forbidden("ONEDNN_MAX_CPU_ISA", "AVX2");
  ExpectRefused(Generate(rounded), kStatusUnavailable,
                "--precision bf16: this processor has no AVX-512 BF16");
}

TEST_F(GenerateCommandTest, EndsWhereTheContextIsFullAndSaysSo) {
  std::ofstream(Path("prompt")) << "abcdefgh ";
  const Finished run = Generate({"--prompt-file", Path("prompt"), "--json"});
  EXPECT_EQ(run.exit_status, 0) << run.err;
  ExpectOneLine(run.err, HasSubstr("context of 24 tokens is full"));
  const std::vector<nlohmann::json> events = run.Events();
  const nlohmann::json& end = events.back();
  EXPECT_EQ(events.front()["event"], "prompt");
  EXPECT_EQ(events.front()["tokens"], 9);
  EXPECT_EQ(end["ended_by"], "context");
  // The last one is chosen from what the model gives at the last position.
  EXPECT_EQ(end["tokens"], kContext - 9 + 1);
  EXPECT_EQ(events.size(), 2 + end["tokens"].get<size_t>());
  EXPECT_GT(end["tokens_per_second"], 0.0);
  for (const nlohmann::json& device : end["devices"]) {
    EXPECT_EQ(device["measured_peak_bytes"], device["predicted_peak_bytes"]);
  }
}

TEST_F(GenerateCommandTest, RefusesPromptsThatDoNotFit) {
  ExpectRefused(Generate({"--prompt", std::string(kContext + 1, 'a')}), kStatusBadData,
                "the prompt has 25 tokens, and the model's context is of 24");
  ExpectRefused(Generate({"--prompt", ""}), kStatusBadData, "no token to go on from");
  ExpectRefused(Generate({"--prompt-file", Path("missing")}), kStatusBadData, "missing");
}

TEST_F(GenerateCommandTest, RefusesModelsAndTokenizersThatDoNotGoTogether) {
  ExpectRefused(Generate({"--prompt", "a", "--tokenizer", kGpt2Tokenizer}), kStatusBadData,
                "bytes of text: leave out --tokenizer");
  const std::string init = STAGECOACH_TRANSFORMER_FIXTURES "/gpt2";
  const auto of_folder = [&](const Arguments& more) {
    return RunStagecoach(Joined({"generate", "--prompt", "a", "--init", init}, more));
  };
  ExpectRefused(of_folder({}), kStatusBadData, "no tokenizer.json and no tokenizer.model");
  ExpectRefused(of_folder({"--tokenizer", kGpt2Tokenizer}), kStatusBadData,
                "it is another model's");
}

// As generation_config.json says, or else config.json, or else the tokenizer; and an empty prompt
// is a text that begins.
TEST_F(GenerateCommandTest, EndsAndBeginsTextsAsTheModelSays) {
  const std::string init = Path("init");
  const Finished exported =
      RunStagecoach({"checkpoint", "export", Path("run"), "--format", "hf", "--output", init});
  ASSERT_EQ(exported.exit_status, 0) << exported.err;
  const auto text = [&](const Arguments& more) {
    const Finished run = RunStagecoach(
        Joined({"generate", "--init", init, "--tokenizer", "bytes", "--temperature", "0", "--json"},
               more));
    EXPECT_EQ(run.exit_status, 0) << run.err;
    return run.Events().back()["text"].get<std::string>();
  };
  nlohmann::json config = nlohmann::json::parse(std::ifstream(init + "/config.json"));
  config["eos_token_id"] = {'z', 'g'};
  config["bos_token_id"] = 'b';
  std::ofstream(init + "/config.json") << config;
  EXPECT_EQ(text({"--prompt", "abcdefgh abc"}), "def");
  EXPECT_EQ(text({"--prompt", ""}), "cdef");
  std::ofstream(init + "/generation_config.json") << R"({"eos_token_id": 102})";  // f
  EXPECT_EQ(text({"--prompt", "abcdefgh abc"}), "de");
}

TEST_F(GenerateCommandTest, TakesTheTokenizerOfTheRun) {
  std::ofstream(Path("m.toml")) << "context = 16\n[[layer]]\ntype = \"embedding\"\nvocabulary = "
                                   "\"classes\"\nfeatures = 8\n[[layer]]\ntype = \"linear\"\n"
                                   "outputs = \"classes\"\n";
  const Finished trained = RunStagecoach(
      {"train", "--model", Path("m.toml"), "--data", Path("a.txt"), "--tokenizer", kGpt2Tokenizer,
       "--stages", "1", "--batch", "4", "--epochs", "1", "--checkpoint", Path("words"), "--json"});
  ASSERT_EQ(trained.exit_status, 0) << trained.err;
  const auto generate = [&](const Arguments& more) {
    return RunStagecoach(Joined(
        {"generate", "--checkpoint", Path("words"), "--prompt", "abc", "--tokens", "3"}, more));
  };
  const Finished run = generate({});
  EXPECT_EQ(run.exit_status, 0) << run.err;
  EXPECT_THAT(run.out, StartsWith("abc"));
  ExpectRefused(generate({"--tokenizer", STAGECOACH_TOKENIZER_FIXTURES "/spm.model"}),
                kStatusBadData, "was trained on tokens of the tokenizer");
}

TEST_F(GenerateCommandTest, RefusesFlagsThatDoNotGoTogether) {
  EXPECT_EQ(Generate({}).exit_status, kStatusUsage);
  EXPECT_EQ(Generate({"--prompt", "a", "--prompt-file", "b"}).exit_status, kStatusUsage);
  EXPECT_EQ(Generate({"--prompt", "a", "--init", "b"}).exit_status, kStatusUsage);
  EXPECT_EQ(Generate({"--prompt", "a", "--top-p", "1.5"}).exit_status, kStatusUsage);
  EXPECT_EQ(Generate({"--prompt", "a", "--precision", "tf32"}).exit_status, kStatusUsage);
  EXPECT_EQ(RunStagecoach({"generate", "--prompt", "a"}).exit_status, kStatusUsage);
}

TEST_F(GenerateCommandTest, RefusesModelsThatTakeNoTokens) {
  const Finished trained = RunStagecoach(
      {"train", "--data", "synthetic:64x8x2", "--layers", "2", "--width", "8", "--stages", "1",
       "--batch", "16", "--epochs", "1", "--checkpoint", Path("numbers"), "--json"});
  ASSERT_EQ(trained.exit_status, 0) << trained.err;
  ExpectRefused(RunStagecoach({"generate", "--prompt", "a", "--checkpoint", Path("numbers")}),
                kStatusBadData, "does not take tokens");
}

}  // namespace
}  // namespace stagecoach::tools
