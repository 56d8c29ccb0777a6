// `train --checkpoint` and `--resume` after signals and within limits; cli/resume.cli has the rest.
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/base/config.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/system/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/test_folder.h"
#include "tests/tools/child.h"

namespace stagecoach::tools {
namespace {

using ::stagecoach::testing::TestFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class ResumedRun : public ::testing::Test {
 protected:
  // Trains four epochs of five steps.
  Finished Train(const Arguments& more) const {
    return RunStagecoach(Joined({"train", "--json"}, more));
  }
  Arguments Whole(const Arguments& more = {}) const {
    return Joined({"--data", "synthetic:200x16x4", "--layers", "5", "--width", "16",
                   "--global-batch-size", "40", "--gradient-blocks", "2", "--epochs", "4"},
                  more);
  }
  static std::vector<std::string> Hashes(const Finished& run) {
    const nlohmann::json end = run.Events().back();
    return {end["step_losses_hash"], end["parameters_hash"]};
  }
  static int NewestStep(const std::string& folder) {
    int newest = 0, step = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      const std::string name = entry.path().filename().string();
      if (absl::SimpleAtoi(name.substr(name.find('-') + 1), &step)) newest = std::max(newest, step);
    }
    return newest;
  }
  // Stops the run at one of its steps; SIGPIPE closes its output, as `| head` does.
  void Interrupt(const Arguments& arguments, int signal, int status) const {
    Child child(Joined({"train", "--json"}, arguments));
    ASSERT_TRUE(child.WaitForOutput("\"event\":\"epoch\",\"epoch\":2"));
    signal == SIGPIPE ? child.CloseOutput() : child.Signal(signal);
    const Finished run = child.Wait();
    EXPECT_EQ(status == 0 ? run.signal : run.exit_status, status == 0 ? signal : status);
  }
  std::string Folder(const std::string& name = "run") const {
    return (folder_.path() / name).string();
  }

