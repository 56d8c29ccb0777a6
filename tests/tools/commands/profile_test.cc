#include "engine/runtime/stage/profile.h"

#include <string>
#include <vector>

#include "base/file.h"
#include "engine/models/model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "partition/io/profile_file.h"
#include "tests/engine/data/data_test_util.h"
#include "tests/testing/status_matchers.h"
#include "tests/tools/child.h"

namespace stagecoach::tools {
namespace {

using engine::TestDirectory;
using engine::WriteTestFile;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

Finished RunProfile(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"profile", "--data", "synthetic:100x16x4", "--layers", "4",
                                        "--width", "16"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return RunStagecoach(arguments);
}

TEST(Profile, PrintsATablePerSizeAndALinePerLayer) {
  const Finished run = RunProfile({"--rows", "16,2", "--repeats", "2"});
  EXPECT_EQ(run.exit_status, 0) << run.err;
  EXPECT_THAT(run.err, IsEmpty());
  const std::vector<std::string> lines = run.OutLines();
  ASSERT_THAT(lines, SizeIs(17));
  EXPECT_THAT(lines[0], StartsWith("micro-batches of 2 rows, medians of 2 steps"));
  EXPECT_THAT(lines[9], StartsWith("micro-batches of 16 rows, medians of 2 steps"));
  EXPECT_THAT(lines[2], AllOf(StartsWith("layer"), HasSubstr("F ms"), HasSubstr("spread")));
  EXPECT_THAT(lines[4], StartsWith("linear.0           272"));
  EXPECT_THAT(lines[7], AllOf(StartsWith("linear.3            68"), HasSubstr("%")));
}

TEST(Profile, WritesAFileWithTheSizesThatTheEngineHas) {
  const std::string path = TestDirectory() + "/p.json";
  const Finished run = RunProfile({"--rows", "2,16", "--repeats", "1", "--output", path});
  EXPECT_EQ(run.exit_status, 0) << run.err;
  ASSERT_OK_AND_ASSIGN(const partition::Profile written, partition::ReadProfileFile(path));
  ASSERT_OK_AND_ASSIGN(const engine::Model model, engine::DefaultNetwork(16, 4, 4, 16));
  ASSERT_OK_AND_ASSIGN(
      const partition::Profile expected,
      AnalyzeProfile(model, "", {2, 16}, {.optimizer = engine::Optimizer::AdamW()}));
  ASSERT_EQ(written.sizes.size(), 2U);
  for (size_t size = 0; size < 2; ++size) {
    EXPECT_EQ(written.sizes[size].micro_batch_rows, expected.sizes[size].micro_batch_rows);
    for (int m = 1; m < 10; ++m) {
      EXPECT_EQ(written.sizes[size].ends(m).loss_resident_bytes,
                expected.sizes[size].ends(m).loss_resident_bytes);
    }
    for (size_t i = 0; i < 4; ++i) {
      const partition::LayerCost& layer = written.sizes[size].layers[i];
      EXPECT_EQ(layer.name, expected.sizes[size].layers[i].name);
      EXPECT_EQ(layer.memory, expected.sizes[size].layers[i].memory);
      EXPECT_EQ(layer.flops, expected.sizes[size].layers[i].flops);
      EXPECT_GT(layer.forward_ns, 0.0);
    }
  }
}

// "-" is a file to write, too, and then the only thing on standard output.
TEST(Profile, PrintsAsJsonWhatItWrites) {
  const std::string path = TestDirectory() + "/p.json";
  const Finished run = RunProfile({"--analytic", "--rows", "2,16", "--output", path, "--json"});
  EXPECT_EQ(run.exit_status, 0) << run.err;
  const std::vector<nlohmann::json> events = run.Events();
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0]["layers"].size(), 4);
  ASSERT_OK_AND_ASSIGN(const std::string file, base::ReadFile(path, 1 << 20));
  EXPECT_EQ(events[0], nlohmann::json::parse(file));
  const Finished streamed = RunProfile({"--analytic", "--rows", "2,16", "--output", "-"});
  EXPECT_EQ(streamed.out, file);
  EXPECT_THAT(streamed.err, StartsWith("micro-batches of 2 rows"));
}

TEST(Profile, EstimatesOnRequestWhichGivesTheSameEveryTime) {
  const Finished run = RunProfile({"--analytic"});
  EXPECT_EQ(run.exit_status, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("micro-batches of 32 rows, times estimated"));
  EXPECT_EQ(RunProfile({"--analytic"}).out, run.out);
}

TEST(Profile, TakesAModelFile) {
  const std::string model = WriteTestFile(TestDirectory(), "m.toml",
                                          "[[layer]]\ntype = \"layer_norm\"\nrepeat = 2\n"
                                          "[[layer]]\ntype = \"linear\"\noutputs = \"classes\"\n");
  const Finished run =
      RunStagecoach({"profile", "--data", "synthetic:100x16x4", "--model", model, "--analytic"});
  EXPECT_EQ(run.exit_status, 0) << run.err;
  EXPECT_THAT(run.out, AllOf(HasSubstr("\nlayer_norm.1 "), HasSubstr("\nlinear.2 ")));
}

TEST(Profile, BadFlagsAreRefusedInALine) {
  const struct {
    std::vector<std::string> arguments;
    int exit_status;
    const char* part;
  } cases[] = {
      {{"--rows", "16,x"}, 2, "\"x\" is not a whole number from 1 to"},
      {{"--rows", ""}, 2, "--rows"},
      {{"--rows", "16,0"}, 2, "\"0\" is not a whole number"},
      {{"--rows", "4,8,4"}, 2, "4 appears twice"},
      {{"--repeats", "0"}, 2, "--repeats"},
      {{"--analytic", "--repeats", "3"}, 2, "--analytic"},
      {{"--stages", "3"}, 2, "unknown argument \"--stages\""},
      {{"--output", TestDirectory() + "/p.csv"}, 2, "a file that ends in .json"},
      {{"--output", "/no/such/place/p.json"}, kStatusCannotWrite, "/no/such/place"},
  };
  for (const auto& bad : cases) {
    const Finished run = RunProfile(bad.arguments);
    EXPECT_EQ(run.exit_status, bad.exit_status) << run.err;
    EXPECT_THAT(run.out, IsEmpty());
    EXPECT_THAT(run.err, AllOf(StartsWith("stagecoach profile: "), HasSubstr(bad.part)));
  }
}

}  // namespace
}  // namespace stagecoach::tools
