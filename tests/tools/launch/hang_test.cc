// A process that lives, and that a shell does not see as stopped, but that makes no progress.
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/system/file.h"
#include "engine/diagnosis/flight_recorder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"
#include "tests/tools/child.h"
#include "tests/tools/launch/launched_run.h"

namespace stagecoach::tools {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

std::vector<pid_t> ThreadsOf(pid_t process) {
  std::vector<pid_t> threads;
  for (const auto& entry :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", process, "/task"))) {
    threads.push_back(std::stoi(entry.path().filename().string()));
  }
  return threads;
}

// Returns false if it has ended instead.
bool WaitForStopOf(pid_t thread) {
  int status = 0;
  return waitpid(thread, &status, __WALL) == thread && WIFSTOPPED(status);
}

// Returns whether a rank is in the middle of an action of its own that FindHang tells: if a rank
// hangs within a collective that all have entered, the others cannot tell which one it is, and the
// first action of a kind may take any time.
bool IsAtWork(const std::string& rings, size_t rank) {
  const auto records = engine::ReadRecorders(rings);
  if (!records.ok() || records->size() <= rank) return false;
  const std::vector<engine::FlightEvent>& actions = (*records)[rank].actions;
  if (actions.size() <= 100) return false;
  const engine::FlightEvent& last = actions.back();
  const bool is_known = std::any_of(actions.begin(), actions.end(), [&](const auto& action) {
    return !action.is_open() && action.trains == last.trains &&
           action.what.action.op == last.what.action.op;
  });
  return last.is_open() && is_known && !schedule::IsCollective(last.what.action.op);
}

// Holds all threads of a process as a debugger does, which its parent does not notice, once
// `is_right` returns true, until the process is killed.
void HoldUntilKilled(pid_t process, absl::FunctionRef<bool()> is_right) {
  std::vector<pid_t> threads = ThreadsOf(process);
  // Some threads end meanwhile: a save has a thread of its own.
  std::erase_if(threads,
                [](pid_t thread) { return ptrace(PTRACE_SEIZE, thread, nullptr, nullptr) != 0; });
  while (true) {
    std::erase_if(threads, [](pid_t thread) {
      return ptrace(PTRACE_INTERRUPT, thread, nullptr, nullptr) != 0 || !WaitForStopOf(thread);
    });
    ASSERT_EQ(std::count(threads.begin(), threads.end(), process), 1)
        << "may tests hold processes?";
    if (is_right()) break;
    for (const pid_t thread : threads) ptrace(PTRACE_CONT, thread, nullptr, nullptr);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  // This process must reap the dead threads before the parent can.
  for (const pid_t thread : threads) {
    int status = 0;
    if (thread == process) continue;
    ASSERT_EQ(waitpid(thread, &status, __WALL), thread);
  }
  int status = 0;
  ASSERT_EQ(waitpid(process, &status, __WALL), process);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

TEST(ProcessThatHangs, IsReplacedAndTheBitsAreTheSame) {
  constexpr size_t kVictim = 2;
  const stagecoach::testing::TestFolder folder;
  const auto path = [&](const std::string& name) { return (folder.path() / name).string(); };
  const auto run = [&](const std::string& stages, const std::string& replicas) -> Arguments {
    return {"train",
            "--data",
            "synthetic:256x16x4",
            "--layers",
            "4",
            "--width",
            "16",
            "--global-batch-size",
            "64",
            "--micro-batches",
            "4",
            "--epochs",
            "12",
            "--checkpoint-every",
            "100000",
            "--stages",
            stages,
            "--replicas",
            replicas,
            "--gradient-blocks",
            "2",
            "--resume",
            "--json",
            "--checkpoint",
            path("run" + stages)};
  };
  const std::string script =
      absl::StrCat("echo $$ > ", path("pid."), "$STAGECOACH_RESTARTS.$RANK; exec ",
                   absl::StrJoin(Joined({ProgramPath()}, run("2", "2")), " "));
  Child launched({"launch", "--processes", "4", "--max-restarts", "9", "--silence", "1",
                  "--log-dir", path("logs"), "--", "sh", "-c", script});
  while (!IsAtWork(path("logs/rings"), kVictim)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  pid_t victim = 0;
  ASSERT_TRUE(std::ifstream(path("pid.0.2")) >> victim);
  HoldUntilKilled(victim, [&] { return IsAtWork(path("logs/rings"), kVictim); });
  const Finished finished = launched.Wait();
  EXPECT_EQ(finished.exit_status, 0) << finished.err;
  EXPECT_THAT(finished.err, ContainsRegex("rank 2 hung in .* for [0-9.]+s and was killed.*; "
                                          "starts it again \\(1 of 9\\)"));
  const Finished whole = RunStagecoach(run("1", "1"));
  ASSERT_EQ(whole.exit_status, 0) << whole.err;
  const absl::StatusOr<std::string> out = base::ReadFile(path("logs/rank-0.out"), 1'000'000);
  ASSERT_OK(out);
  const std::string hash = whole.Events().back()["parameters_hash"];
  EXPECT_THAT(*out, HasSubstr(hash));
}

}  // namespace
}  // namespace stagecoach::tools
