// Parameters from and to Hugging Face's files, as a user sees them.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/system/file.h"
#include "engine/checkpoint/files/safetensors.h"
#include "engine/models/resnet.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/test_folder.h"
#include "tests/tools/child.h"

namespace stagecoach::tools {
namespace {

using ::stagecoach::testing::TestFolder;
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

}  // namespace
}  // namespace stagecoach::tools
