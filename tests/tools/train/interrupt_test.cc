#include <signal.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/system/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"
#include "tests/tools/child.h"
#include "tests/tools/scoped_variable.h"

namespace stagecoach::tools {
namespace {

using ::stagecoach::testing::TestFolder;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Returns the arguments of a run that would take hours.
std::vector<std::string> LongRun(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"train",
                                        "--data",
                                        "synthetic:512x16x4",
                                        "--layers",
                                        "4",
                                        "--width",
                                        "16",
                                        "--global-batch-size",
                                        "64",
                                        "--micro-batches",
                                        "4",
                                        "--epochs",
                                        "1000000"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

void ExpectSummaryAfter(int signal, int exit_status) {
  Child child(LongRun({"--json"}));
  ASSERT_TRUE(child.WaitForOutput("\"event\":\"epoch\""));
  child.Signal(signal);
  const Finished run = child.Wait();
  EXPECT_EQ(run.exit_status, exit_status);
  EXPECT_THAT(run.err, IsEmpty());
  const nlohmann::json end = run.Events().back();
  EXPECT_EQ(end["event"], "end");
  EXPECT_EQ(end["stopped"], true);
  EXPECT_GE(end["steps"], 8);
}

TEST(Interrupt, StopsWithASummary) { ExpectSummaryAfter(SIGINT, kStopped); }

TEST(Interrupt, BeforeTheFirstStepGivesASummary) {
  Child child(LongRun({"--json"}));
  ASSERT_TRUE(child.WaitForOutput("\"event\":\"plan\""));
  child.Signal(SIGINT);
  const Finished run = child.Wait();
  EXPECT_EQ(run.exit_status, 130);
  EXPECT_EQ(run.Events().back()["event"], "end");
}

TEST(Terminate, StopsWithASummary) { ExpectSummaryAfter(SIGTERM, kTerminated); }
TEST(HangUp, StopsWithASummary) { ExpectSummaryAfter(SIGHUP, kHungUp); }

TEST(InterruptedTerminal, GetsWhatTheRunDid) {
  Child child(LongRun({}), Child::Output::kTerminal);
  ASSERT_TRUE(child.WaitForOutput("samples/s  "));
  child.Signal(SIGINT);
  const Finished run = child.Wait();
  EXPECT_EQ(run.exit_status, 130);
  EXPECT_THAT(run.out, HasSubstr("memory as predicted: at most"));
  EXPECT_THAT(run.out, HasSubstr("stopped by a signal after"));
}

TEST(InterruptedChaos, LeavesNothing) {
  const TestFolder folder;
  const ScopedVariable variable("TMPDIR", folder.path().string());
  const auto trains = [&] {
    const std::filesystem::recursive_directory_iterator files(folder.path());
    return std::any_of(begin(files), end(files),
                       [](const auto& file) { return file.path().filename() == "rank-0.out"; });
  };
  Child child({"chaos"});
  const absl::Time deadline = absl::Now() + absl::Minutes(1);
  while (!trains() && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(5));
  child.Signal(SIGINT);
  const Finished chaos = child.Wait();
  EXPECT_EQ(chaos.exit_status, kStopped);
  ExpectOneLine(chaos.err, HasSubstr("stopped by a signal: nothing was compared"));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

// Writes a chain that takes minutes to plan.
std::string LongChain() {
  std::string table = "layer,forward_ms,backward_ms,parameter_bytes,output_bytes\n";
  uint32_t random = 1;
  for (int i = 0; i < 3000; ++i) {
    random = random * 1664525 + 1013904223;
    const uint32_t top = random >> 8;
    absl::StrAppend(&table, "layer", i, ",", 1 + top % 7, ",", 2 + top % 11, ",",
                    1000 + top % 100000, ",", 100000 + top % 1000000, "\n");
  }
  return table;
}

TEST(InterruptedPlan, IsTheBestSoFar) {
  const TestFolder folder;
  const std::string profile = (folder.path() / "long.csv").string();
  ASSERT_OK(base::WriteFileAtomically(profile, LongChain()));
  const Arguments plan = {
      "plan",   "--profile",       profile, "--devices",       "16",     "--global-batch-size",
      "256",    "--micro-batches", "256",   "--device-memory", "1500MB", "--time-limit",
      "100000", "--json"};
  // The wait is doubled until it is long enough for a first plan, however slow the machine.
  for (absl::Duration wait = absl::Seconds(1);; wait *= 2) {
    Child child(plan);
    absl::SleepFor(wait);
    child.Signal(SIGINT);
    const Finished run = child.Wait();
    const bool is_too_early = run.signal == SIGINT || run.exit_status == kStopped;
    if (is_too_early && wait < absl::Minutes(4)) continue;
    ASSERT_EQ(run.exit_status, 0) << run.err;
    EXPECT_THAT(run.err, HasSubstr("cut short by a signal: this is the best plan so far"));
    EXPECT_EQ(run.Events().at(0)["cut_short"], true);
    return;
  }
}

TEST(ClosedPipe, EndsTheRunSilently) {
  Child child(LongRun({"--json"}));
  ASSERT_TRUE(child.WaitForOutput("\n"));
  child.CloseOutput();
  const Finished run = child.Wait();
  EXPECT_EQ(run.exit_status, kBrokenPipe);
  EXPECT_THAT(run.err, IsEmpty());
}

}  // namespace
}  // namespace stagecoach::tools
