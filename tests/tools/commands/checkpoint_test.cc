// `stagecoach checkpoint`, as a user sees it.
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/test_folder.h"
#include "tests/tools/child.h"

namespace stagecoach::tools {
namespace {

using ::stagecoach::testing::TestFolder;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class CheckpointCommand : public ::testing::Test {
 protected:
  // The checkpoints of a run of two epochs of two steps, one after each epoch.
  void SetUp() override {
    const Finished run =
        RunStagecoach({"train", "--data", "synthetic:80x16x4", "--layers", "3", "--width", "16",
                       "--global-batch-size", "40", "--epochs", "2", "--stages", "2", "--schedule",
                       "1f1b", "--checkpoint", run_, "--checkpoint-every", "2"});
    ASSERT_EQ(run.exit_status, 0) << run.err;
    EXPECT_THAT(run.out, HasSubstr(absl::StrCat("saved as ", run_, "/step-00000004")));
  }
  static Finished Run(const Arguments& arguments) {
    return RunStagecoach(Joined({"checkpoint"}, arguments));
  }

  const TestFolder folder_;
  const std::string run_ = (folder_.path() / "run").string();
};

TEST_F(CheckpointCommand, InspectShowsWhatWasSaved) {
  const Finished inspected = Run({"inspect", run_});
  EXPECT_EQ(inspected.exit_status, 0) << inspected.err;
  EXPECT_THAT(inspected.out,
              AllOf(HasSubstr(absl::StrCat(run_, "/step-00000004\n")),
                    HasSubstr("after step 4, at the end of epoch 2; plan 1f1b over 2 stages\n"),
                    HasSubstr("given      "), HasSubstr("--width 16"), HasSubstr("defaults   "),
                    ContainsRegex("1  residual.*304 +1\\.[0-9] kB +3\\.[0-9] kB")));
  const Finished json = Run({"inspect", "--json", absl::StrCat(run_, "/step-00000002")});
  EXPECT_EQ(nlohmann::json::parse(json.out)["step"], 2);
}

// The text of a checkpoint may come from an untrusted source.
TEST_F(CheckpointCommand, InspectDoesNotSteerTheTerminal) {
  const std::string table = (folder_.path() / "\x1b[31mred.csv").string();
  std::ofstream(table) << "x,label\n1,0\n2,1\n3,0\n4,1\n5,0\n6,1\n7,0\n8,1\n9,0\n10,1\n";
  const std::string run = (folder_.path() / "other").string();
  const Finished trained = RunStagecoach({"train", "--data", table, "--layers", "2", "--width", "4",
                                          "--global-batch-size", "4", "--epochs", "1", "--stages",
                                          "1", "--checkpoint", run});
  ASSERT_EQ(trained.exit_status, 0) << trained.err;
  const Finished inspected = Run({"inspect", run});
  EXPECT_EQ(inspected.exit_status, 0) << inspected.err;
  EXPECT_THAT(inspected.out, AllOf(HasSubstr("/\\x1b[31mred.csv"), Not(HasSubstr("\x1b"))));
}

TEST_F(CheckpointCommand, VerifyFindsDamage) {
  const Finished whole = Run({"verify", run_});
  EXPECT_EQ(whole.exit_status, 0) << whole.err;
  EXPECT_THAT(whole.out, HasSubstr("is whole: 6 files"));
  const Finished json = Run({"verify", "--json", run_});
  EXPECT_EQ(nlohmann::json::parse(json.out)["files"], 6);
  EXPECT_EQ(nlohmann::json::parse(json.out)["step"], 4);
  std::fstream file(absl::StrCat(run_, "/step-00000004/layer-00001.safetensors"),
                    std::ios::in | std::ios::out);
  file.seekp(-1, std::ios::end);
  file.put('\x7F');
  file.close();
  const Finished damaged = Run({"verify", run_});
  EXPECT_EQ(damaged.exit_status, kStatusBadData);
  ExpectOneLine(damaged.err, AllOf(HasSubstr("layer-00001.safetensors: tensor \"layer 1: "),
                                   HasSubstr("is not what was saved")));
  std::filesystem::remove(absl::StrCat(run_, "/step-00000004/manifest.json"));
  for (const std::string& path : {run_, absl::StrCat(run_, "/step-00000004")}) {
    const Finished missing = Run({"verify", path});
    EXPECT_EQ(missing.exit_status, kStatusBadData);
    ExpectOneLine(missing.err, HasSubstr("step-00000004/manifest.json: the file is missing"));
  }
}

TEST_F(CheckpointCommand, DiffShowsTheFirstDifference) {
  const std::string first = absl::StrCat(run_, "/step-00000002");
  const Finished same = Run({"diff", first, first});
  EXPECT_EQ(same.exit_status, 0);
  EXPECT_EQ(same.out, "24 tensors have the same bits\n");
  const Finished other = Run({"diff", first, run_});
  EXPECT_EQ(other.exit_status, 1);
  EXPECT_THAT(other.out, AllOf(HasSubstr("of 24 tensors differ; the first is \"layer 0: weight\" "
                                         "(layer-00000.safetensors):\n"),
                               ContainsRegex("elements differ, from \\[0, 0\\] on: ")));
  const Finished json = Run({"diff", "--json", first, run_});
  EXPECT_EQ(json.exit_status, 1);
  EXPECT_EQ(nlohmann::json::parse(json.out)["tensors"][0]["name"], "layer 0: weight");
}

TEST_F(CheckpointCommand, ExportWritesOneFile) {
  const std::string file = (folder_.path() / "all.safetensors").string();
  const Finished exported = Run({"export", run_, "--output", file});
  EXPECT_EQ(exported.exit_status, 0) << exported.err;
  EXPECT_GT(std::filesystem::file_size(file), 4 * (16 * 16 + 16));
  const Finished json = Run({"export", run_, "--output", file, "--json"});
  EXPECT_EQ(nlohmann::json::parse(json.out)["output"], file);
  EXPECT_EQ(nlohmann::json::parse(json.out)["format"], "safetensors");
  EXPECT_EQ(Run({"export", run_, "--output", run_}).exit_status, kStatusCannotWrite);
  EXPECT_EQ(Run({"export", run_, "--output", ""}).exit_status, kStatusUsage);
}

TEST_F(CheckpointCommand, OfOneIsNotTheFolderOfARun) {
  const std::string newest = absl::StrCat(run_, "/step-00000004");
  const Finished resumed = RunStagecoach({"train", "--checkpoint", newest, "--resume"});
  EXPECT_EQ(resumed.exit_status, kStatusUsage);
  ExpectOneLine(resumed.err, HasSubstr(absl::StrCat("--checkpoint: ", newest, " is one of the")));
}

TEST_F(CheckpointCommand, SaysWhatIsMissing) {
  const Finished none = Run({"verify", folder_.path().string()});
  EXPECT_EQ(none.exit_status, kStatusBadData);
  ExpectOneLine(none.err, HasSubstr("there is no checkpoint in"));
  EXPECT_EQ(Run({}).exit_status, kStatusUsage);
  EXPECT_EQ(Run({"inspect"}).exit_status, kStatusUsage);
  EXPECT_EQ(Run({"diff", run_}).exit_status, kStatusUsage);
  EXPECT_EQ(Run({"export", run_}).exit_status, kStatusUsage);
}

}  // namespace
}  // namespace stagecoach::tools
