// `generate`, as a user sees it.
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "tests/testing/test_folder.h"
#include "tests/tools/child.h"
#include "tests/tools/scoped_variable.h"
#include "tools/stagecoach/generate/prompt_positions.h"

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
         Path("a.txt"), "--stages", "2", "--global-batch-size", "4", "--micro-batches", "2",
         "--epochs", "2", "--learning-rate", "1e-2", "--checkpoint", Path("run"), "--json"});
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
  // The last token is chosen from the model's output at the last position.
  EXPECT_EQ(end["tokens"], kContext - 9 + 1);
  EXPECT_EQ(events.size(), 2 + end["tokens"].get<size_t>());
  EXPECT_GT(end["tokens_per_second"], 0.0);
  for (const nlohmann::json& device : end["devices"]) {
    EXPECT_EQ(device["measured_peak_bytes"], device["predicted_peak_bytes"]);
  }
}

// The model continues with the alphabet to h and a space. Text that may begin a stop sequence is
// not printed before that is decided.
TEST_F(GenerateCommandTest, EndsBeforeTheFirstStop) {
  const auto events = [this](const Arguments& stops) {
    return Generate(
               Joined({"--prompt", "abcdefgh abc", "--temperature", "0", "--tokens", "9", "--json"},
                      stops))
        .Events();
  };
  const auto end = [&](const Arguments& stops) {
    const nlohmann::json last = events(stops).back();
    return absl::StrCat(last["text"].get<std::string>(), "|", last["ended_by"].get<std::string>(),
                        "|", last["tokens"].get<int>());
  };
  EXPECT_EQ(end({}), "defgh abc|tokens|9");
  EXPECT_EQ(end({"--stop", "gh a"}), "def|stop|7");
  EXPECT_EQ(end({"--stop", "h", "--stop", "ef"}), "d|stop|3");
  EXPECT_EQ(end({"--stop", "d"}), "|stop|1");
  EXPECT_EQ(end({"--stop", "gx", "--stop", "abcd", "--stop", "bcx"}), "defgh abc|tokens|9");
  EXPECT_EQ(end({"--stop", "c", "--tokens", "9"}), "defgh ab|stop|9");
  std::string printed;
  for (const nlohmann::json& event : events({"--stop", "gh b", "--tokens", "6"})) {
    if (event["event"] == "token") absl::StrAppend(&printed, event["text"].get<std::string>(), ",");
  }
  EXPECT_EQ(printed, "d,e,f,,,,");  // the last three are "gh "
  ExpectRefused(Generate({"--prompt", "a", "--stop", ""}), kStatusUsage, "--stop");
}

// Each as if it were the only one, whatever the others are and however many go on together.
TEST_F(GenerateCommandTest, ContinuesSeveralPrompts) {
  const std::vector<std::string> prompts = {"abcdefgh abc", "h", "defgh abcdefgh ab"};
  std::ofstream(Path("lines")) << prompts[0] << "\r\n\n" << prompts[1] << "\n" << prompts[2];
  std::ofstream json(Path("p.jsonl"));
  for (const std::string& prompt : prompts) {
    json << nlohmann::json{{"id", 7}, {"prompt", prompt}} << "\n";
  }
  json.close();
  for (const Arguments& choice : {Arguments{"--temperature", "0"}, Arguments{"--seed", "3"}}) {
    std::string alone;
    for (const std::string& prompt : prompts) {
      absl::StrAppend(&alone, alone.empty() ? "" : "\n",
                      Generate(Joined({"--prompt", prompt, "--tokens", "6"}, choice)).out);
    }
    for (const auto& [file, together] :
         {std::pair("lines", "1"), {"p.jsonl", "2"}, {"lines", "3"}}) {
      const Finished run = Generate(Joined(
          {"--prompts", Path(file), "--tokens", "6", "--stages", "2", "--batch-prompts", together},
          choice));
      EXPECT_EQ(run.exit_status, 0) << run.err;
      EXPECT_EQ(run.out, alone);
      ExpectOneLine(run.err, MatchesRegex("stagecoach: 18 tokens, .* tokens/s; prompts 30 "
                                          "tokens, .*tokens/s\n?"));
    }
  }
  const auto refused = [&](const std::string& contents, const std::string& part) {
    std::ofstream(Path("bad.jsonl")) << contents;
    ExpectRefused(Generate({"--prompts", Path("bad.jsonl")}), kStatusBadData,
                  absl::StrCat("bad.jsonl: ", part));
  };
  refused("\n\n", "there is no prompt");
  refused("{\"prompt\": \"a\"}\n{\"prompt\": 3}\n", "line 2: $.prompt: expected a string");
  refused("a\n", "line 1: ");
  std::ofstream(Path("lines")) << "a\n" << std::string(kContext + 1, 'a');
  ExpectRefused(Generate({"--prompts", Path("lines")}), kStatusBadData,
                "prompt 2 has 25 tokens, and the model's context is of 24");
}

