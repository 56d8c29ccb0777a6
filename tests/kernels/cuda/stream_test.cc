#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/device.h"
#include "tests/kernels/cuda/backend_fixture.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::kernels::stream_test {
namespace {

using ::stagecoach::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using CudaStreamTest = CudaBackendTest;

constexpr auto kNoPoll = [] { return absl::OkStatus(); };

TEST_F(CudaStreamTest, CopiesInTheOrderOfTheirJobs) {
  const auto device = CreateDevice();
  ASSERT_OK_AND_ASSIGN(const Buffer first, device->Allocate(16));
  ASSERT_OK_AND_ASSIGN(const Buffer second, device->Allocate(16));
  ASSERT_OK(Write(*device, first, {1, 2, 3, 4}));
  ASSERT_OK(Write(*device, second, {5, 6, 7, 8}));
  ASSERT_OK(RunJob(*device, [&](Stream& stream) {
    RETURN_IF_ERROR(stream.Copy(first.data() + 8, second.data(), 4));
    return stream.Copy(second.data(), first.data(), 12);
  }));
  ASSERT_OK_AND_ASSIGN(const std::vector<int32_t> values, Read(*device, second));
  EXPECT_THAT(values, ElementsAre(1, 2, 5, 8));
}

TEST_F(CudaStreamTest, CopiesNothingWithoutAddresses) {
  const auto device = CreateDevice();
  EXPECT_OK(RunJob(*device, [](Stream& stream) { return stream.Copy(nullptr, nullptr, 0); }));
}

TEST_F(CudaStreamTest, JobsDoNotWaitForTheDevice) {
  const auto device = CreateDevice();
  Roadblock roadblock(*device);
  EXPECT_OK(RunJob(*device, [](Stream& stream) { return stream.Report(1); }));
  roadblock.Lift();
  EXPECT_OK(FinishStream(*device));
}

TEST_F(CudaStreamTest, ReportsHowFarTheDeviceHasCome) {
  const auto device = CreateDevice();
  EXPECT_EQ(device->stream().reported(), 0);
  ASSERT_OK(RunJob(*device, [](Stream& stream) { return stream.Report(3); }));
  ASSERT_OK(FinishStream(*device));
  EXPECT_EQ(device->stream().reported(), 3);
  Roadblock roadblock(*device);
  ASSERT_OK(RunJob(*device, [](Stream& stream) { return stream.Report(4); }));
  EXPECT_EQ(device->stream().reported(), 3);
  roadblock.Lift();
  ASSERT_OK(FinishStream(*device));
  EXPECT_EQ(device->stream().reported(), 4);
}

TEST_F(CudaStreamTest, FinishGivesUpAtTheDeadline) {
  const auto device = CreateDevice();
  Roadblock roadblock(*device);
  EXPECT_THAT(RunJob(*device,
                     [](Stream& stream) {
                       return stream.Finish(base::Deadline::After(absl::Milliseconds(20)), kNoPoll);
                     }),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("last report is 0")));
  roadblock.Lift();
  EXPECT_OK(FinishStream(*device));
}

TEST_F(CudaStreamTest, FinishReturnsTheErrorOfThePoll) {
  const auto device = CreateDevice();
  Roadblock roadblock(*device);
  EXPECT_THAT(RunJob(*device,
                     [](Stream& stream) {
                       return stream.Finish(base::Deadline::After(absl::Minutes(1)),
                                            [] { return absl::AbortedError("a peer is gone"); });
                     }),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("a peer is gone")));
}

TEST_F(CudaStreamTest, FinishReturnsTheErrorOfTheWork) {
  if (!testing::cuda::IsSimulated()) GTEST_SKIP() << "nothing fails on purpose";
  const auto device = CreateDevice();
  ASSERT_OK(RunJob(*device, [](Stream& stream) { return stream.Report(1); }));
  ASSERT_OK(FinishStream(*device));  // otherwise the first report might be what fails
  testing::cuda::FailOperation(0);
  static_cast<void>(RunJob(*device, [](Stream& stream) { return stream.Report(2); }));
  EXPECT_THAT(FinishStream(*device), StatusIs(absl::StatusCode::kInternal, HasSubstr("cuda")));
}

