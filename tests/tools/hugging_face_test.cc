// Parameters from and to Hugging Face's files, as a user has it.
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/model/resnet.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/test_folder.h"
#include "tests/tools/child.h"

namespace stagecoach::tools {
namespace {

using ::stagecoach::testing::TestFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;

class HuggingFaceCommand : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ofstream text(text_);
    for (int i = 0; i < 400; ++i) text << "to be or not to be, " << i << "; ";
  }
  std::string PathOf(const std::string& name) const { return (folder_.path() / name).string(); }
  // Of two stages, a few steps.
  Finished Train(const Arguments& arguments) const {
    return RunStagecoach(Joined({"train", "--data", text_, "--rows", "32", "--batch", "16",
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

// A rate that moves nothing shows what a run starts from.
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
      Train({"--init", out, "--model", "gpt2:blocks=1,width=32,heads=2,context=16"});
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

// Both kinds of files start the same run, however the model is cut.
TEST_F(HuggingFaceCommand, ResNetsGoToBothLibrariesAndBack) {
  const auto train = [](const Arguments& arguments) {
    return RunStagecoach(Joined({"train", "--data", "synthetic:40x768x5", "--batch", "8",
                                 "--microbatches", "2", "--epochs", "1", "--json"},
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
  const Finished other =
      RunStagecoach({"train", "--data", "synthetic:40x768x7", "--batch", "8", "--init", folder});
  EXPECT_EQ(other.exit_status, kStatusBadData);
  ExpectOneLine(other.err,
                HasSubstr("\"classifier.1.bias\" has the shape [5], and the model's [7]"));
}

TEST_F(HuggingFaceCommand, TransformersHasNoResNetForSmallImages) {
  const std::string model = PathOf("m.toml");
  std::ofstream(model) << engine::ModelFileOf(
      engine::ResNet{.blocks = {1}, .outputs = {4}, .stem = 4, .is_small = true});
  const Finished run =
      RunStagecoach({"train", "--data", "synthetic:40x48x5", "--model", model, "--batch", "8",
                     "--stages", "1", "--epochs", "1", "--checkpoint", run_});
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
  const Finished run =
      RunStagecoach({"train", "--data", "synthetic:80x16x4", "--layers", "3", "--width", "16",
                     "--batch", "40", "--epochs", "1", "--stages", "1", "--checkpoint", run_});
  ASSERT_EQ(run.exit_status, 0) << run.err;
  const Finished refused =
      RunStagecoach({"checkpoint", "export", run_, "--format", "hf", "--output", PathOf("out")});
  EXPECT_EQ(refused.exit_status, kStatusBadData);
  ExpectOneLine(refused.err, HasSubstr("are not those of GPT-2 or Llama"));
  EXPECT_FALSE(std::filesystem::exists(PathOf("out")));
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
