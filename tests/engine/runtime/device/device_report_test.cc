#include "engine/runtime/device/device_report.h"

#include <cstdint>
#include <limits>
#include <string>

#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::StatusIs;

TEST(DeviceReport, TellsItsMeasurementsExactly) {
  const DeviceReport told = {.device = "cuda:\"1\"\n",
                             .measured_peak_bytes = std::numeric_limits<int64_t>::max(),
                             .accelerator = {2, 10, 11},
                             .peak_stashed = 3,
                             .measured_stash_bytes = 4,
                             .measured_host_bytes = 12,
                             .measured_sent = {8, 9},
                             .busy = 1.0 / 3.0,
                             .graphs = 5,
                             .graph_issues = 6,
                             .plain_issues = 7,
                             .why_plain = "cudaGraphLaunch: \"none\""};
  DeviceReport heard;
  ASSERT_OK(ReadMeasurements(MeasurementsToText(told), heard));
  EXPECT_EQ(heard.device, told.device);
  EXPECT_EQ(heard.measured_peak_bytes, told.measured_peak_bytes);
  EXPECT_EQ(heard.accelerator, told.accelerator);
  EXPECT_EQ(heard.peak_stashed, told.peak_stashed);
  EXPECT_EQ(heard.measured_stash_bytes, told.measured_stash_bytes);
  EXPECT_EQ(heard.measured_host_bytes, told.measured_host_bytes);
  EXPECT_EQ(heard.busy, told.busy);
  EXPECT_EQ(heard.graphs, told.graphs);
  EXPECT_EQ(heard.graph_issues, told.graph_issues);
  EXPECT_EQ(heard.plain_issues, told.plain_issues);
  EXPECT_EQ(heard.why_plain, told.why_plain);
  EXPECT_EQ(heard.measured_sent, told.measured_sent);
}

TEST(DeviceReport, KeepsWhatIsNotMeasured) {
  DeviceReport heard = {.predicted_peak_bytes = 7};
  ASSERT_OK(ReadMeasurements(MeasurementsToText({}), heard));
  EXPECT_EQ(heard.predicted_peak_bytes, 7);
}

TEST(DeviceReport, RefusesOtherTexts) {
  DeviceReport heard;
  for (const char* text : {"", "0 1", "{}", "[]", R"(["cuda:0", 1, 2, 3, 0.5])",
                           R"(["cuda:0", 1, 2, 2, 2, -1, 0.5, 4, 0, 0, 0, "", 0, 0])",
                           R"([0, 1, 2, 2, 2, 3, 0.5, 4, 0, 0, 0, "", 0, 0])",
                           R"(["cuda:0", 1, 2, 2, 2, 3, 0.5, 4, 0, 0, 0, 0, 0, 0])"}) {
    EXPECT_THAT(ReadMeasurements(text, heard), StatusIs(absl::StatusCode::kInvalidArgument))
        << text;
  }
}

}  // namespace
}  // namespace stagecoach::engine