TEST_F(CudaStreamTest, ReplaysWhatWasRecorded) {
  const auto device = CreateDevice();
  ASSERT_OK_AND_ASSIGN(const Buffer from, device->Allocate(8));
  ASSERT_OK_AND_ASSIGN(const Buffer to, device->Allocate(8));
  ASSERT_OK_AND_ASSIGN(const auto recording, device->CreateRecording());
  int issued = 0;
  const auto issue = [&] {
    ++issued;
    return device->stream().Copy(to.data(), from.data(), 8);
  };
  for (int32_t round = 0; round < 5; ++round) {
    ASSERT_OK(Write(*device, from, {round, -round}));
    ASSERT_OK(RunJob(*device, [&](Stream& stream) { return stream.Replay(*recording, issue); }));
    ASSERT_OK_AND_ASSIGN(const std::vector<int32_t> values, Read(*device, to));
    EXPECT_THAT(values, ElementsAre(round, -round));
  }
  EXPECT_EQ(issued, 2) << "once plainly, once to record";
}

TEST_F(CudaStreamTest, IssuesPlainlyWhatCannotBeRecorded) {
  const auto device = CreateDevice();
  ASSERT_OK_AND_ASSIGN(const Buffer from, device->Allocate(4));
  ASSERT_OK_AND_ASSIGN(const Buffer to, device->Allocate(4));
  ASSERT_OK_AND_ASSIGN(const auto recording, device->CreateRecording());
  const auto issue = [&]() -> absl::Status {
    RETURN_IF_ERROR(device->stream().Copy(to.data(), from.data(), 4));
    return device->stream().Finish(base::Deadline::After(absl::Minutes(1)), kNoPoll);
  };
  for (int32_t round = 0; round < 4; ++round) {
    ASSERT_OK(Write(*device, from, {round}));
    ASSERT_OK(RunJob(*device, [&](Stream& stream) { return stream.Replay(*recording, issue); }));
    ASSERT_OK_AND_ASSIGN(const std::vector<int32_t> values, Read(*device, to));
    EXPECT_THAT(values, ElementsAre(round));
  }
}

TEST_F(CudaStreamTest, IssuesPlainlyWhatThereIsNoMemoryToRecord) {
  if (!testing::cuda::IsSimulated()) GTEST_SKIP() << "nothing fails on purpose";
  for (int64_t call = 1;; ++call) {
    ASSERT_LT(call, 20) << "no graph is made";
    const auto device = CreateDevice();
    ASSERT_OK_AND_ASSIGN(const auto recording, device->CreateRecording());
    const auto replay = [&](int32_t position) {
      return RunJob(*device, [&](Stream& stream) {
        return stream.Replay(*recording, [&] { return stream.Report(position); });
      });
    };
    ASSERT_OK(replay(1));
    testing::cuda::FailCall(call);
    const absl::Status second = replay(2);
    const std::string failed = testing::cuda::failed_call();
    testing::cuda::FailCall(0);
    if (failed != "cudaGraphInstantiate") continue;
    ASSERT_OK(second);
    for (int32_t position : {3, 4}) {
      ASSERT_OK(replay(position));
      ASSERT_OK(FinishStream(*device));
      EXPECT_EQ(device->stream().reported(), position);
    }
    return;
  }
}

TEST_F(CudaStreamTest, AnErrorWhileRecordingEndsTheRecording) {
  const auto device = CreateDevice();
  ASSERT_OK_AND_ASSIGN(const auto recording, device->CreateRecording());
  const auto replay = [&](absl::Status result) {
    return RunJob(*device, [&](Stream& stream) {
      return stream.Replay(*recording, [&]() -> absl::Status {
        RETURN_IF_ERROR(stream.Report(7));
        return result;
      });
    });
  };
  ASSERT_OK(replay(absl::OkStatus()));
  EXPECT_THAT(replay(absl::DataLossError("lost")), StatusIs(absl::StatusCode::kDataLoss));
  ASSERT_OK(RunJob(*device, [](Stream& stream) { return stream.Report(8); }));
  ASSERT_OK(FinishStream(*device));
  EXPECT_EQ(device->stream().reported(), 8) << "the stream still records";
  ASSERT_OK(replay(absl::OkStatus()));
  ASSERT_OK(FinishStream(*device));
  EXPECT_EQ(device->stream().reported(), 7);
}

