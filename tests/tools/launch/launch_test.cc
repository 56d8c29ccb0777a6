// `stagecoach launch`: processes that start together and end together, whatever they run.
#include <signal.h>
#include <sys/types.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/test_folder.h"
#include "tests/tools/child.h"
#include "tests/tools/cuda_machine.h"
#include "tests/tools/launch/launched_run.h"
#include "tests/tools/scoped_variable.h"

namespace stagecoach::tools {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

Arguments LaunchOf(int processes, const Arguments& more) {
  return Joined({"launch", "--processes", absl::StrCat(processes)}, more);
}
// Runs a script in each process.
Arguments Shell(const std::string& script) { return {"--", "sh", "-c", script}; }

std::string ReadText(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// Returns whether a process is gone; one that has been killed may exist for a moment longer.
bool IsGone(const std::string& pid) {
  for (int i = 0; i < 500; ++i) {
    std::string state = ReadText(absl::StrCat("/proc/", pid, "/stat"));
    state.erase(0, state.rfind(')') + 1);
    if (state.empty() || absl::StartsWith(state, " Z")) return true;
    absl::SleepFor(absl::Milliseconds(10));
  }
  return false;
}

TEST(Launch, TellsEachProcessItsRankAndPassesOnWhatItSays) {
  const Finished run = RunStagecoach(LaunchOf(
      3, Shell("echo $STAGECOACH_RANK of $STAGECOACH_RANKS, $RANK of $WORLD_SIZE; echo hm >&2")));
  EXPECT_EQ(run.exit_status, 0);
  EXPECT_THAT(run.OutLines(),
              UnorderedElementsAre("0 of 3, 0 of 3", "[1] 1 of 3, 1 of 3", "[2] 2 of 3, 2 of 3"));
  EXPECT_THAT(run.err, AllOf(HasSubstr("[0] hm\n"), HasSubstr("[1] hm\n"), HasSubstr("[2] hm\n")));
}

TEST(Launch, PassesOnALineThatDoesNotEnd) {
  const Finished run = RunStagecoach(LaunchOf(2, Shell("printf \"line\\nrest of $RANK\"")));
  EXPECT_THAT(run.OutLines(),
              UnorderedElementsAre("line", "rest of 0", "[1] line", "[1] rest of 1"));
}

TEST(Launch, WritesOutputToFiles) {
  const testing::TestFolder folder;
  const std::string logs = (folder.path() / "of" / "run").string();
  const Finished run = RunStagecoach(
      LaunchOf(2, Joined({"--log-dir", logs}, Shell("echo out $RANK; echo err $RANK >&2"))));
  EXPECT_EQ(run.exit_status, 0);
  EXPECT_THAT(run.out + run.err, IsEmpty());
  EXPECT_EQ(ReadText(logs + "/rank-1.out"), "out 1\n");
  EXPECT_EQ(ReadText(logs + "/rank-0.err"), "err 0\n");
}

TEST(Launch, EndsAllWhenOneFailsWithItsStatus) {
  const Finished run = RunStagecoach(LaunchOf(
      3, Joined({"--patience", "0.2"}, Shell("[ $RANK != 1 ] || exit 7; exec sleep 600"))));
  EXPECT_EQ(run.exit_status, 7);
  EXPECT_EQ(run.err, "stagecoach launch: rank 1 ended with status 7\n");
}

TEST(Launch, KillsWhatDoesNotEndWhenAsked) {
  const Finished run = RunStagecoach(LaunchOf(
      2, Joined({"--patience", "0.5"},
                Shell("trap '' TERM; [ $RANK != 1 ] || exit 7; while true; do sleep 0.1; done"))));
  EXPECT_EQ(run.exit_status, 7);
}

TEST(Launch, SaysWhichSignalKilledTheFirst) {
  const Finished run = RunStagecoach(LaunchOf(
      2, Joined({"--patience", "0"}, Shell("[ $RANK != 0 ] || kill -9 $$; exec sleep 600"))));
  EXPECT_EQ(run.exit_status, 128 + SIGKILL);
  EXPECT_EQ(run.err, "stagecoach launch: rank 0 was killed by signal 9 (Killed)\n");
}

// Ranks 0 and 1 end first, but only because of what happened to rank 2.
TEST(Launch, ReportsTheProcessThatTheOthersBlame) {
  const Finished run = RunStagecoach(
      LaunchOf(3, Shell("if [ $RANK = 2 ]; then sleep 0.5; echo no memory >&2; exit 65; fi; "
                        "echo \"rank $RANK: rank 2 has failed: no memory\" >&2; exit 70")));
  EXPECT_EQ(run.exit_status, 65);
  EXPECT_THAT(run.err, EndsWith("stagecoach launch: rank 2 ended with status 65\n"));
}

TEST(Launch, LeavesNothingBehindThatAProcessHasStarted) {
  const testing::TestFolder folder;
  const std::string file = (folder.path() / "pid").string();
  const Finished run =
      RunStagecoach(LaunchOf(1, Shell("sleep 600 >/dev/null 2>&1 & echo $! > " + file)));
  EXPECT_EQ(run.exit_status, 0);
  const std::string text = ReadText(file);
  ASSERT_THAT(text, EndsWith("\n"));
  EXPECT_TRUE(IsGone(text.substr(0, text.size() - 1)));
}

TEST(Launch, LeavesNoProcessBehindWhereItIsKilledItself) {
  const testing::TestFolder folder;
  const std::string place = folder.path().string();
  const ScopedVariable temporary("TMPDIR", place);  // its folder for flight-recorder files stays
  Child launch(LaunchOf(
      2, Shell("echo $$ > " + place + "/$RANK; [ $RANK != 0 ] || while [ ! -s " + place +
               "/1 ]; do sleep 0.05; done; [ $RANK != 0 ] || echo ready; exec sleep 600")));
  ASSERT_TRUE(launch.WaitForOutput("ready"));
  launch.Signal(SIGKILL);
  EXPECT_EQ(launch.Wait().signal, SIGKILL);
  for (const char* rank : {"/0", "/1"}) {
    const std::string text = ReadText(place + rank);
    ASSERT_THAT(text, EndsWith("\n"));
    EXPECT_TRUE(IsGone(text.substr(0, text.size() - 1)));
  }
  // Files do not pile up either: the next launch removes what this one has left, but nothing that
  // is in use.
  const auto folders = [&] {
    std::set<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(place)) {
      if (entry.is_directory()) found.insert(entry.path().string());
    }
    return found;
  };
  const std::set<std::string> left = folders();
  EXPECT_EQ(left.size(), 1U);
  Child running(LaunchOf(1, Shell("echo ready; exec sleep 600")));
  ASSERT_TRUE(running.WaitForOutput("ready"));
  const std::set<std::string> used = folders();
  EXPECT_EQ(used.size(), 1U);
  EXPECT_NE(used, left);
  EXPECT_EQ(RunStagecoach(LaunchOf(1, Shell("exit 70"))).exit_status, 70);
  EXPECT_THAT(folders(), ::testing::IsSupersetOf(used));
  running.Signal(SIGTERM);
  running.Wait();
  RunStagecoach(LaunchOf(1, Shell("exit 0")));
  EXPECT_THAT(folders(), IsEmpty());
}

class LaunchSignal : public ::testing::TestWithParam<int> {};

TEST_P(LaunchSignal, IsPassedOnOnce) {
  Child launch(LaunchOf(1, Shell("n=0; trap 'n=$((n + 1))' INT TERM HUP; echo ready; "
                                 "while [ $n = 0 ]; do sleep 0.05; done; sleep 0.2; exit 9$n")));
  ASSERT_TRUE(launch.WaitForOutput("ready"));
  launch.Signal(GetParam());
  const Finished run = launch.Wait();
  EXPECT_EQ(run.exit_status, 91);
  EXPECT_THAT(run.err, Not(HasSubstr("stagecoach"))) << "nothing has failed";
}

INSTANTIATE_TEST_SUITE_P(Number, LaunchSignal, ::testing::Values(SIGINT, SIGTERM, SIGHUP),
                         ::testing::PrintToStringParamName());

TEST(Launch, SaysThatThereIsNoSuchProgram) {
  const Finished run = RunStagecoach(LaunchOf(1, {"--", "./no-such-program"}));
  EXPECT_EQ(run.exit_status, 127);
  EXPECT_THAT(run.err, HasSubstr("[0] cannot run ./no-such-program: No such file"));
}

TEST(Launch, TrainsAsOneProcessDoes) {
  const CudaMachine machine("gpus=2");
  const Arguments train = RankArguments(Joined(Deadline(), {"--json", "--stages", "2"}));
  const Finished alone = RunStagecoach(train);
  const Finished launched = RunStagecoach(LaunchOf(2, Joined({"--"}, train)));
  ASSERT_EQ(launched.exit_status, 0) << launched.err;
  EXPECT_THAT(WithoutWaits(launched.err), IsEmpty());
  EXPECT_EQ(launched.Events().back()["parameters_hash"], alone.Events().back()["parameters_hash"]);
}

// A mistake in everyone's flags is reported once.
TEST(Launch, SaysAnErrorOfAllOnce) {
  const testing::TestFolder folder;
  const std::string plan = (folder.path() / "plan.json").string();
  const Arguments data = {"--data", "synthetic:256x4x2", "--layers", "4", "--width", "4"};
  ASSERT_EQ(RunStagecoach(Joined({"plan", "--stages", "2", "--save", plan}, data)).exit_status, 0);
  const std::pair<Arguments, std::string> refused[] = {
      {{"--stages", "2"}, "2 devices (--stages 2); start one for each: --processes 2"},
      {{"--plan", plan},
       absl::StrCat("2 devices (--plan ", plan,
                    "); start one for each: "
                    "--processes 2")}};
  for (const auto& [flags, message] : refused) {
    const Finished run =
        RunStagecoach(LaunchOf(3, Joined(Joined({"--", "train", "--epochs", "1"}, data), flags)));
    EXPECT_EQ(run.exit_status, kStatusBadConfiguration);
    EXPECT_THAT(run.out, IsEmpty());
    const std::vector<std::string> lines = absl::StrSplit(run.err, '\n', absl::SkipEmpty());
    EXPECT_THAT(lines,
                ElementsAre(HasSubstr(absl::StrCat("stagecoach launch --processes 3 has "
                                                   "started 3 processes for ",
                                                   message)),
                            ContainsRegex("^stagecoach launch: rank . ended with status 78")))
        << run.err;
  }
}

TEST(Launch, PassesOnTheErrorsThatDiffer) {
  const Finished run = RunStagecoach(LaunchOf(
      3, Shell("for i in 1 2; do echo \"stagecoach x: rank $RANK: $((RANK > 1))\" >&2; done")));
  const std::vector<std::string> lines = absl::StrSplit(run.err, '\n', absl::SkipEmpty());
  EXPECT_EQ(std::count(lines.begin(), lines.end(), "[2] stagecoach x: rank 2: 1"), 2);
  EXPECT_THAT(run.err, HasSubstr(": 0"));
}

TEST(Launch, ReportsTheRankThatFailedToTrain) {
  const CudaMachine machine("gpus=2,fail_operation=1500");
  const ScopedVariable temporary("TMPDIR", machine.home());  // for the recorders' files
  const Finished run =
      RunStagecoach(LaunchOf(2, Joined({"--"}, RankArguments(Joined(Forever(), Deadline())))));
  EXPECT_EQ(run.exit_status, kStatusInternal) << run.err;
  EXPECT_THAT(run.err, HasSubstr("stagecoach launch: rank "));
}

// ---- With restarts ----

Arguments Restarting(int processes, int most, const std::string& script,
                     const Arguments& more = {}) {
  return LaunchOf(processes,
                  Joined(Joined({"--max-restarts", absl::StrCat(most)}, more), Shell(script)));
}

TEST(Restarts, StartAllAgainUntilTheyEndWell) {
  const Finished run = RunStagecoach(Restarting(
      2, 5,
      "echo start $STAGECOACH_RESTARTS of $RANK, $STAGECOACH_LAUNCH; [ $RANK = 0 ] || sleep 600 & "
      "[ $STAGECOACH_RESTARTS != 1 ] || kill -9 $$; [ $STAGECOACH_RESTARTS = 2 ] || exit 70; "
      "echo $STAGECOACH_STARTED"));
  EXPECT_EQ(run.exit_status, 0);
  EXPECT_THAT(run.err,
              AllOf(HasSubstr(" ended with status 70; starts all again (1 of 5)\n"),
                    HasSubstr(" was killed by signal 9 (Killed); starts all again (2 of 5)\n")));
  std::set<std::string> launches;
  int starts = 0;
  for (const std::string& line : run.OutLines()) {
    if (absl::StrContains(line, ", ")) launches.insert(line.substr(line.find(", ")));
    starts += absl::StrContains(line, "start ") ? 1 : 0;
  }
  EXPECT_EQ(starts, 6);
  EXPECT_EQ(launches.size(), 3U);  // each start has a name that all processes know
}

TEST(Restarts, EndAfterSoMany) {
  const Finished run = RunStagecoach(Restarting(2, 2, "echo start; exit 70"));
  EXPECT_EQ(run.exit_status, 70);
  EXPECT_EQ(run.OutLines().size(), 6U);
  EXPECT_THAT(run.err, EndsWith(" ended with status 70\n"));
}

TEST(Restarts, AreNotTriedWhereTheyCannotHelp) {
  for (const int status : {2, 65, 74, 78, 130, 143}) {
    const Finished run = RunStagecoach(Restarting(2, 5, absl::StrCat("exit ", status)));
    EXPECT_EQ(run.exit_status, status);
    EXPECT_THAT(run.err, Not(HasSubstr("again")));
  }
}

TEST(Restarts, AreNotTriedForOneWhomTheUserStops) {
  Child child(Restarting(2, 5, "echo here; exec sleep 600"));
  ASSERT_TRUE(child.WaitForOutput("here\n"));
  child.Signal(SIGTERM);
  const Finished run = child.Wait();
  EXPECT_EQ(run.exit_status, 128 + SIGTERM);
  EXPECT_THAT(run.err, Not(HasSubstr("again")));
}

TEST(Restarts, GoOnWithoutTheDevicesThatAreGone) {
  const Finished run =
      RunStagecoach(Restarting(4, 5,
                               "if [ $STAGECOACH_RESTARTS = 0 -a $RANK -ge 2 ]; then exit 69; fi; "
                               "if [ $STAGECOACH_RESTARTS = 0 ]; then sleep 0.3; "
                               "echo rank $RANK: rank 3 has failed: gone >&2; exit 69; fi; "
                               "echo $RANK of $WORLD_SIZE"));
  EXPECT_EQ(run.exit_status, 0);
  EXPECT_THAT(run.OutLines(), UnorderedElementsAre("0 of 2", "[1] 1 of 2"));
  EXPECT_THAT(run.err, HasSubstr(" ended with status 69; starts 2 of them again (1 of 5)\n"));
  // There is no device left.
  EXPECT_EQ(RunStagecoach(Restarting(2, 5, "exit 69")).exit_status, 69);
}

TEST(Restarts, FollowAProcessThatIsStoppedForTooLong) {
  const Finished run = RunStagecoach(
      Restarting(2, 5, "[ $RANK$STAGECOACH_RESTARTS != 10 ] || kill -STOP $$; echo $RANK",
                 {"--silence", "0.3"}));
  EXPECT_EQ(run.exit_status, 0);
  EXPECT_THAT(run.err, HasSubstr("rank 1 was stopped for too long and was killed; starts all"));
}

TEST(Restarts, DoNotFollowOneThatGoesOnInTime) {
  const Finished run = RunStagecoach(Restarting(
      2, 5, "(sleep 0.3; kill -CONT $$) & kill -STOP $$; echo $RANK", {"--silence", "20"}));
  EXPECT_EQ(run.exit_status, 0);
  EXPECT_EQ(run.err, "");
}

// ---- Replacement of a process.

// `script` has "say", which says that the process can continue, and "hear", which prints what it is
// told.
Arguments Replacing(const std::string& script) {
  const std::string functions =
      "say() { printf 'can continue' >&$STAGECOACH_SUPERVISOR; }; "
      "hear() { dd bs=1000 count=1 2>/dev/null <&$STAGECOACH_SUPERVISOR; echo; }; ";
  return LaunchOf(3, {"--max-restarts", "5", "--", "bash", "-c", functions + script});
}

TEST(Replacement, IsStartedAloneIfTheOthersCanGoOn) {
  const Finished run = RunStagecoach(
      Replacing("case $STAGECOACH_RESTARTS.$RANK in 0.1) say; sleep 0.2; kill -9 $$ ;; "
                "0.*) echo first; say; hear; sleep 0.5 ;; *) echo new $RANK "
                "$STAGECOACH_REPLACEMENT $STAGECOACH_LAUNCH "
                "$STAGECOACH_RENDEZVOUS $STAGECOACH_RESTARTS; say ;; esac"));
  EXPECT_EQ(run.exit_status, 0) << run.err;
  EXPECT_EQ(
      run.err,
      "stagecoach launch: rank 1 was killed by signal 9 (Killed); starts it again (1 of 5)\n");
  const std::vector<std::string> lines = run.OutLines();
  // The others are told the same launch, place and number of restarts.
  const std::string start = "[1] new 1 1 ";
  const auto started = std::find_if(lines.begin(), lines.end(), [&](const std::string& line) {
    return absl::StartsWith(line, start);
  });
  ASSERT_NE(started, lines.end()) << run.out;
  const std::string told = started->substr(start.size());
  EXPECT_THAT(lines, UnorderedElementsAre(start + told, "first", "[2] first", told, "[2] " + told));
  EXPECT_THAT(told, ContainsRegex("^[0-9.]+\\.1 tcp://127.0.0.1:[0-9]+ 1$"));
}

TEST(Replacement, IsStartedWithAllThatCannotGoOnYet) {
  const Finished run = RunStagecoach(Replacing(
      "case $STAGECOACH_RESTARTS.$RANK in 0.1) sleep 0.2; kill -9 $$ ;; 0.2) sleep 600 ;; "
      "0.0) say; hear; sleep 0.5 ;; *) echo new $RANK; say; sleep 0.3 ;; esac"));
  EXPECT_EQ(run.exit_status, 0) << run.err;
  EXPECT_THAT(run.OutLines(), UnorderedElementsAre(HasSubstr("tcp://"), "[1] new 1", "[2] new 2"));
}

// A replacement that is lost before it can continue is replaced by another, at a later place.
TEST(Replacement, IsReplacedItself) {
  const Finished run = RunStagecoach(Replacing(
      "case $STAGECOACH_RESTARTS.$RANK in 0.1) say; sleep 0.2; kill -9 $$ ;; 1.1) exit 70 ;; "
      "0.*) say; hear >/dev/null; hear; sleep 0.5 ;; *) echo new $RANK; say; sleep 0.3 ;; esac"));
  EXPECT_EQ(run.exit_status, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr("rank 1 ended with status 70; starts it again (2 of 5)"));
  EXPECT_THAT(run.OutLines(),
              UnorderedElementsAre("[1] new 1", ContainsRegex("^[0-9.]+\\.2 tcp.* 2$"),
                                   ContainsRegex("^\\[2\\] [0-9.]+\\.2 tcp.* 2$")));
}

struct NoReplacement {
  std::string name;
  std::string first;  // what the ranks do first
  std::string err;
};
class NoReplacementFor : public ::testing::TestWithParam<NoReplacement> {};

TEST_P(NoReplacementFor, StartsAllAgain) {
  const Finished run = RunStagecoach(
      Replacing(absl::StrCat("case $STAGECOACH_RESTARTS.$RANK in ", GetParam().first,
                             " 0.*) say; sleep 0.1; hear ;; *) echo new $RANK of $WORLD_SIZE "
                             "${STAGECOACH_REPLACEMENT-} ;; esac")));
  EXPECT_EQ(run.exit_status, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr(GetParam().err));
  EXPECT_THAT(run.out, HasSubstr("new 0 of"));
  EXPECT_THAT(run.out, Not(HasSubstr("tcp://")));
}

INSTANTIATE_TEST_SUITE_P(
    All, NoReplacementFor,
    ::testing::Values(NoReplacement{"OneThatHasEndedWell",
                                    "0.0) exit 0 ;; 0.1) say; sleep 0.3; exit 70 ;;",
                                    "rank 1 ended with status 70; starts all again (1 of 5)"},
                      NoReplacement{"OneThatEndsForAnother", "0.1) say; sleep 0.3; exit 75 ;;",
                                    "rank 1 ended with status 75; starts all again (1 of 5)"},
                      NoReplacement{"OneWithoutADevice", "0.1) say; sleep 0.3; exit 69 ;;",
                                    "rank 1 ended with status 69; starts 2 of them again (1 of 5)"},
                      NoReplacement{"AnyIfNoneCanGoOn",
                                    "0.1) sleep 0.3; exit 70 ;; 0.*) sleep 600 ;;",
                                    "rank 1 ended with status 70; starts all again (1 of 5)"}),
    [](const ::testing::TestParamInfo<NoReplacement>& tested) { return tested.param.name; });

// Ranks that have done all their work do not meet a new one.
TEST(Replacement, DoesNotWaitForOthersThatHaveEnded) {
  const Finished run = RunStagecoach(
      Replacing("case $STAGECOACH_RESTARTS.$RANK in 0.1) say; sleep 0.2; kill -9 $$ ;; "
                "0.*) say; sleep 0.5; exit 0 ;; 1.1) sleep 600 ;; *) echo new $RANK ;; esac"));
  EXPECT_EQ(run.exit_status, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr("was killed by signal 9 (Killed); starts all again (2 of 5)"));
  EXPECT_THAT(run.OutLines(), UnorderedElementsAre("new 0", "[1] new 1", "[2] new 2"));
}

TEST(Restarts, KeepTheLogsOfEarlierStarts) {
  const testing::TestFolder folder;
  const std::string logs = (folder.path() / "logs").string();
  RunStagecoach(Restarting(1, 1, "echo start $STAGECOACH_RESTARTS; exit 70", {"--log-dir", logs}));
  EXPECT_EQ(ReadText(logs + "/rank-0.out"), "start 0\nstart 1\n");
}

}  // namespace
}  // namespace stagecoach::tools
