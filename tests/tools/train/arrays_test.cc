// Samples in .npy files, as a user sees them.
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/data/data_test_util.h"
#include "tests/engine/data/token_files.h"
#include "tests/tools/child.h"

namespace stagecoach::tools {
namespace {

using engine::IdxFile;
using engine::NpyFile;
using engine::TestDirectory;
using engine::WriteTestFile;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kLabels[] = "{'descr': '|u1', 'fortran_order': False, 'shape': (24,), }";

std::string PixelsHeader(const std::string& shape, const std::string& order = "False") {
  return absl::StrCat("{'descr': '|u1', 'fortran_order': ", order, ", 'shape': ", shape, ", }");
}

// 24 gray images of 8 x 8 pixels with 3 labels, for training and for testing, in both formats.
class ArraysCommand : public ::testing::Test {
 protected:
  void SetUp() override {
    for (int i = 0; i < 24 * 64; ++i) pixels_.push_back(static_cast<char>(i * 37 + i / 64 * 11));
    for (int i = 0; i < 24; ++i) labels_.push_back(static_cast<char>(i % 3));
    for (const std::string set : {"train", "t10k"}) {
      WriteTestFile(idx_, set + "-images-idx3-ubyte", IdxFile({24, 8, 8}, pixels_));
      WriteTestFile(idx_, set + "-labels-idx1-ubyte", IdxFile({24}, labels_));
    }
    for (const std::string set : {"train", "test"}) {
      WriteTestFile(npy_, absl::StrCat("x_", set, ".npy"),
                    NpyFile(PixelsHeader("(24, 1, 8, 8)"), pixels_));
      WriteTestFile(npy_, absl::StrCat("y_", set, ".npy"), NpyFile(kLabels, labels_));
    }
  }
  Finished Train(const std::string& data, const Arguments& more = {}) const {
    return RunStagecoach(
        Joined({"train", "--data", data, "--model", model_, "--global-batch-size", "8",
                "--micro-batches", "2", "--stages", "2", "--epochs", "2", "--json"},
               more));
  }
  void ExpectRefused(const std::string& name, const std::string& contents,
                     const ::testing::Matcher<std::string>& line) const {
    const std::string path = absl::StrCat(npy_, "/", name);
    WriteTestFile(npy_, name, contents);
    const Finished run = Train(npy_);
    EXPECT_EQ(run.exit_status, kStatusBadData);
    ExpectOneLine(run.err, AllOf(HasSubstr(path), line));
  }

  const std::string folder_ = TestDirectory();
  const std::string idx_ = FolderOf("idx"), npy_ = FolderOf("npy");
  const std::string model_ = WriteTestFile(
      folder_, "m.toml",
      "input = \"image\"\n[[layer]]\ntype = \"conv2d\"\noutputs = 4\nkernel = 3\n[[layer]]\n"
      "type = \"relu\"\n[[layer]]\ntype = \"flatten\"\n[[layer]]\ntype = \"linear\"\n"
      "outputs = \"classes\"\n");
  std::string pixels_, labels_;

