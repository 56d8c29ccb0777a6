#include "engine/diagnosis/flight_recorder.h"

#include <signal.h>
#include <sys/resource.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/system/file.h"
#include "engine/diagnosis/flight_recorders.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"

namespace stagecoach::engine {
namespace {

using schedule::Op;
using ::stagecoach::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

FlightAction Pass(Op op, int micro_batch, Awaited awaited = Awaited::kNothing, int peer = -1) {
  return {.action = {.op = op,
                     .stage = schedule::StageId(2),
                     .micro_batch = schedule::MicroBatch(micro_batch)},
          .awaited = awaited,
          .peer = schedule::Rank(peer)};
}

RecorderOwner OwnerOf(int device) {
  return {.device = device,
          .devices = 4,
          .replica = device % 2,
          .replicas = 2,
          .name = absl::StrCat("rank ", device),
          .launch = "first"};
}

std::unique_ptr<FlightRecorder> InMemory() {
  return FlightRecorder::Create(OwnerOf(2), "").value();
}

TEST(FlightRecorder, KeepsWhatWasBegunStartedAndEnded) {
  const auto recorder = InMemory();
  const FlightAction norm = {
      .action = schedule::Collective(Op::kExchangeNorms, schedule::GroupId(3)),
      .awaited = Awaited::kAll};
  const FlightAction pass = Pass(Op::kBackward, 5, Awaited::kMessage, 1);
  recorder->BeginRun(56, /*trains=*/false);
  recorder->Begin(Pass(Op::kForward, 5));
  recorder->EndRun();
  recorder->BeginRun(57, /*trains=*/true);
  recorder->Begin(pass);
  recorder->Start();
  recorder->Begin(norm);
  const RankRecord record = recorder->Read();
  ASSERT_THAT(record.actions, SizeIs(3));
  EXPECT_EQ(record.closed_ns, 0);
  const FlightEvent &first = record.actions[0], &second = record.actions[1],
                    &third = record.actions[2];
  EXPECT_EQ(first.what, Pass(Op::kForward, 5));
  EXPECT_EQ(second.what, pass);
  EXPECT_EQ(third.what, norm);
  EXPECT_EQ(first.step, 56);
  EXPECT_EQ(second.step, 57);
  EXPECT_FALSE(first.trains);
  EXPECT_TRUE(second.trains);
  EXPECT_EQ(first.run + 1, second.run);
  EXPECT_EQ(first.started_ns, 0);
  EXPECT_LE(first.ended_ns, second.begun_ns);
  EXPECT_GE(second.started_ns, second.begun_ns);
  EXPECT_EQ(second.ended_ns, third.begun_ns);
  EXPECT_TRUE(third.is_open());
  recorder->EndRun();
  EXPECT_FALSE(recorder->Read().actions[2].is_open());
}

TEST(FlightRecorder, KeepsTheLastOnceItIsFull) {
  const auto recorder = InMemory();
  recorder->BeginRun(1, true);
  for (int i = 0; i < FlightRecorder::kEntries + 10; ++i) recorder->Begin(Pass(Op::kForward, i));
  const RankRecord record = recorder->Read();
  ASSERT_THAT(record.actions, SizeIs(FlightRecorder::kEntries));
  for (int i = 0; i < FlightRecorder::kEntries; ++i) {
    EXPECT_EQ(record.actions[static_cast<size_t>(i)].what, Pass(Op::kForward, i + 10));
  }
  EXPECT_TRUE(record.actions.back().is_open());
  EXPECT_FALSE(record.actions.front().is_open());
}

TEST(FlightRecorder, ClosesOnce) {
  const auto recorder = InMemory();
  recorder->Close();
  const int64_t closed_ns = recorder->Read().closed_ns;
  EXPECT_GT(closed_ns, 0);
  recorder->Close();
  EXPECT_EQ(recorder->Read().closed_ns, closed_ns);
}

// The host has issued two more actions.
TEST(FlightRecorder, EndsWhereTheDeviceIs) {
  const auto recorder = InMemory();
  recorder->BeginRun(1, true);
  recorder->Begin(Pass(Op::kForward, 9));
  recorder->EndRun();
  recorder->BeginRun(2, true);
  for (int i = 0; i < 4; ++i) recorder->Begin(Pass(Op::kForward, i));
  recorder->DeviceIsAt(1);
  const RankRecord record = recorder->Read();
  ASSERT_THAT(record.actions, SizeIs(3));
  EXPECT_EQ(record.actions.back().what, Pass(Op::kForward, 1));
  EXPECT_TRUE(record.actions.back().is_open());
  recorder->DeviceIsAt(7);
  EXPECT_THAT(recorder->Read().actions, SizeIs(5));
  recorder->DeviceIsAt(1);
  recorder->EndRun();
  EXPECT_THAT(recorder->Read().actions, SizeIs(5));
}

TEST(FlightRecorder, CanBeReadWhileItIsWritten) {
  const auto recorder = InMemory();
  std::atomic<bool> done = false;
  std::thread writer([&] {
    recorder->BeginRun(1, true);
    for (int i = 0; !done; ++i) {
      recorder->Begin(Pass(Op::kForward, i, Awaited::kMessage, i % 2));
      recorder->Start();
    }
  });
  for (int i = 0; i < 100; ++i) {
    const RankRecord record = recorder->Read();
    int last = -1;
    for (const FlightEvent& action : record.actions) {
      const int number = action.what.action.micro_batch.value();
      ASSERT_GT(number, last);
      ASSERT_EQ(action.what.peer.value(), number % 2);
      last = number;
    }
  }
  done = true;
  writer.join();
}

class RecorderFile : public ::testing::Test {
 protected:
  std::string PathOf(int device) const { return RingPath(folder_.path().string(), device); }
  // Makes a file with one action of a process that was killed.
  std::string Make(int device, const std::string& launch = "first") const {
    RecorderOwner owner = OwnerOf(device);
    owner.launch = launch;
    const auto recorder = FlightRecorder::Create(owner, PathOf(device)).value();
    recorder->BeginRun(57, true);
    recorder->Begin(Pass(Op::kForward, 3));
    return base::ReadFile(PathOf(device), 1 << 20).value();
  }
  absl::Status ReadAll() const { return ReadRecorders(folder_.path().string()).status(); }

