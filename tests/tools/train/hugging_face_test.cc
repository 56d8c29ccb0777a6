// Parameters from and to Hugging Face's files, as a user sees them.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/models/resnet.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/test_folder.h"
#include "tests/tools/child.h"

namespace stagecoach::tools {
namespace {

using ::stagecoach::testing::TestFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;

const char* const kTokenizerOfGpt2 = STAGECOACH_TOKENIZER_FIXTURES "/gpt2.json";

// Reads a tensor from a folder with one file.
std::vector<float> TensorIn(const std::string& folder, const std::string& name) {
  const std::string bytes = base::ReadFile(folder + "/model.safetensors", int64_t{1} << 24).value();
  const engine::SafetensorsHeader header =
      engine::ParseSafetensors(bytes, static_cast<int64_t>(bytes.size())).value();
  for (const engine::SafetensorsEntry& entry : header.tensors) {
    if (entry.name != name) continue;
    std::vector<float> values(static_cast<size_t>(entry.shape.elements()));
    std::memcpy(values.data(), bytes.data() + entry.begin, values.size() * sizeof(float));
    return values;
  }
  ADD_FAILURE() << "no tensor " << name;
  return {};
}

class HuggingFaceCommand : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ofstream text(text_);
    for (int i = 0; i < 400; ++i) text << "to be or not to be, " << i << "; ";
  }
  std::string PathOf(const std::string& name) const { return (folder_.path() / name).string(); }
  // Trains a few steps on two stages.
  Finished Train(const Arguments& arguments) const {
    return RunStagecoach(
        Joined({"train", "--data", text_, "--train-samples", "32", "--global-batch-size", "16",
                "--epochs", "1", "--stages", "2", "--json"},
               arguments));
  }
  static std::string ParametersOf(const Finished& run) {
    EXPECT_EQ(run.exit_status, 0) << run.err;
    const auto last = run.out.rfind('\n', run.out.size() - 2);
    return nlohmann::json::parse(run.out.substr(last + 1))["parameters_hash"];
  }

  const TestFolder folder_;
  const std::string text_ = (folder_.path() / "book.txt").string();
  const std::string run_ = PathOf("run");
};

// A learning rate that moves nothing shows what a run starts from.
TEST_F(HuggingFaceCommand, WhatIsExportedIsWhatAnotherRunStartsFrom) {
  const std::string trained =
      ParametersOf(Train({"--model", "gpt2:blocks=1,width=16,heads=2,context=16,vocabulary=256",
                          "--checkpoint", run_}));
  const std::string out = PathOf("out");
  const Arguments to_out = {"checkpoint", "export", run_, "--format", "hf", "--output", out};
  const Finished exported = RunStagecoach(to_out);
  ASSERT_EQ(exported.exit_status, 0) << exported.err;
  EXPECT_TRUE(std::filesystem::exists(out + "/config.json"));
  const Arguments still = {"--learning-rate", "1e-30", "--weight-decay", "0"};
  EXPECT_EQ(ParametersOf(Train(Joined({"--init", out}, still))), trained);
  EXPECT_EQ(
      ParametersOf(Train(Joined({"--init", out, "--stages", "4", "--schedule", "zb-h1"}, still))),
      trained);
  const Finished again = RunStagecoach(to_out);
  EXPECT_EQ(again.exit_status, kStatusUsage);
  ExpectOneLine(again.err, HasSubstr("out/config.json is there already: name a new folder"));

  const Finished turned =
      Train({"--init", out, "--model", "gpt2:blocks=1,width=16,heads=4,context=16,vocabulary=256"});
  EXPECT_EQ(turned.exit_status, kStatusBadData);
  ExpectOneLine(turned.err, HasSubstr("is of another model than the one to train: heads 2 and 4"));
  const Finished other =
      Train({"--init", out, "--model", "gpt2:blocks=1,width=32,heads=2,context=16,vocabulary=256"});
  EXPECT_EQ(other.exit_status, kStatusBadData);
  ExpectOneLine(other.err, AllOf(HasSubstr("has the shape"), HasSubstr("and the model's")));
}

