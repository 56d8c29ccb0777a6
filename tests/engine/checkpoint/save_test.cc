// Whatever fails during a save, even the machine, a whole checkpoint is left.
#include "engine/checkpoint/save.h"

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "engine/checkpoint/checkpoint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/checkpoint/recorded_calls.h"
#include "tests/engine/checkpoint/small_save.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"

namespace stagecoach::engine {
namespace {

using base::SystemCalls;
using ::stagecoach::testing::StatusIs;
using ::stagecoach::testing::TestFolder;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Unsynced = RecordedCalls::Unsynced;

class Save : public ::testing::Test {
 protected:
  std::string Folder(const std::string& name) const {
    const std::filesystem::path path = folder_.path() / name;
    std::filesystem::create_directories(path);
    return path.string();
  }
  static absl::StatusOr<std::string> Write(SystemCalls& calls, const SaveTask& task) {
    return BeginAndWrite(calls, task, not_cancelled_);
  }
  static absl::StatusOr<std::string> Write(const SaveTask& task) {
    return Write(WithoutSync(), task);
  }

  static const std::atomic<bool> not_cancelled_;
  const TestFolder folder_;
};
const std::atomic<bool> Save::not_cancelled_ = false;

TEST_F(Save, KeepsEveryValue) {
  const SmallState state(7);
  ASSERT_OK_AND_ASSIGN(const std::string path,
                       Write(SystemCalls::Kernel(), state.Task(Folder("run"))));
  EXPECT_EQ(path, absl::StrCat(Folder("run"), "/step-00000007"));
  EXPECT_OK(CheckHolds(path, 7));
  EXPECT_THAT(LeftoversIn(Folder("run")), IsEmpty());
}

// Saves a state over what the folder has, and expects after a crash at every call that one of the
// two checkpoints is whole, and that the next save succeeds.
void CrashEverywhere(const std::string& before, const std::string& run, const std::string& crashed,
                     const SaveTask& task, const std::vector<int64_t>& allowed) {
  std::filesystem::copy(before, run, std::filesystem::copy_options::recursive);
  RecordedCalls calls(run);
  const std::atomic<bool> cancelled = false;
  ASSERT_OK(BeginAndWrite(calls, task, cancelled));
  ASSERT_GE(calls.calls(), 20);
  int64_t with_new = 0;
  for (int64_t k = 0; k <= calls.calls(); ++k) {
    for (int seed = 0; seed < 8; ++seed) {
      const Unsynced unsynced = seed < 3 ? static_cast<Unsynced>(seed) : Unsynced::kHalf;
      SCOPED_TRACE(absl::StrCat("after ", k, " of ", calls.calls(), " calls, seed ", seed));
      std::filesystem::remove_all(crashed);
      calls.MakeCrashed(k, unsynced, static_cast<uint64_t>(1000 * k + seed), before, crashed);
      ASSERT_OK(CheckNewest(crashed, allowed));
      const bool is_new = CheckNewest(crashed, {task.manifest.step}).ok();
      with_new += static_cast<int64_t>(is_new);
      EXPECT_TRUE(is_new || k < calls.calls());
      if (seed > 3) continue;
      const SmallState next(90);
      ASSERT_OK(BeginAndWrite(WithoutSync(), next.Task(crashed), cancelled));
      ASSERT_OK(CheckNewest(crashed, {90}));
      ASSERT_THAT(LeftoversIn(crashed), IsEmpty());
    }
  }
  EXPECT_GT(with_new, 8);
}

TEST_F(Save, AfterACrashAtAnyCallTheOldOrTheNewIsWhole) {
  const SmallState one(1), two(2);
  ASSERT_OK(Write(one.Task(Folder("before"))));
  const std::string run = (folder_.path() / "run").string();
  CrashEverywhere(Folder("before"), run, (folder_.path() / "crashed").string(), two.Task(run),
                  {1, 2});
}

TEST_F(Save, AfterACrashWhileOneOfTheSameStepIsReplacedEitherIsWhole) {
  const SmallState one(1);
  ASSERT_OK(Write(one.Task(Folder("before"))));
  const std::string run = (folder_.path() / "run").string();
  CrashEverywhere(Folder("before"), run, (folder_.path() / "crashed").string(), one.Task(run), {1});
}

// Makes one call fail, or some calls do less than they could.
class FaultyCalls final : public SystemCalls {
 public:
  int64_t fails_at = -1;    // index of the call
  int64_t fails_from = -1;  // index of the first of the calls that fail
  int error = ENOSPC;
  bool writes_single_bytes = false;
  bool cannot_exchange = false;
  std::string damages;  // path suffix of the file that is damaged once it has been written
  int64_t calls = 0;