  const testing::TestFolder folder_;
};

TEST_F(RecorderFile, HoldsWhatAProcessHasLeft) {
  const absl::StatusOr<RankRecord> record = ParseRing(Make(3));
  ASSERT_OK(record.status());
  EXPECT_EQ(record->owner.name, "rank 3");
  EXPECT_FALSE(record->owner.clock.empty());
  EXPECT_EQ(record->closed_ns, 0);
  ASSERT_THAT(record->actions, SizeIs(1));
  EXPECT_TRUE(record->actions[0].is_open());
  EXPECT_EQ(record->actions[0].what, Pass(Op::kForward, 3));
  // The recorder was destroyed after that, which closed the file.
  EXPECT_GT(ParseRing(base::ReadFile(PathOf(3), 1 << 20).value())->closed_ns, 0);
}

TEST_F(RecorderFile, OfDevicesThatHaveNoneIsWithoutActions) {
  Make(1);
  Make(2);
  const auto records = ReadRecorders(folder_.path().string());
  ASSERT_OK(records.status());
  ASSERT_THAT(*records, SizeIs(4));
  EXPECT_THAT((*records)[1].actions, SizeIs(1));
  EXPECT_THAT((*records)[2].actions, SizeIs(1));
  EXPECT_THAT((*records)[3].actions, IsEmpty());
  EXPECT_EQ((*records)[3].owner.device, 3);
  EXPECT_EQ((*records)[3].owner.replica, 1);
  EXPECT_EQ((*records)[3].owner.name, "rank 3");
}

TEST_F(RecorderFile, OfAnotherRunIsRefused) {
  Make(1);
  Make(2, "second");
  EXPECT_THAT(ReadAll(),
              StatusIs(absl::StatusCode::kFailedPrecondition, "rings of different runs"));
}

TEST_F(RecorderFile, ThatIsMissingIsSaidSo) {
  EXPECT_THAT(ReadAll(), StatusIs(absl::StatusCode::kNotFound, "has no rings"));
  EXPECT_THAT(ReadRecorders("/no/such/folder").status(), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(RecorderFile, ThatIsTruncatedIsRefusedByName) {
  const std::string whole = Make(0);
  std::ofstream(PathOf(0), std::ios::binary) << whole.substr(0, whole.size() - 1);
  EXPECT_THAT(ReadAll(), StatusIs(absl::StatusCode::kDataLoss,
                                  AllOf(HasSubstr("rank-0.ring"), HasSubstr("damaged"))));
}

// Every byte of the header and of the entry is changed in turn: the file is refused, or read as
// another valid record.
TEST_F(RecorderFile, ThatIsDamagedIsAnErrorOrAnotherRecord) {
  const std::string whole = Make(0);
  int refused = 0;
  for (size_t i = 0; i < 4096 + 128; ++i) {
    if (i == 1024) i = 4096;  // there is nothing between
    for (const int mask : {0x01, 0x80, 0xff}) {
      std::string damaged = whole;
      damaged[i] = static_cast<char>(damaged[i] ^ mask);
      const absl::StatusOr<RankRecord> record = ParseRing(damaged);
      if (!record.ok()) {
        ASSERT_EQ(record.status().code(), absl::StatusCode::kDataLoss);
        ++refused;
        continue;
      }
      ASSERT_LT(record->owner.device, record->owner.devices);
      if (i % 64 == 0) {
        std::ofstream(PathOf(0), std::ios::binary) << damaged;
        EXPECT_TRUE(Diagnose(folder_.path().string()).ok());
      }
      for (const FlightEvent& action : record->actions) {
        ASSERT_LT(static_cast<int>(action.what.action.op), schedule::kNumOps);
        ASSERT_LT(action.what.peer.value(), record->owner.devices / record->owner.replicas);
        ASSERT_GE(action.last_ns(), action.begun_ns);
      }
    }
  }
  EXPECT_GT(refused, 3 * 30);  // magic and mesh at least
}

TEST_F(RecorderFile, IsNotThatOfAProcessThatStillHasTheOld) {
  const auto old = FlightRecorder::Create(OwnerOf(0), PathOf(0)).value();
  Make(0, "second");
  old->BeginRun(1, true);
  old->Begin(Pass(Op::kForward, 1));
  EXPECT_EQ(ReadRecorders(folder_.path().string())->at(0).owner.launch, "second");
}

TEST_F(RecorderFile, ThatCannotBeMadeIsSaidAndReplacedByMemory) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = FlightRecorder::kBytes - 1;
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  absl::Status why;
  const auto recorders = FlightRecorders::Create(
      {.folder = folder_.path().string(), .on_no_file = [&](const absl::Status& w) { why = w; }},
      {OwnerOf(0)});
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  ASSERT_OK(recorders.status());
  EXPECT_THAT(why.message(), AllOf(HasSubstr(PathOf(0)), HasSubstr("File too large")));
  EXPECT_FALSE(base::Exists(PathOf(0)));
  (*recorders)->of(0).BeginRun(1, true);
  (*recorders)->of(0).Begin(Pass(Op::kForward, 1));
  EXPECT_THAT((*recorders)->of(0).Read().actions, SizeIs(1));
}

TEST_F(RecorderFile, InAFolderThatCannotBeIsAnErrorWithItsName) {
  EXPECT_THAT(FlightRecorders::Create({.folder = "/dev/null/x"}, {OwnerOf(0)}).status().message(),
              HasSubstr("/dev/null/x"));
}

}  // namespace
}  // namespace stagecoach::engine
