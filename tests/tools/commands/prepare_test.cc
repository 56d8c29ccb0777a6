// `prepare`, and `train --tokenizer`, as a user sees them.
#include <filesystem>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/test_folder.h"
#include "tests/tools/child.h"

namespace stagecoach::tools {
namespace {

using ::stagecoach::testing::TestFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const char* const kGpt2Json = STAGECOACH_TOKENIZER_FIXTURES "/gpt2.json";
const char* const kLlama3Json = STAGECOACH_TOKENIZER_FIXTURES "/llama3.json";
const char* const kSpmModel = STAGECOACH_TOKENIZER_FIXTURES "/spm.model";

class PrepareCommandTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ofstream text(text_);
    for (int i = 0; i < 300; ++i) text << "It's line " << i << " of a text, and no more.\n";
    std::ofstream(model_) << "context = 8\n[[layer]]\ntype = \"embedding\"\nvocabulary = "
                             "\"classes\"\nfeatures = 8\n[[layer]]\ntype = \"linear\"\noutputs = "
                             "\"classes\"\n";
  }

  Finished Prepare(const std::string& tokenizer, const Arguments& more = {}) const {
    return RunStagecoach(
        Joined({"prepare", "--text", text_, "--tokenizer", tokenizer, "--output", made_}, more));
  }

  Finished Train(const Arguments& more) const {
    return RunStagecoach(Joined({"train", "--model", model_, "--stages", "1", "--global-batch-size",
                                 "8", "--epochs", "1", "--checkpoint", run_, "--json"},
                                more));
  }

  Finished Predict(const Arguments& more) const {
    return RunStagecoach(Joined({"predict", "--checkpoint", run_, "--json"}, more));
  }

  static void ExpectBadData(const Finished& run, const ::testing::Matcher<std::string>& line) {
    EXPECT_EQ(run.exit_status, kStatusBadData);
    ExpectOneLine(run.err, line);
  }

  const TestFolder folder_;
  const std::string text_ = folder_.path() / "a.md", model_ = folder_.path() / "m.toml";
  const std::string made_ = folder_.path() / "made", run_ = folder_.path() / "run";
};

TEST_F(PrepareCommandTest, MakesWhatTrainReads) {
  const Finished made = Prepare(kGpt2Json);
  EXPECT_EQ(made.exit_status, 0) << made.err;
  EXPECT_THAT(made.out,
              AllOf(HasSubstr(" tokens of a vocabulary of 701: "), HasSubstr(" bytes of text each"),
                    HasSubstr("made/train.bin: "), HasSubstr("made/val.bin: ")));
  const Finished trained = Train({"--data", made_});
  ASSERT_EQ(trained.exit_status, 0) << trained.err;
  // Text is encoded by the tokenizer that the data name, and by no other.
  const Finished predicted = Predict({"--data", text_});
  EXPECT_EQ(predicted.exit_status, 0) << predicted.err;
  EXPECT_GT(predicted.Events().back()["perplexity"], 1.0);
  ExpectBadData(Predict({"--data", text_, "--tokenizer", kSpmModel}),
                HasSubstr("the model was trained on tokens of the tokenizer "));
}

TEST_F(PrepareCommandTest, MakesOneFileAndSaysWhatIsInIt) {
  const std::string ids = folder_.path() / "ids.npy";
  const Finished made = RunStagecoach(
      {"prepare", "--text", text_, "--tokenizer", kSpmModel, "--output", ids, "--json"});
  EXPECT_EQ(made.exit_status, 0) << made.err;
  const nlohmann::json end = made.Events().back();
  EXPECT_EQ(end["vocabulary"], 500);
  EXPECT_EQ(end["text_bytes"], std::filesystem::file_size(text_));
  EXPECT_EQ(end["files"][0]["tokens"], end["tokens"]);
  EXPECT_EQ(Train({"--data", ids}).exit_status, 0);
}

TEST_F(PrepareCommandTest, RefusesBadText) {
  std::ofstream(text_) << "abc\xFF";
  ExpectBadData(Prepare(kGpt2Json), HasSubstr("a.md: the byte 0xff at offset 3 is not UTF-8"));
  EXPECT_FALSE(std::filesystem::exists(made_));
}

TEST_F(PrepareCommandTest, RefusesATokenizerThatItDoesNotKnow) {
  const std::string path = folder_.path() / "tokenizer.json";
  std::ofstream(path) << R"({"version": "1.0", "model": {"type": "WordLevel", "vocab": {}}})";
  ExpectBadData(Prepare(path), HasSubstr("$.model.type: \"WordLevel\" is not supported"));
  ExpectBadData(Prepare((folder_.path() / "none.json").string()), HasSubstr("none.json"));
}

TEST_F(PrepareCommandTest, CutsOnlyADirectory) {
  const Finished cut = RunStagecoach({"prepare", "--text", text_, "--tokenizer", kGpt2Json,
                                      "--output", "a.bin", "--val-fraction", "0.2"});
  EXPECT_EQ(cut.exit_status, kStatusUsage);
  ExpectOneLine(cut.err, HasSubstr("--val-fraction is for a directory"));
}

TEST_F(PrepareCommandTest, TrainMakesTokensOfText) {
  const Finished trained = Train({"--data", text_, "--tokenizer", kLlama3Json});
  ASSERT_EQ(trained.exit_status, 0) << trained.err;
  EXPECT_EQ(Predict({}).exit_status, 0);
  ExpectBadData(Predict({"--tokenizer", kGpt2Json}), HasSubstr("is not what the model was"));
  ExpectBadData(Train({"--resume", "--tokenizer", kGpt2Json}), HasSubstr("is of another model"));
  const std::string copy = folder_.path() / "copy.json";
  std::filesystem::copy_file(kLlama3Json, copy);
  // The same tokenizer under another path counts as the same.
  const Finished moved = Train({"--resume", "--tokenizer", copy});
  EXPECT_EQ(moved.exit_status, 0) << moved.err;
  EXPECT_THAT(moved.err, IsEmpty());
  std::ofstream(copy, std::ios::app) << "\n";
  ExpectBadData(Train({"--resume", "--tokenizer", copy}), HasSubstr("tokens of the tokenizer "));
}

TEST_F(PrepareCommandTest, OnlyTokensHaveATokenizer) {
  const Finished run =
      RunStagecoach({"train", "--data", "synthetic:100x8x2", "--tokenizer", kGpt2Json});
  EXPECT_EQ(run.exit_status, kStatusUsage);
  ExpectOneLine(run.err, HasSubstr("--tokenizer is for text and ids of tokens, which synthetic:"));
}

}  // namespace
}  // namespace stagecoach::tools