TEST_F(HuggingFaceCommand, DropoutThatIsLeftOutIsTold) {
  ParametersOf(Train({"--model", "gpt2:blocks=1,width=16,heads=2,context=16,vocabulary=256",
                      "--checkpoint", run_}));
  const std::string out = PathOf("out"), config = out + "/config.json";
  ASSERT_EQ(
      RunStagecoach({"checkpoint", "export", run_, "--format", "hf", "--output", out}).exit_status,
      0);
  EXPECT_EQ(Train({"--init", out}).err, "");
  nlohmann::json document = nlohmann::json::parse(std::ifstream(config));
  document["resid_pdrop"] = 0.25;
  std::ofstream(config) << document;
  const Finished run = Train({"--init", out});
  EXPECT_EQ(run.exit_status, 0);
  ExpectOneLine(run.err,
                HasSubstr("trained without the dropout of " + config + ": resid_pdrop 0.25"));
}

// Both kinds of files start the same run, however the model is split.
TEST_F(HuggingFaceCommand, ResNetsGoToBothLibrariesAndBack) {
  const auto train = [](const Arguments& arguments) {
    return RunStagecoach(Joined({"train", "--data", "synthetic:40x768x5", "--global-batch-size",
                                 "8", "--micro-batches", "2", "--epochs", "1", "--json"},
                                arguments));
  };
  const std::string model = PathOf("m.toml");
  std::ofstream(model) << engine::ModelFileOf(
      engine::ResNet{.blocks = {1, 1}, .outputs = {4, 8}, .stem = 4});
  ParametersOf(train({"--model", model, "--stages", "1", "--checkpoint", run_}));
  const std::string folder = PathOf("out"), file = PathOf("out.safetensors");
  for (const auto& [format, output] : {std::pair("hf", folder), std::pair("torchvision", file)}) {
    const Finished exported =
        RunStagecoach({"checkpoint", "export", run_, "--format", format, "--output", output});
    EXPECT_EQ(exported.exit_status, 0) << exported.err;
  }
  const std::string trained = ParametersOf(train({"--init", folder, "--stages", "2"}));
  EXPECT_EQ(ParametersOf(train({"--init", file, "--model", model, "--stages", "3"})), trained);
  EXPECT_NE(ParametersOf(train({"--model", model, "--stages", "1"})), trained);

  const Finished nameless = train({"--init", file});
  EXPECT_EQ(nameless.exit_status, kStatusUsage);
  ExpectOneLine(nameless.err, HasSubstr("name the ResNet that they are of with --model"));
  const Finished other = RunStagecoach(
      {"train", "--data", "synthetic:40x768x7", "--global-batch-size", "8", "--init", folder});
  EXPECT_EQ(other.exit_status, kStatusBadData);
  ExpectOneLine(other.err,
                HasSubstr("\"classifier.1.bias\" has the shape [5], and the model's [7]"));
}

TEST_F(HuggingFaceCommand, TransformersHasNoResNetForSmallImages) {
  const std::string model = PathOf("m.toml");
  std::ofstream(model) << engine::ModelFileOf(
      engine::ResNet{.blocks = {1}, .outputs = {4}, .stem = 4, .is_small = true});
  const Finished run = RunStagecoach({"train", "--data", "synthetic:40x48x5", "--model", model,
                                      "--global-batch-size", "8", "--stages", "1", "--epochs", "1",
                                      "--checkpoint", run_});
  ASSERT_EQ(run.exit_status, 0) << run.err;
  const auto exported = [&](const char* format, const std::string& output) {
    return RunStagecoach({"checkpoint", "export", run_, "--format", format, "--output", output});
  };
  const Finished refused = exported("hf", PathOf("out"));
  EXPECT_EQ(refused.exit_status, kStatusBadData);
  ExpectOneLine(refused.err, HasSubstr("a ResNet for small images, which transformers has not"));
  EXPECT_EQ(exported("torchvision", PathOf("out.safetensors")).exit_status, 0);
}

