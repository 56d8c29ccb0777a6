#include "engine/runtime/stage/profile.h"

#include <string>
#include <vector>

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
using ::testing::AllOf;
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

}  // namespace
}  // namespace stagecoach::tools