 private:
  std::string FolderOf(const std::string& name) const {
    const std::string path = absl::StrCat(folder_, "/", name);
    std::filesystem::create_directories(path);
    return path;
  }
};

std::string HashOf(const Finished& run) {
  EXPECT_EQ(run.exit_status, 0) << run.err;
  const auto last = run.out.rfind('\n', run.out.size() - 2);
  return nlohmann::json::parse(run.out.substr(last + 1))["parameters_hash"];
}

TEST_F(ArraysCommand, TrainAndPredictWithTheBitsOfIdx) {
  const std::string run = folder_ + "/run";
  const std::string trained = HashOf(Train(npy_, {"--checkpoint", run}));
  EXPECT_EQ(trained, HashOf(Train(idx_)));
  const auto predict = [&](const std::string& data) {
    const Finished done = RunStagecoach({"predict", "--checkpoint", run, "--data", data});
    EXPECT_EQ(done.exit_status, 0) << done.err;
    return done.out.substr(done.out.rfind("fingerprint of the outputs"));
  };
  EXPECT_EQ(predict(npy_), predict(idx_));
}

TEST_F(ArraysCommand, ImagesAreOfTheShapeThatTheModelTakes) {
  const std::string run = folder_ + "/run";
  HashOf(Train(npy_, {"--checkpoint", run}));
  for (const std::string set : {"train", "t10k"}) {
    WriteTestFile(idx_, set + "-images-idx3-ubyte", IdxFile({24, 4, 16}, pixels_));
  }
  for (const std::string set : {"train", "test"}) {
    WriteTestFile(npy_, absl::StrCat("x_", set, ".npy"),
                  NpyFile(PixelsHeader("(24, 1, 4, 16)"), pixels_));
  }
  for (const std::string& data : {idx_, npy_}) {
    EXPECT_EQ(Train(data).exit_status, 0);
    const Finished predicted = RunStagecoach({"predict", "--checkpoint", run, "--data", data});
    EXPECT_EQ(predicted.exit_status, kStatusBadData);
    ExpectOneLine(predicted.err, HasSubstr(data + ": the data has images of shape [1, 4, 16]; the "
                                                  "model takes [1, 8, 8]"));
  }
}

// Images of one channel are the same in both orders. Prediction uses the order that the run was
// told.
TEST_F(ArraysCommand, ChannelsMayComeLastIfThatIsSaid) {
  const std::string run = folder_ + "/run";
  const std::string trained = HashOf(Train(npy_));
  for (const std::string set : {"train", "test"}) {
    WriteTestFile(npy_, absl::StrCat("x_", set, ".npy"),
                  NpyFile(PixelsHeader("(24, 8, 8, 1)"), pixels_));
  }
  EXPECT_EQ(HashOf(Train(npy_, {"--channels", "last", "--checkpoint", run})), trained);
  const Arguments predict = {"predict", "--checkpoint", run, "--data", npy_};
  EXPECT_EQ(RunStagecoach(predict).exit_status, 0);
  const Finished other = RunStagecoach(Joined(predict, {"--channels", "first"}));
  EXPECT_EQ(other.exit_status, kStatusBadData);
  ExpectOneLine(other.err, HasSubstr("images of shape [8, 8, 1]; the model takes [1, 8, 8]"));
  const Finished idx = Train(idx_, {"--channels", "last"});
  EXPECT_EQ(idx.exit_status, kStatusUsage);
  ExpectOneLine(idx.err, HasSubstr("--channels is for a directory of arrays"));
  const Finished bad = Train(npy_, {"--channels", "middle"});
  EXPECT_EQ(bad.exit_status, kStatusUsage);
  ExpectOneLine(bad.err, AllOf(HasSubstr("--channels"), HasSubstr("middle"), HasSubstr("first")));
}

// The data count as the same, although the values are in another order.
TEST_F(ArraysCommand, ARunThatGoesOnWithAnotherOrderOfChannelsSaysSo) {
  const std::string run = folder_ + "/run";
  for (const std::string set : {"train", "test"}) {
    WriteTestFile(npy_, absl::StrCat("x_", set, ".npy"),
                  NpyFile(PixelsHeader("(24, 4, 4, 4)"), pixels_));
  }
  HashOf(Train(npy_, {"--checkpoint", run}));
  const auto resume = [&](const Arguments& more) {
    return RunStagecoach(Joined({"train", "--json", "--checkpoint", run, "--resume"}, more));
  };
  const Finished last = resume({"--epochs", "3", "--channels", "last"});
  HashOf(last);
  EXPECT_THAT(last.err, HasSubstr("--channels was first and is last"));
  const Finished same = resume({"--epochs", "4"});
  HashOf(same);
  EXPECT_THAT(same.err, Not(HasSubstr("--channels")));
  const Finished first = resume({"--epochs", "5", "--channels", "first"});
  HashOf(first);
  EXPECT_THAT(first.err, HasSubstr("--channels was last and is first"));
}

// As documented: a shape that looks as if channels came last is read that way if the model file
// says that it takes it; other images are read that way in any case.
TEST_F(ArraysCommand, AnImageMayBeNarrow) {
  const auto save = [&](const std::string& shape) {
    for (const std::string set : {"train", "test"}) {
      WriteTestFile(npy_, absl::StrCat("x_", set, ".npy"), NpyFile(PixelsHeader(shape), pixels_));
    }
  };
  const auto take = [&](const std::string& shape) {
    WriteTestFile(folder_, "m.toml",
                  absl::StrCat("input = ", shape, "\n[[layer]]\ntype = \"flatten\"\n[[layer]]\n",
                               "type = \"linear\"\noutputs = \"classes\"\n"));
  };
  take("\"image\"");
  save("(24, 4, 16, 1)");
  HashOf(Train(npy_));
  save("(24, 8, 8, 1)");
  EXPECT_EQ(Train(npy_).exit_status, kStatusBadData);
  take("[1, 8, 8]");
  const Finished refused = Train(npy_);
  EXPECT_EQ(refused.exit_status, kStatusBadData);
  ExpectOneLine(refused.err, HasSubstr("as the model takes them: --channels last reads them so"));
  take("[8, 8, 1]");
  const std::string run = folder_ + "/run";
  HashOf(Train(npy_, {"--checkpoint", run}));
  const Finished predicted = RunStagecoach({"predict", "--checkpoint", run, "--data", npy_});
  EXPECT_EQ(predicted.exit_status, 0) << predicted.err;
}

TEST_F(ArraysCommand, WhatIsNotAcceptedIsBadData) {
  const std::string good = PixelsHeader("(24, 1, 8, 8)");
  ExpectRefused("x_train.npy", NpyFile(good, pixels_.substr(1)), HasSubstr("is truncated"));
  ExpectRefused("x_train.npy", NpyFile(good, pixels_, 4), HasSubstr("version 4.0"));
  ExpectRefused("x_train.npy", NpyFile(PixelsHeader("(24, 1, 8, 8)", "True"), pixels_),
                HasSubstr("Fortran's order"));
  ExpectRefused("x_train.npy", NpyFile(PixelsHeader("(24, 8, 8, 1)"), pixels_),
                HasSubstr("--channels first or --channels last"));
  ExpectRefused("x_train.npy",
                NpyFile("{'descr': '>f4', 'fortran_order': False, 'shape': (24, 16), }", pixels_),
                HasSubstr("\">f4\""));
  WriteTestFile(npy_, "x_train.npy", NpyFile(good, pixels_));
  ExpectRefused(
      "y_train.npy",
      NpyFile("{'descr': '|u1', 'fortran_order': False, 'shape': (23,), }", labels_.substr(1)),
      HasSubstr("holds 23 labels"));
  ExpectRefused("y_train.npy",
                NpyFile("{'descr': '|i1', 'fortran_order': False, 'shape': (24,), }",
                        std::string(24, '\xFF')),
                HasSubstr("label of row 0 is -1"));
}

}  // namespace
}  // namespace stagecoach::tools
