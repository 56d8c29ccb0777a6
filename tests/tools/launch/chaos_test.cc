#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/test_folder.h"
#include "tests/tools/child.h"
#include "tests/tools/scoped_variable.h"

namespace stagecoach::tools {
namespace {

using ::testing::AnyOf;
using ::testing::Each;
using ::testing::IsEmpty;

// There is one line for each event, and in the end the same bits as in an undisturbed run.
TEST(Chaos, SaysInJsonWhatHappensAndThatTheBitsAreTheSame) {
  const testing::TestFolder folder;
  const ScopedVariable temporary("TMPDIR", folder.path().string());
  const Finished chaos =
      RunStagecoach({"chaos", "--processes", "2", "--faults", "5", "--seed", "3", "--json"});
  ASSERT_EQ(chaos.exit_status, 0) << chaos.err;
  const std::vector<nlohmann::json> events = chaos.Events();
  std::vector<std::string> names;
  int faults = 0, restarts = 0;
  for (const nlohmann::json& event : events) {
    names.push_back(event["event"]);
    faults += names.back() == "kills" || names.back() == "stops" ? 1 : 0;
    restarts += names.back() == "restart" ? 1 : 0;
    EXPECT_GE(event["seconds"], 0.0);
  }
  EXPECT_EQ(names.front(), "alone");
  EXPECT_EQ(names.back(), "end");
  EXPECT_THAT(names, Each(AnyOf("alone", "kills", "stops", "restart", "end")));
  // Faults come at random times; the first one comes before the run can be over.
  EXPECT_GE(faults, 1);
  const nlohmann::json& alone = events.front();
  const nlohmann::json& end = events.back();
  EXPECT_EQ(end["faults"], faults);
  EXPECT_EQ(end["restarts"], restarts);
  EXPECT_EQ(alone["steps"], 1240);
  for (const char* same : {"steps", "step_losses_hash", "parameters_hash"}) {
    EXPECT_EQ(end[same], alone[same]) << same;
  }
  EXPECT_EQ(end["same"], true);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  EXPECT_THAT(chaos.err, IsEmpty());
}

}  // namespace
}  // namespace stagecoach::tools