TEST_F(HuggingFaceCommand, AModelThatTransformersDoesNotKnowIsRefused) {
  const Finished run = RunStagecoach({"train", "--data", "synthetic:80x16x4", "--layers", "3",
                                      "--width", "16", "--global-batch-size", "40", "--epochs", "1",
                                      "--stages", "1", "--checkpoint", run_});
  ASSERT_EQ(run.exit_status, 0) << run.err;
  const Finished refused =
      RunStagecoach({"checkpoint", "export", run_, "--format", "hf", "--output", PathOf("out")});
  EXPECT_EQ(refused.exit_status, kStatusBadData);
  ExpectOneLine(refused.err, HasSubstr("are not those of GPT-2 or Llama"));
  EXPECT_FALSE(std::filesystem::exists(PathOf("out")));
}

// The positions that a run with a shorter context does not reach come back as they were, and so do
// special tokens; a tokenizer that was in the folder is used, saved and exported.
TEST_F(HuggingFaceCommand, AShorterContextKeepsWhatTheModelHas) {
  const std::string init = PathOf("init"), out = PathOf("out");
  ParametersOf(Train({"--model", "gpt2:blocks=1,width=16,heads=2,context=16,vocabulary=701",
                      "--tokenizer", kTokenizerOfGpt2, "--checkpoint", PathOf("first")}));
  const auto exported = [&](const std::string& run, const std::string& to) {
    const Finished done =
        RunStagecoach({"checkpoint", "export", run, "--format", "hf", "--output", to});
    EXPECT_EQ(done.exit_status, 0) << done.err;
    EXPECT_EQ(done.err, "");
    return nlohmann::json::parse(std::ifstream(to + "/config.json"));
  };
  EXPECT_EQ(exported(PathOf("first"), init)["eos_token_id"], 0);  // the tokenizer's
  nlohmann::json config = nlohmann::json::parse(std::ifstream(init + "/config.json"));
  config["eos_token_id"] = {3, 5};
  config["bos_token_id"] = 7;
  std::ofstream(init + "/config.json") << config;
  std::string hash;
  for (const Arguments& more :
       {Arguments{"--stages", "1"}, Arguments{"--stages", "3"},
        Arguments{"--model", "gpt2:blocks=1,width=16,heads=2,context=6,vocabulary=701"}}) {
    const std::string trained =
        ParametersOf(Train(Joined({"--init", init, "--context", "6", "--checkpoint", run_}, more)));
    if (hash.empty()) hash = trained;
    EXPECT_EQ(trained, hash);
    config = exported(run_, out);
    EXPECT_EQ(config["n_positions"], 16);
    EXPECT_EQ(config["eos_token_id"], (nlohmann::json{3, 5}));
    EXPECT_EQ(config["bos_token_id"], 7);
    const std::vector<float> before = TensorIn(init, "transformer.wpe.weight");
    const std::vector<float> after = TensorIn(out, "transformer.wpe.weight");
    ASSERT_EQ(after.size(), before.size());
    const auto reached = static_cast<std::ptrdiff_t>(6 * 16);
    EXPECT_TRUE(std::equal(before.begin() + reached, before.end(), after.begin() + reached));
    EXPECT_FALSE(std::equal(before.begin(), before.begin() + reached, after.begin()));
    for (const char* const file : {"/tokenizer.json", "/tokenizer_config.json"}) {
      EXPECT_TRUE(std::filesystem::exists(out + file)) << file;
    }
    // The resumed run uses all of that, and no longer needs the folder.
    EXPECT_EQ(Train({"--checkpoint", run_, "--resume", "--epochs", "2"}).exit_status, 0);
    std::filesystem::remove_all(run_);
    std::filesystem::remove_all(out);
  }
  const Finished longer = Train({"--init", init, "--context", "17"});
  EXPECT_EQ(longer.exit_status, kStatusBadData);
  ExpectOneLine(longer.err, HasSubstr("a context of 17 tokens, but the model in " + init));
}

TEST_F(HuggingFaceCommand, AShorterContextKeepsThePositionsOfALlama) {
  const std::string init = STAGECOACH_TRANSFORMER_FIXTURES "/llama", out = PathOf("out");
  std::ofstream(text_) << std::string(400, '\x07');
  const Arguments bytes = {"--init", init, "--tokenizer", "bytes"};
  ParametersOf(Train(Joined(bytes, {"--context", "4", "--checkpoint", run_})));
  ASSERT_EQ(
      RunStagecoach({"checkpoint", "export", run_, "--format", "hf", "--output", out}).exit_status,
      0);
  EXPECT_EQ(nlohmann::json::parse(std::ifstream(out + "/config.json"))["max_position_embeddings"],
            8);
  const Finished longer = Train(Joined(bytes, {"--context", "9"}));
  EXPECT_EQ(longer.exit_status, kStatusBadData);
  ExpectOneLine(longer.err, HasSubstr("a context of 9 tokens, but the model in "));
}