// Texts that end at other times, at a stop, at a full context and after some tokens: what one gives
// is held back until those before it have ended.
TEST_F(GenerateCommandTest, GivesTheEventsOfSeveralPromptsInTheirOrder) {
  std::ofstream file(Path("lines"));
  const std::vector<std::string> prompts = {"abcdefgh abcdefgh ", "abcdefg",
                                            "defgh abcdefgh abcdef", "h", "abcdefgh abcde"};
  for (const std::string& prompt : prompts) file << prompt << "\n";
  file.close();
  const auto events = [&](const Arguments& more) {
    const Finished run = Generate(Joined({"--prompts", Path("lines"), "--tokens", "9",
                                          "--temperature", "0", "--stop", "h a", "--json"},
                                         more));
    EXPECT_EQ(run.exit_status, 0) << run.err;
    std::vector<nlohmann::json> all = run.Events();
    for (nlohmann::json& event : all) {
      for (const nlohmann::json& device : event["devices"]) {
        EXPECT_EQ(device["measured_peak_bytes"], device["predicted_peak_bytes"]);
      }
      event.erase("devices");
      event.erase("tokens_per_second");
      event.erase("prompt_tokens_per_second");
      event.erase("first_layers");
    }
    return all;
  };
  const std::vector<nlohmann::json> expected = events({"--batch-prompts", "1"});
  std::vector<std::string> ends;
  for (const nlohmann::json& event : expected) {
    if (event["event"] == "end") ends.push_back(event["ended_by"]);
  }
  EXPECT_THAT(ends, ::testing::ElementsAre("context", "stop", "stop", "tokens", "stop"));
  EXPECT_EQ(events({}), expected);
  EXPECT_EQ(events({"--batch-prompts", "2", "--stages", "3"}), expected);
}

// As many together as have room.
TEST_F(GenerateCommandTest, ContinuesFewerPromptsTogetherInLessMemory) {
  std::ofstream file(Path("lines"));
  for (int i = 0; i < 16; ++i) file << "abcdefgh abc\n";
  file.close();
  const auto run = [&](const Arguments& more) {
    return Generate(Joined({"--prompts", Path("lines"), "--tokens", "2", "--json"}, more));
  };
  const auto peak = [&](const Arguments& more) {
    const Finished finished = run(more);
    EXPECT_EQ(finished.exit_status, 0) << finished.err;
    return finished.Events().back()["devices"][0]["predicted_peak_bytes"].get<int64_t>();
  };
  const int64_t of_four = peak({"--batch-prompts", "4"});
  const std::string budget = absl::StrCat(of_four, "B");
  EXPECT_LT(of_four, peak({}));
  EXPECT_EQ(peak({"--device-memory", budget}), of_four);
  const Finished refused = run({"--device-memory", budget, "--batch-prompts", "5"});
  EXPECT_EQ(refused.exit_status, kStatusBadConfiguration) << refused.err;
}

TEST_F(GenerateCommandTest, EndsBetweenTwoTexts) {
  std::ofstream file(Path("lines"));
  for (int i = 0; i < 20'000; ++i) file << "abcdefgh\n";
  file.close();
  Child child({"generate", "--checkpoint", Path("run"), "--threads-per-device", "1", "--prompts",
               Path("lines"), "--tokens", "1", "--json"});
  ASSERT_TRUE(child.WaitForOutput("\"event\":\"end\""));
  child.Signal(SIGINT);
  const Finished run = child.Wait();
  EXPECT_EQ(run.exit_status, kStopped);
  const std::vector<nlohmann::json> events = run.Events();
  EXPECT_LT(events.size(), 3 * 20'000U);
  EXPECT_EQ(events.back()["event"], "end");
}

struct Positions {
  engine::DeviceKind device;
  std::vector<int> prompts;
  int64_t expected;
};

TEST(PromptPositions, AreThoseOfTheLeastTime) {
  using enum engine::DeviceKind;
  for (const auto& [device, prompts, expected] : std::vector<Positions>{
           {kCpu, {1}, 1},
           {kCpu, {2}, 1},
           {kCpu, {122}, 121},
           {kCpu, {129}, 128},
           {kCpu, {130}, 65},  // two equal parts
           {kCpu, {401}, 100},
           {kCpu, {11, 11, 11}, 10},
           {kCpu, {121, 5, 5, 5, 5}, 20},  // not 120 for each of the short ones
           {kCpu, {1, 1, 41}, 40},
           {kCuda, {63, 2}, 1},
           {kCuda, {2, 64, 3}, 8},
       }) {
    std::vector<std::vector<int32_t>> ids;
    for (const int prompt : prompts) ids.emplace_back(prompt);
    EXPECT_EQ(PositionsAtATime(device, ids), expected) << prompts.front();
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

// generation_config.json says how texts end and begin, or else config.json, or else the tokenizer;
// an empty prompt is a text that begins.
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
  const Finished trained =
      RunStagecoach({"train", "--model", Path("m.toml"), "--data", Path("a.txt"), "--tokenizer",
                     kGpt2Tokenizer, "--stages", "1", "--global-batch-size", "4", "--epochs", "1",
                     "--checkpoint", Path("words"), "--json"});
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
  EXPECT_EQ(Generate({"--prompt", "a", "--prompts", "b"}).exit_status, kStatusUsage);
  EXPECT_EQ(Generate({"--prompt", "a", "--init", "b"}).exit_status, kStatusUsage);
  EXPECT_EQ(Generate({"--prompt", "a", "--top-p", "1.5"}).exit_status, kStatusUsage);
  EXPECT_EQ(Generate({"--prompt", "a", "--precision", "tf32"}).exit_status, kStatusUsage);
  EXPECT_EQ(RunStagecoach({"generate", "--prompt", "a"}).exit_status, kStatusUsage);
}

TEST_F(GenerateCommandTest, RefusesModelsThatTakeNoTokens) {
  const Finished trained = RunStagecoach(
      {"train", "--data", "synthetic:64x8x2", "--layers", "2", "--width", "8", "--stages", "1",
       "--global-batch-size", "16", "--epochs", "1", "--checkpoint", Path("numbers"), "--json"});
  ASSERT_EQ(trained.exit_status, 0) << trained.err;
  ExpectRefused(RunStagecoach({"generate", "--prompt", "a", "--checkpoint", Path("numbers")}),
                kStatusBadData, "does not take tokens");
}

}  // namespace
}  // namespace stagecoach::tools
