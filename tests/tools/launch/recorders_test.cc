// The diagnosis that the flight recorders of processes tell once one of them has failed.
#include <signal.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/system/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/test_folder.h"
#include "tests/tools/child.h"
#include "tests/tools/launch/launched_run.h"
#include "tests/tools/scoped_variable.h"

namespace stagecoach::tools {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class RingsOfProcesses : public ::testing::Test {
 protected:
  RingsOfProcesses() : temporary_("TMPDIR", folder_.path().string()) {}

  std::string PathOf(const std::string& name) const { return (folder_.path() / name).string(); }
  // Each process has a stage.
  static Arguments Forever(const Arguments& more) {
    return Joined({"train", "--data", "synthetic:256x16x4", "--layers", "4", "--width", "16",
                   "--global-batch-size", "64", "--micro-batches", "8", "--epochs", "1000000",
                   "--stages", "4", "--json", "--timeout", "300"},
                  more);
  }
  static VariablesOf With(const VariablesOf& variables, const std::string& recorders) {
    return [=](int rank) {
      Variables all = variables(rank);
      all.emplace_back("STAGECOACH_RINGS", recorders);
      return all;
    };
  }
  // Expects a trace of all ranks.
  static void ExpectMergedTrace(const std::string& path) {
    const absl::StatusOr<std::string> text = base::ReadFile(path, 64 << 20);
    ASSERT_TRUE(text.ok()) << text.status();
    const nlohmann::json trace = nlohmann::json::parse(*text);
    std::set<int> ranks;
    for (const nlohmann::json& event : trace.at("traceEvents")) {
      ranks.insert(event.at("pid").get<int>());
    }
    EXPECT_EQ(ranks, (std::set<int>{0, 1, 2, 3}));
  }

  // Runs a launch whose rank 2 is killed as soon as all train. A script records who is started as
  // rank 2 and becomes the program, except at the second start.
  Finished RunOfWhichOneIsKilled(const Arguments& launch, const Arguments& train) const {
    std::string script =
        absl::StrCat("[ $STAGECOACH_RESTARTS = 0 ] || exit 0; [ $RANK != 2 ] || echo $$ > ",
                     PathOf("pid"), "; exec");
    for (const std::string& word : Joined({ProgramPath()}, train)) {
      absl::StrAppend(&script, " ", word);
    }
    const bool has_logs = !launch.empty() && launch.front() == "--log-dir";
    Child child(Joined(Joined({"launch", "--processes", "4"}, launch), {"--", "sh", "-c", script}));
    if (has_logs) {
      while (!absl::StrContains(base::ReadFile(launch[1] + "/rank-0.out", 1 << 20).value_or(""),
                                kTrains)) {
        absl::SleepFor(absl::Milliseconds(20));
      }
    } else {
      EXPECT_TRUE(child.WaitForOutput(kTrains));
    }
    int pid = 0;
    EXPECT_TRUE(absl::SimpleAtoi(base::ReadFile(PathOf("pid"), 100).value_or(""), &pid));
    kill(pid, SIGKILL);
    return child.Wait();
  }

  static constexpr char kTrains[] = "\"event\":\"epoch\"";
  const stagecoach::testing::TestFolder folder_;
  const ScopedVariable temporary_;
};

// The processes have been started by another launcher.
TEST_F(RingsOfProcesses, NameTheOneThatWasKilled) {
  const std::string recorders = PathOf("of/run");
  const auto children = Start(4, With(At(4, TcpPlace()), recorders), Same(Forever({})));
  ASSERT_TRUE(children[0]->WaitForOutput(kTrains));
  children[2]->Signal(SIGKILL);
  for (const std::unique_ptr<Child>& child : children) child->Wait();
  const Finished merged =
      RunStagecoach({"trace", "merge", recorders, "--output", PathOf("trace.json")});
  EXPECT_EQ(merged.exit_status, 0) << merged.err;
  EXPECT_THAT(merged.out, AllOf(StartsWith("rank 2 (stage 2, replica 0) stopped first: "),
                                ContainsRegex("in step [0-9]+|after step|in an evaluation")));
  ExpectMergedTrace(PathOf("trace.json"));
  const nlohmann::json json = RunStagecoach({"trace", "merge", recorders, "--json"}).Events().at(0);
  EXPECT_EQ(json["devices"], nlohmann::json{2});
  EXPECT_EQ(absl::StrCat(json["sentence"].get<std::string>(), "\n"), merged.out);
}

TEST_F(RingsOfProcesses, AreKeptWithTheirTraceWhereTheRunFails) {
  const Finished run = RunOfWhichOneIsKilled({}, Forever({}));
  EXPECT_EQ(run.exit_status, 128 + SIGKILL);
  EXPECT_THAT(run.err, ContainsRegex("stagecoach launch: rank 2 \\(stage 2, replica 0\\) stopped "
                                     "first: .*; see .*/trace.json\n"
                                     "stagecoach launch: rank 2 was killed by signal 9"));
  const size_t end = run.err.rfind("/trace.json");
  ASSERT_NE(end, std::string::npos);
  const size_t begin = run.err.rfind("see ", end) + 4;
  ExpectMergedTrace(run.err.substr(begin, end - begin) + "/trace.json");
}

// The second start succeeds at once.
TEST_F(RingsOfProcesses, LeaveNothingButTheSentenceWhereTheRunGoesOn) {
  const Finished run = RunOfWhichOneIsKilled({"--max-restarts", "1"}, Forever({}));
  EXPECT_EQ(run.exit_status, 0) << run.err;
  EXPECT_THAT(run.err, AllOf(HasSubstr("rank 2 (stage 2, replica 0) stopped first: "),
                             HasSubstr("(Killed); starts all again (1 of 1)"),
                             Not(HasSubstr("trace.json"))));
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
    EXPECT_EQ(entry.path().filename(), "pid");
  }
}

TEST_F(RingsOfProcesses, AreAmongTheLogs) {
  const Finished run = RunOfWhichOneIsKilled({"--log-dir", PathOf("logs")}, Forever({}));
  EXPECT_THAT(run.err, HasSubstr(absl::StrCat("; see ", PathOf("logs"), "/rings/trace.json\n")));
  ExpectMergedTrace(PathOf("logs/rings/trace.json"));
}

TEST_F(RingsOfProcesses, ThatAreMissingAreAnError) {
  ExpectError(RunStagecoach({"trace", "merge", PathOf("none")}), kStatusBadData,
              HasSubstr("has no rings of actions"), "trace");
}

}  // namespace
}  // namespace stagecoach::tools