// Clocks are paired to within less than this, however busy the machine is.
constexpr std::chrono::seconds kUncertainty{1};

TEST_F(CudaStreamTest, TimelineIsInOrderAndOnTheClockOfTheProcess) {
  const auto device = CreateDevice();
  constexpr int kSlots = 8;
  ASSERT_OK_AND_ASSIGN(const auto timeline, device->CreateTimeline(kSlots));
  auto last = std::chrono::steady_clock::now() - kUncertainty;
  for (int slot = 0; slot < kSlots; ++slot) {
    ASSERT_OK(RunJob(*device, [&](Stream& stream) -> absl::Status {
      RETURN_IF_ERROR(stream.Report(slot));
      return timeline->Mark(slot);
    }));
  }
  ASSERT_OK(FinishStream(*device));
  for (int slot = 0; slot < kSlots; ++slot) {
    ASSERT_OK_AND_ASSIGN(const auto time, timeline->At(slot));
    EXPECT_GE(time, last) << "slot " << slot;
    last = time;
  }
  EXPECT_LE(last, std::chrono::steady_clock::now() + kUncertainty);
}

TEST_F(CudaStreamTest, TimelineOutlastsPairingsOfTheClocks) {
  // Long enough for each Finish to pair the clocks again.
  constexpr std::chrono::milliseconds kPause{1100};
  constexpr int kSlots = 3;
  const auto device = CreateDevice();
  ASSERT_OK_AND_ASSIGN(const auto timeline, device->CreateTimeline(kSlots));
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::chrono::steady_clock::time_point> moments;
  for (int slot = 0; slot < kSlots; ++slot) {
    std::this_thread::sleep_for(kPause);
    ASSERT_OK(RunJob(*device, [&](Stream&) { return timeline->Mark(slot); }));
    ASSERT_OK(FinishStream(*device));
    ASSERT_OK_AND_ASSIGN(const auto time, timeline->At(slot));
    moments.push_back(time);
  }
  for (size_t i = 0; i < moments.size(); ++i) {
    EXPECT_GE(moments[i], begin + (i + 1) * kPause - kUncertainty) << "slot " << i;
    EXPECT_LE(moments[i], std::chrono::steady_clock::now() + kUncertainty) << "slot " << i;
  }
  EXPECT_TRUE(std::is_sorted(moments.begin(), moments.end()));
}

TEST_F(CudaStreamTest, TwoDevicesOfOneGpuGoOnWithoutOneAnother) {
  const auto blocked = CreateDevice(0);
  const auto free = CreateDevice(0);
  Roadblock roadblock(*blocked);
  ASSERT_OK(RunJob(*free, [](Stream& stream) { return stream.Report(5); }));
  ASSERT_OK(FinishStream(*free));
  EXPECT_EQ(free->stream().reported(), 5);
}

void RangeInARange(Device& device) {
  device.stream().Run([&device] {
    device.stream().BeginRange("step");
    device.stream().BeginRange("forward");
    device.stream().EndRange();
    device.stream().EndRange();
  });
}

TEST_F(CudaStreamTest, RangesMayBeNested) { RangeInARange(*CreateDevice()); }

// ThreadSanitizer would see a data race if the first range initialized the profiler's library.
TEST_F(CudaStreamTest, FirstRangesMayBeginTogether) {
  const auto one = CreateDevice();
  const auto other = CreateDevice();
  std::thread together([&] { RangeInARange(*one); });
  RangeInARange(*other);
  together.join();
}

}  // namespace
}  // namespace stagecoach::kernels::stream_test