  int MakeFolder(const char* path) override { return Fails() ? -1 : SystemCalls::MakeFolder(path); }
  int Open(const char* path, int flags) override {
    if (Fails()) return -1;
    if (!damages.empty() && absl::EndsWith(path, damages)) damaged_path_ = path;
    return SystemCalls::Open(path, flags);
  }
  ssize_t WriteAt(int file, const void* data, size_t bytes, off_t offset) override {
    if (Fails()) return -1;
    return SystemCalls::WriteAt(file, data, writes_single_bytes ? 1 : bytes, offset);
  }
  void StartSync(int /*file*/) override {
    if (damaged_path_.empty()) return;
    std::fstream(damaged_path_, std::ios::in | std::ios::out | std::ios::binary)
        .seekp(-1, std::ios::end)
        .put('\x55');
    damaged_path_.clear();
  }
  int Sync(int /*file*/) override { return Fails() ? -1 : 0; }
  int Close(int file) override {
    const bool fails = Fails();
    const int result = SystemCalls::Close(file);
    if (fails) errno = error;
    return fails ? -1 : result;
  }
  int Rename(const char* from, const char* to) override {
    return Fails() ? -1 : SystemCalls::Rename(from, to);
  }
  int Exchange(const char* one, const char* other) override {
    if (cannot_exchange) errno = EINVAL;
    return cannot_exchange || Fails() ? -1 : SystemCalls::Exchange(one, other);
  }
  int RemoveFile(const char* path) override { return Fails() ? -1 : SystemCalls::RemoveFile(path); }
  int RemoveFolder(const char* path) override {
    return Fails() ? -1 : SystemCalls::RemoveFolder(path);
  }