  const TestFolder folder_;
};

TEST_F(ResumedRun, GoesOnAfterASignal) {
  // The run would take hours, so it is stopped within an epoch.
  const Arguments lasting = {
      "--data", "synthetic:200x16x4", "--layers", "5",      "--width", "16", "--global-batch-size",
      "40",     "--lr-schedule",      "constant", "--steps"};
  for (const auto& [signal, status] :
       {std::pair(SIGTERM, kTerminated), std::pair(SIGINT, kStopped), std::pair(SIGHUP, kHungUp),
        std::pair(SIGPIPE, kBrokenPipe), std::pair(SIGKILL, 0)}) {
    const std::string folder = Folder(absl::StrCat(signal));
    // Nothing else triggers a save except a signal, and SIGKILL cannot be caught.
    const Arguments save = {"--checkpoint", folder, "--checkpoint-every",
                            status == 0 ? "1" : "1000000"};
    Interrupt(Joined(Joined(lasting, {"1000000"}), save), signal, status);
    const std::string steps = absl::StrCat(NewestStep(folder) + 3);
    const Finished resumed = Train(Joined(save, {"--resume", "--steps", steps}));
    EXPECT_EQ(resumed.exit_status, 0) << resumed.err;
    EXPECT_THAT(resumed.out, HasSubstr("\"event\":\"resumed\""));
    EXPECT_EQ(Hashes(resumed), Hashes(Train(Joined(lasting, {steps}))));
  }
}

// Of one process, and of several: a launcher passes the signal on. An epoch would take long, and
// nothing else is saved within it.
TEST_F(ResumedRun, IsSavedAndGoesOnWhenItIsAsked) {
  const Arguments lasting = {"train",
                             "--json",
                             "--data",
                             "synthetic:400000x16x4",
                             "--layers",
                             "5",
                             "--width",
                             "16",
                             "--stages",
                             "2",
                             "--steps",
                             "1000000",
                             "--global-batch-size",
                             "4",
                             "--log-every",
                             "200",
                             "--checkpoint-every",
                             "1000000"};
  for (const bool is_launched : {false, true}) {
    const std::string folder = Folder(is_launched ? "launched" : "alone");
    const Arguments launch = {"launch", "--processes", "2", "--"};
    Child child(
        Joined(is_launched ? launch : Arguments{}, Joined(lasting, {"--checkpoint", folder})));
    ASSERT_TRUE(child.WaitForOutput("\"event\":\"step\""));
    child.Signal(SIGUSR1);
    // The first step is saved in any case. What is saved is reported with the next save.
    while (!std::filesystem::exists(folder) || NewestStep(folder) <= 1) {
      absl::SleepFor(absl::Milliseconds(10));
    }
    child.Signal(SIGTERM);
    const Finished run = child.Wait();
    EXPECT_EQ(run.exit_status, kTerminated);
    EXPECT_THAT(run.out, Not(HasSubstr("\"event\":\"epoch\"")));
  }
}

TEST_F(ResumedRun, SaysThatItHasNoFolderForWhatItIsAskedToSave) {
  Child child({"train", "--json", "--data", "synthetic:200x16x4", "--layers", "5", "--width", "16",
               "--global-batch-size", "40", "--steps", "1000000", "--html", Folder("page.html")});
  ASSERT_TRUE(child.WaitForOutput("\"event\":\"epoch\",\"epoch\":2"));
  child.Signal(SIGUSR1);
  EXPECT_TRUE(child.WaitForOutput("\"event\":\"notice\",\"text\":\"asked for a checkpoint"));
  child.Signal(SIGTERM);
  EXPECT_THAT(child.Wait().err, HasSubstr("the run has no folder for it: see --checkpoint"));
  EXPECT_THAT(base::ReadFile(Folder("page.html"), 1 << 24).value_or(""),
              HasSubstr("the run has no folder for it: see --checkpoint"));
}

TEST_F(ResumedRun, KeepsOthersOutOfItsFolderWhileItIsThere) {
  const Arguments run = {
      "--data",  "synthetic:200x16x4", "--steps", "1000000", "--checkpoint-every",
      "1000000", "--checkpoint",       Folder()};
  for (const bool is_first : {true, false}) {  // with and without an existing folder
    Child child(Joined({"train", "--json", "--resume"}, run));
    ASSERT_TRUE(child.WaitForOutput("\"event\":\"plan\""));
    for (const Arguments& other : {Arguments{"--resume"}, Arguments{}}) {
      const Finished second = Train(Joined(run, other));
      EXPECT_EQ(second.exit_status, kStatusBadConfiguration);
      ExpectOneLine(second.err, AllOf(HasSubstr("belongs to a run that is still there (host "),
                                      HasSubstr(absl::StrCat(", process ", child.pid(), ", "))));
    }
    child.Signal(is_first ? SIGKILL : SIGTERM);  // the first leaves its lock behind
    child.Wait();
    EXPECT_EQ(std::filesystem::exists(Folder("run/.lock")), is_first);
  }
}

// The address space has no room for the stacks of that many threads. Sanitizers take more than any
// limit leaves.
#if !defined(ABSL_HAVE_ADDRESS_SANITIZER) && !defined(ABSL_HAVE_THREAD_SANITIZER)
TEST_F(ResumedRun, OfMoreThreadsThanThereMayBeEndsAndContinuesWithFewer) {
  const Finished whole = Train(Whole({"--checkpoint", Folder(), "--checkpoint-every", "3"}));
  std::filesystem::remove_all(absl::StrCat(Folder(), "/step-00000020"));
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &limit), 0);
  const rlimit small = {.rlim_cur = rlim_t{2} << 30, .rlim_max = limit.rlim_max};
  const Arguments resume = {"--checkpoint", Folder(), "--resume"};
  ASSERT_EQ(setrlimit(RLIMIT_AS, &small), 0);
  const Finished run = Train(Joined(resume, {"--stages", "3", "--threads-per-device", "256"}));
  ASSERT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
  EXPECT_EQ(run.exit_status, kStatusBadConfiguration) << run.err;
  EXPECT_THAT(run.err, AllOf(HasSubstr("--threads-per-device 256: there are only "),
                             HasSubstr("the system refused 256 threads: "),
                             HasSubstr("give it fewer (--threads-per-device)")));
  EXPECT_EQ(Hashes(Train(resume)), Hashes(whole));
}
#endif

// Files of the program may grow to 4 KiB; as on a full disk, longer writes fail.
TEST_F(ResumedRun, GoesOnWhereItCannotSaveAndEndsWithStatus74) {
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  const rlimit small = {.rlim_cur = 4096, .rlim_max = limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const Finished run = Train(Whole(
      {"--width", "64", "--checkpoint", Folder(), "--epochs", "2", "--checkpoint-every", "100"}));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  EXPECT_EQ(run.exit_status, 74);
  EXPECT_THAT(run.err,
              AllOf(HasSubstr("the run continues, but was not saved after step 5: cannot write"),
                    HasSubstr("not saved after step 10"), HasSubstr("File too large")));
  EXPECT_EQ(run.Events().back()["steps"], 10);
  EXPECT_EQ(NewestStep(Folder()), 0);
}

}  // namespace
}  // namespace stagecoach::tools