TEST_F(HuggingFaceCommand, BytesAreTokensOfAModelOfOthersOnlyIfThatIsSaid) {
  const Arguments model = {"--model", "gpt2:blocks=1,width=16,heads=2,context=16,vocabulary=300"};
  const Finished refused = Train(model);
  EXPECT_EQ(refused.exit_status, kStatusBadData);
  ExpectOneLine(refused.err, AllOf(HasSubstr("the vocabulary is of 300"),
                                   HasSubstr("or say --tokenizer bytes")));
  ParametersOf(Train(Joined(model, {"--tokenizer", "bytes", "--checkpoint", run_})));
  const Finished generated = RunStagecoach({"generate", "--checkpoint", run_, "--prompt", "to",
                                            "--tokens", "2", "--tokenizer", "bytes"});
  EXPECT_EQ(generated.exit_status, 0) << generated.err;
}

// A line reports it, too.
TEST_F(HuggingFaceCommand, TheSecondTokenizerOfAFolderStandsInForOneThatIsRefused) {
  ParametersOf(
      Train({"--model", "llama:blocks=1,width=16,heads=2,context=16,vocabulary=500", "--tokenizer",
             STAGECOACH_TOKENIZER_FIXTURES "/spm.model", "--checkpoint", run_}));
  const std::string out = PathOf("out");
  const Finished exported =
      RunStagecoach({"checkpoint", "export", run_, "--format", "hf", "--output", out});
  ASSERT_EQ(exported.exit_status, 0) << exported.err;
  EXPECT_TRUE(std::filesystem::exists(out + "/tokenizer.model"));
  std::ofstream(out + "/tokenizer.json") << R"({"version": "1.0", "model": {"type": "Unheard"}})";
  const Finished run = Train({"--init", out});
  EXPECT_EQ(run.exit_status, 0);
  ExpectOneLine(run.err, AllOf(HasSubstr("takes the tokenizer " + out + "/tokenizer.model, since"),
                               HasSubstr("\"Unheard\" is not supported")));
}

// The error is not the one that the data would then cause: 145 tokens are too few for a context of
// 256.
TEST_F(HuggingFaceCommand, EveryCommandTellsWhatIsWrongWithAConfig) {
  const std::string init = PathOf("init"), few = PathOf("few.txt");
  std::filesystem::create_directory(init);
  std::ofstream(few) << std::string(145, 'x');
  nlohmann::json config =
      nlohmann::json::parse(std::ifstream(STAGECOACH_TRANSFORMER_FIXTURES "/llama/config.json"));
  config["attention_bias"] = true;
  std::ofstream(init + "/config.json") << config;
  for (const Arguments& command :
       {Arguments{"train", "--data", few}, Arguments{"plan"}, Arguments{"plan", "--data", few},
        Arguments{"profile", "--output", PathOf("p.json")},
        Arguments{"generate", "--prompt", "a"}}) {
    const Finished run = RunStagecoach(Joined(command, {"--init", init}));
    EXPECT_EQ(run.exit_status, kStatusBadData);
    ExpectOneLine(run.err, HasSubstr("$.attention_bias: is true, which"));
  }
}

TEST_F(HuggingFaceCommand, AFolderWithoutAModelIsBadData) {
  const Finished missing = Train({"--init", PathOf("nothing")});
  EXPECT_EQ(missing.exit_status, kStatusBadData);
  ExpectOneLine(missing.err, HasSubstr("nothing has no config.json"));
}

TEST_F(HuggingFaceCommand, ANameThatIsWrongSaysWhatIsNot) {
  const Finished wrong = Train({"--model", "gpt2:block=2"});
  ExpectOneLine(wrong.err, AllOf(HasSubstr("gpt2:block=2"), HasSubstr("did you mean \"blocks\"?")));
}

}  // namespace
}  // namespace stagecoach::tools