 private:
  bool Fails() {
    const bool fails = calls == fails_at || (fails_from >= 0 && calls >= fails_from);
    ++calls;
    if (fails) errno = error;
    return fails;
  }
  std::string damaged_path_;
};

TEST_F(Save, AFailureOfAnyCallLeavesAWholeOne) {
  const SmallState one(1), two(2), three(3);
  const std::string run = Folder("run");
  FaultyCalls all;
  ASSERT_OK(Write(all, one.Task(run)));
  for (int error : {ENOSPC, EIO}) {
    for (int64_t k = 0; k < all.calls + 20; ++k) {
      SCOPED_TRACE(absl::StrCat("call ", k, ", error ", error));
      std::filesystem::remove_all(run);
      ASSERT_OK(Write(one.Task(Folder("run"))));
      FaultyCalls calls;
      (error == EIO ? calls.fails_from : calls.fails_at) = k;
      calls.error = error;
      const absl::StatusOr<std::string> saved = Write(calls, two.Task(run));
      if (saved.ok()) {
        EXPECT_OK(CheckNewest(run, {2}));
      } else {
        EXPECT_THAT(saved.status().message(), HasSubstr(run));
        EXPECT_OK(CheckNewest(run, {1, 2}));
      }
      EXPECT_TRUE(saved.ok() || k < calls.calls);
      EXPECT_OK(Write(three.Task(run)));
      EXPECT_OK(CheckNewest(run, {3}));
      EXPECT_THAT(LeftoversIn(run), IsEmpty());
    }
  }
}

TEST_F(Save, RemovesWhatItCouldNotWrite) {
  const SmallState one(1), two(2);
  ASSERT_OK(Write(one.Task(Folder("run"))));
  FaultyCalls calls;
  calls.fails_at = 9;
  EXPECT_THAT(Write(calls, two.Task(Folder("run"))),
              StatusIs(absl::StatusCode::kResourceExhausted, "No space left on device"));
  EXPECT_THAT(LeftoversIn(Folder("run")), IsEmpty());
}

TEST_F(Save, GoesOnAfterShortWrites) {
  const SmallState state(4);
  FaultyCalls calls;
  calls.writes_single_bytes = true;
  ASSERT_OK(Write(calls, state.Task(Folder("slow"))));
  EXPECT_OK(CheckNewest(Folder("slow"), {4}));
}

TEST_F(Save, ReplacesOneOfTheSameStepAlsoWhereFoldersCannotBeExchanged) {
  for (const bool cannot_exchange : {false, true}) {
    const SmallState state(4);
    const std::string run = Folder(cannot_exchange ? "renamed" : "exchanged");
    ASSERT_OK(Write(state.Task(run)));
    std::ofstream(absl::StrCat(run, "/step-00000004/layer-00000.safetensors")) << "damaged";
    FaultyCalls calls;
    calls.cannot_exchange = cannot_exchange;
    ASSERT_OK(Write(calls, state.Task(run)));
    EXPECT_OK(CheckNewest(run, {4}));
    EXPECT_THAT(LeftoversIn(run), IsEmpty());
  }
}

TEST_F(Save, ReadsBackWhatItHasWritten) {
  for (const char* file : {"layer-00000.safetensors", "layer-00002.optimizer.safetensors"}) {
    const SmallState one(1), two(2);
    const std::string run = Folder(file);
    ASSERT_OK(Write(one.Task(run)));
    FaultyCalls calls;
    calls.damages = file;
    EXPECT_THAT(Write(calls, two.Task(run)), StatusIs(absl::StatusCode::kDataLoss, file));
    EXPECT_OK(CheckNewest(run, {1}));
  }
}

TEST_F(Save, IsCancelled) {
  const SmallState state(1);
  const std::atomic<bool> cancelled = true;
  EXPECT_THAT(BeginAndWrite(WithoutSync(), state.Task(Folder("run")), cancelled),
              StatusIs(absl::StatusCode::kCancelled, "before the checkpoint"));
  EXPECT_THAT(LeftoversIn(Folder("run")), IsEmpty());
  EXPECT_TRUE(std::filesystem::is_empty(Folder("run")));
}

// Returns the result of each process.
std::vector<absl::StatusOr<std::string>> WriteAsProcesses(const std::vector<SaveTask>& tasks,
                                                          SystemCalls& calls_of_last) {
  const std::atomic<bool> cancelled = false;
  EXPECT_OK(BeginCheckpoint(WithoutSync(), tasks.front()));
  std::vector<absl::StatusOr<std::string>> results(tasks.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < tasks.size(); ++i) {
    threads.emplace_back([&, i] {
      results[i] = WriteCheckpoint(i + 1 == tasks.size() ? calls_of_last : WithoutSync(), tasks[i],
                                   cancelled);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

TEST_F(Save, SeveralProcessesWriteWhatOneWould) {
  const SmallState state(5);
  ASSERT_OK_AND_ASSIGN(const std::string alone, Write(state.Task(Folder("alone"))));
  for (int processes : {2, 3, 4}) {
    const std::string run = Folder(absl::StrCat(processes));
    std::vector<SaveTask> tasks;
    for (int process = 0; process < processes; ++process) {
      tasks.push_back(state.Task(run, process, processes));
    }
    for (const auto& result : WriteAsProcesses(tasks, WithoutSync())) {
      ASSERT_OK(result);
      EXPECT_EQ(*result, absl::StrCat(run, "/step-00000005"));
    }
    EXPECT_TRUE(FilesIn(absl::StrCat(run, "/step-00000005")) == FilesIn(alone));
    EXPECT_THAT(LeftoversIn(run), IsEmpty());
  }
}

TEST_F(Save, AProcessThatFailsIsNotWaitedFor) {
  const SmallState one(1), two(2);
  ASSERT_OK(Write(one.Task(Folder("run"))));
  std::vector<SaveTask> tasks;
  for (int process = 0; process < 3; ++process) {
    tasks.push_back(two.Task(Folder("run"), process, 3));
  }
  for (int64_t call = 0; call < 12; ++call) {
    SCOPED_TRACE(call);
    FaultyCalls calls;
    calls.fails_at = call;
    const absl::Time start = absl::Now();
    const auto results = WriteAsProcesses(tasks, calls);
    EXPECT_LT(absl::Now() - start, absl::Minutes(1));  // the deadline is five
    if (calls.calls <= call) break;
    EXPECT_THAT(results[2], StatusIs(absl::StatusCode::kResourceExhausted));
    EXPECT_THAT(results[0], StatusIs(absl::StatusCode::kAborted, "another process"));
    EXPECT_OK(CheckNewest(Folder("run"), {1}));
  }
}

TEST_F(Save, OneProcessWaitsForTheOthersUntilTheDeadline) {
  const SmallState state(1);
  SaveTask task = state.Task(Folder("run"), 0, 2);
  task.deadline = absl::Milliseconds(20);
  EXPECT_THAT(Write(task),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "process 1 has not written its part"));
}

TEST_F(Save, AProcessThatDoesNotSeeTheFolderSaysSo) {
  const SmallState state(1);
  const SaveTask task = state.Task(Folder("run"), 1, 2);
  EXPECT_THAT(CheckSeesFolder(task),
              StatusIs(absl::StatusCode::kFailedPrecondition, "must share the folder"));
  ASSERT_OK(BeginCheckpoint(WithoutSync(), task));
  EXPECT_OK(CheckSeesFolder(task));
}

std::vector<int64_t> StepsIn(const std::string& folder) {
  const std::vector<FoundCheckpoint> all = ListCheckpoints(folder).value();
  std::vector<int64_t> steps;
  for (const FoundCheckpoint& found : all) steps.push_back(found.step);
  return steps;
}

TEST_F(Save, KeepsTheNewestSomeAndTheBest) {
  const auto keep = [&](const std::string& name, const Retention& retention) {
    for (int64_t step = 1; step <= 9; ++step) {
      const SmallState state(step);
      SaveTask task = state.Task(Folder(name), retention);
      // Every other checkpoint was evaluated, and the second of these was best.
      if (step % 2 == 1) {
        task.manifest.position.metrics = Metrics{.test_loss = step == 3 ? 0.5 : 1.0 + 0.1 * step};
      }
      EXPECT_OK(Write(task));
    }
    return StepsIn(Folder(name));
  };
  EXPECT_THAT(keep("newest", {.newest = 2, .best_by = ""}), ElementsAre(8, 9));
  EXPECT_THAT(keep("best", {.newest = 1}), ElementsAre(3, 9));
  EXPECT_THAT(keep("some", {.newest = 3, .every_steps = 4, .best_by = ""}),
              ElementsAre(4, 7, 8, 9));
  EXPECT_THAT(keep("all", {.newest = 100}), SizeIs(9));
}

TEST_F(Save, ALossThatIsNoNumberIsNotTheBest) {
  for (const auto& [step, loss] : {std::pair(1, std::nan("")), {2, 0.5}, {3, 0.7}, {4, 0.6}}) {
    const SmallState state(step);
    SaveTask task = state.Task(Folder("run"), {.newest = 1});
    task.manifest.position.metrics = Metrics{.test_loss = loss};
    EXPECT_OK(Write(task));
  }
  EXPECT_THAT(StepsIn(Folder("run")), ElementsAre(2, 4));
}

TEST_F(Save, TheBestIsThatOfTheChosenMetric) {
  struct Case {
    std::string metric;
    int64_t best;
  };
  for (const Case& of : {Case{"test_loss", 2}, {"test_accuracy", 1}, {"train_loss", 3}, {"", 4}}) {
    SCOPED_TRACE(of.metric);
    const std::string run = Folder(absl::StrCat("run ", of.metric));
    for (int64_t step = 1; step <= 4; ++step) {
      const SmallState state(step);
      SaveTask task = state.Task(run, {.newest = 1, .best_by = of.metric});
      task.manifest.position.metrics = Metrics{.train_loss = step == 3 ? 0.1 : 0.2,
                                               .test_loss = step == 2 ? 0.5 : 0.6,
                                               .test_accuracy = step == 1 ? 0.9 : 0.8};
      EXPECT_OK(Write(task));
    }
    EXPECT_THAT(StepsIn(run), ElementsAreArray(std::set<int64_t>{of.best, 4}));
  }
}

// The folder belongs to the user, and saves continue next to it.
TEST_F(Save, ACheckpointWithAFolderInItStays) {
  const std::string run = Folder("run");
  for (int64_t step = 1; step <= 4; ++step) {
    const SmallState state(step);
    ASSERT_OK(Write(state.Task(run, {.newest = 1})));
    if (step != 1) continue;
    std::filesystem::create_directory(run + "/step-00000001/notes");
    std::filesystem::create_directories(run + "/.removing-step-00000000/notes");
  }
  EXPECT_THAT(StepsIn(run), ElementsAre(1, 4));
  EXPECT_OK(Checkpoint::Open(run + "/step-00000001").status());
  EXPECT_THAT(LeftoversIn(run), ElementsAre(".removing-step-00000000"));
}

TEST_F(Save, RemovesNothingThatIsNoCheckpointOfItsOwn) {
  const std::string run = Folder("run");
  const SmallState one(1), two(2), three(3);
  ASSERT_OK(Write(one.Task(run)));
  ASSERT_OK(Write(two.Task(Folder("elsewhere"))));
  // The folder has a link to another run's checkpoint, one to a folder, a folder of the user's, and
  // a damaged checkpoint.
  std::filesystem::create_directory_symlink(Folder("elsewhere") + "/step-00000002",
                                            run + "/step-00000000");
  std::filesystem::create_directory_symlink(Folder("elsewhere"), run + "/.saving-mine");
  std::filesystem::create_directory(run + "/notes");
  std::filesystem::create_directory(run + "/step-00000002");
  ASSERT_OK(Write(three.Task(run)));
  EXPECT_OK(CheckNewest(Folder("elsewhere"), {2}));
  EXPECT_TRUE(std::filesystem::is_symlink(run + "/step-00000000"));
  EXPECT_TRUE(std::filesystem::is_directory(run + "/notes"));
  EXPECT_THAT(StepsIn(run), ElementsAre(2, 3));
}

TEST_F(Save, TouchesNothingBehindALink) {
  const std::string run = Folder("run");
  const SmallState two(2), three(3);
  std::ofstream(absl::StrCat(Folder("elsewhere"), "/mine")) << "kept";
  for (const char* name :
       {"/step-00000002", "/.removing-step-00000002", "/.saving-step-00000002"}) {
    std::filesystem::create_directory_symlink(Folder("elsewhere"), run + name);
  }
  EXPECT_THAT(Write(two.Task(run)), StatusIs(absl::StatusCode::kAlreadyExists, "not a folder"));
  ASSERT_OK(Write(three.Task(run)));
  const auto files = FilesIn(Folder("elsewhere"));
  EXPECT_THAT(files, SizeIs(1));
  EXPECT_EQ(files.at("mine"), "kept");
}

}  // namespace
}  // namespace stagecoach::engine
