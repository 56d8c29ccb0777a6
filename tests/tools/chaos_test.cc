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
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// One line for each thing that happens, and the bits of the run that was left alone in the end.
TEST(Chaos, SaysInJsonWhatHappensAndThatTheBitsAreTheSame) {
  const testing::TestFolder folder;
  const ScopedVariable temporary("TMPDIR", folder.path().string());
  const Finished chaos =
      RunStagecoach({"chaos", "--processes", "2", "--faults", "1", "--seed", "3", "--json"});
  ASSERT_EQ(chaos.exit_status, 0) << chaos.err;
  std::vector<nlohmann::json> events;
  std::vector<std::string> names;
  for (const std::string& line : chaos.OutLines()) {
    events.push_back(nlohmann::json::parse(line));
    names.push_back(events.back()["event"]);
  }
  ASSERT_THAT(names, ElementsAre("alone", AnyOf("kills", "stops"), "restart", "end"));
  const nlohmann::json& alone = events[0];
  const nlohmann::json& end = events[3];
  EXPECT_EQ(alone["steps"], 1240);
  for (const char* same : {"steps", "step_losses_hash", "parameters_hash"}) {
    EXPECT_EQ(end[same], alone[same]) << same;
  }
  EXPECT_EQ(end["same"], true);
  EXPECT_EQ(end["faults"], 1);
  EXPECT_EQ(end["restarts"], 1);
  EXPECT_LE(events[1]["seconds"], events[2]["seconds"]);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  EXPECT_THAT(chaos.err, IsEmpty());
}

}  // namespace
}  // namespace stagecoach::tools
