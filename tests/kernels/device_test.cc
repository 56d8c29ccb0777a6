#include "kernels/device.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/text/units.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "tests/testing/device_fixture.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::kernels::device_test {
namespace {

using base::Deadline;
using ::stagecoach::testing::StatusIs;
using ::stagecoach::testing::TestDevice;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr int64_t kPage = 4096;

std::unique_ptr<Device> Cpu(const CpuDeviceOptions& options) {
  auto device = CreateCpuDevice(options);
  EXPECT_OK(device);
  return *std::move(device);
}

TEST(CpuDeviceOptions, OutOfRangeAreInvalid) {
  for (const CpuDeviceOptions& options :
       {CpuDeviceOptions{.threads = 0}, CpuDeviceOptions{.threads = -1},
        CpuDeviceOptions{.threads = CpuDeviceOptions::kMaxThreads + 1},
        CpuDeviceOptions{.memory_limit_bytes = -1}}) {
    EXPECT_THAT(CreateCpuDevice(options), StatusIs(absl::StatusCode::kInvalidArgument))
        << options.threads << " threads, " << options.memory_limit_bytes << " bytes";
  }
}

TEST(DeviceMemory, BeyondTheBudgetIsRefusedWithAllNumbers) {
  const auto device = Cpu({.index = 3, .memory_limit_bytes = 10 * kPage});
  ASSERT_OK_AND_ASSIGN(const Buffer buffer, device->Allocate(7 * kPage));
  EXPECT_THAT(device->Allocate(4 * kPage),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("cpu:3"), HasSubstr(base::FormatBytes(4 * kPage)),
                             HasSubstr(base::FormatBytes(7 * kPage)),
                             HasSubstr(base::FormatBytes(10 * kPage)))));
}

TEST(DeviceMemory, RefusedAllocationIsNotCharged) {
  const auto device = Cpu({.memory_limit_bytes = 10 * kPage});
  EXPECT_THAT(device->Allocate(11 * kPage), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(device->used_bytes(), 0);
}

TEST(DeviceMemory, WholeBudgetCanBeUsed) {
  const auto device = Cpu({.memory_limit_bytes = 10 * kPage});
  ASSERT_OK_AND_ASSIGN(const Buffer first, device->Allocate(9 * kPage));
  ASSERT_OK_AND_ASSIGN(const Buffer second, device->Allocate(1 * kPage));
  EXPECT_EQ(device->used_bytes(), device->memory_limit_bytes());
}

TEST(DeviceMemory, DyingBufferGivesItsBytesBack) {
  const auto device = Cpu({.memory_limit_bytes = 10 * kPage});
  for (int i = 0; i < 3; ++i) {
    ASSERT_OK_AND_ASSIGN(const Buffer buffer, device->Allocate(10 * kPage));
    EXPECT_EQ(device->used_bytes(), 10 * kPage);
  }
  EXPECT_EQ(device->used_bytes(), 0);
}

TEST(DeviceMemory, IsZeroAlsoWhenUsedBefore) {
  const auto device = Cpu({});
  for (int i = 0; i < 2; ++i) {
    ASSERT_OK_AND_ASSIGN(const Buffer buffer, device->Allocate(3 * kPage));
    const std::vector<std::byte> bytes(buffer.data(), buffer.data() + buffer.bytes());
    ASSERT_THAT(bytes, Each(std::byte{0}));
    std::memset(buffer.data(), 0xFF, static_cast<size_t>(buffer.bytes()));
  }
}

TEST(DeviceMemory, AddressesAreMultiplesOf4096) {
  const auto device = Cpu({});
  std::vector<Buffer> buffers;
  for (int64_t bytes : {1, 100, 4096, 5000, 1 << 21}) {
    ASSERT_OK_AND_ASSIGN(Buffer buffer, device->Allocate(bytes));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 4096, 0u) << bytes << " bytes";
    EXPECT_EQ(buffer.bytes(), bytes);
    buffers.push_back(std::move(buffer));
  }
}

TEST(DeviceMemory, BudgetHoldsAgainstManyThreads) {
  const auto device = Cpu({.memory_limit_bytes = 2 * kPage});
  std::atomic<int> live{0};
  std::atomic<int> most_live{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        const auto buffer = device->Allocate(kPage);
        if (!buffer.ok()) continue;
        const int now = ++live;
        int most = most_live;
        while (now > most && !most_live.compare_exchange_weak(most, now)) {
        }
        --live;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(most_live, 2);
  EXPECT_EQ(device->used_bytes(), 0);
}

TEST(Buffer, MovingKeepsTheBytesAndEmptiesTheSource) {
  const auto device = Cpu({});
  ASSERT_OK_AND_ASSIGN(Buffer source, device->Allocate(kPage));
  std::byte* const data = source.data();
  const Buffer target(std::move(source));
  EXPECT_EQ(target.data(), data);
  EXPECT_EQ(source.data(), nullptr);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(source.bytes(), 0);
  EXPECT_EQ(device->used_bytes(), kPage);
}

TEST(Buffer, MoveAssignmentFreesWhatTheTargetHeld) {
  const auto device = Cpu({});
  ASSERT_OK_AND_ASSIGN(Buffer target, device->Allocate(kPage));
  ASSERT_OK_AND_ASSIGN(Buffer source, device->Allocate(2 * kPage));
  target = std::move(source);
  EXPECT_EQ(target.bytes(), 2 * kPage);
  EXPECT_EQ(device->used_bytes(), 2 * kPage);
}

class FunctionJob final : public Job {
 public:
  explicit FunctionJob(std::function<void()> function) : function_(std::move(function)) {}
  void Run() override { function_(); }

 private:
  const std::function<void()> function_;
};

// Waits for everything that was submitted, also if the queue is full.
void Drain(Stream& stream) {
  Event end;
  while (!stream.Record(end).ok()) std::this_thread::yield();
  EXPECT_OK(end.Wait(Deadline::Never()));
}

// Occupies a stream, so that everything submitted next has to wait, until Open or the end of its
// life, which drains the stream.
class Gate {
 public:
  explicit Gate(Stream& stream) : stream_(stream) {
    EXPECT_OK(stream.Submit(job_));
    started_.wait(false);
  }
  ~Gate() {
    Open();
    Drain(stream_);
  }
  void Open() {
    open_.store(true);
    open_.notify_all();
  }

 private:
  Stream& stream_;
  std::atomic<bool> started_{false};
  std::atomic<bool> open_{false};
  FunctionJob job_{[this] {
    started_.store(true);
    started_.notify_all();
    open_.wait(false);
  }};
};

TEST(Event, NeverRecordedIsReady) {
  Event event;
  EXPECT_OK(event.Wait(Deadline::After(absl::ZeroDuration())));
}

TEST(Event, WaitGivesUpAtTheDeadline) {
  const auto device = Cpu({});
  Event event;
  Gate gate(device->stream());
  ASSERT_OK(device->stream().Record(event));
  EXPECT_THAT(event.Wait(Deadline::After(absl::Milliseconds(5))),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST(Event, IsReachedAfterTheWorkBeforeIt) {
  const auto device = Cpu({});
  for (int i = 0; i < 200; ++i) {
    int written = 0;
    FunctionJob job([&] { written = i + 1; });
    Event event;
    ASSERT_OK(device->stream().Submit(job));
    ASSERT_OK(device->stream().Record(event));
    ASSERT_OK(event.Wait(Deadline::Never()));
    EXPECT_EQ(written, i + 1);
  }
}

TEST(Event, IsReachedBeforeTheWorkAfterIt) {
  const auto device = Cpu({});
  Event event;
  ASSERT_OK(device->stream().Record(event));
  Gate gate(device->stream());
  EXPECT_OK(event.Wait(Deadline::Never()));
}

TEST(Event, EachRecordIsANewMark) {
  const auto device = Cpu({});
  Event event;
  ASSERT_OK(device->stream().Record(event));
  ASSERT_OK(event.Wait(Deadline::Never()));
  Gate gate(device->stream());
  ASSERT_OK(device->stream().Record(event));
  EXPECT_THAT(event.Wait(Deadline::After(absl::Milliseconds(5))),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  gate.Open();
  EXPECT_OK(event.Wait(Deadline::Never()));
}

TEST(Event, WakesEveryWaiter) {
  const auto device = Cpu({});
  Event event;
  std::atomic<int> woken{0};
  std::vector<std::thread> waiters;
  {
    Gate gate(device->stream());
    ASSERT_OK(device->stream().Record(event));
    for (int t = 0; t < 4; ++t) {
      waiters.emplace_back([&] {
        if (event.Wait(Deadline::Never()).ok()) ++woken;
      });
    }
  }
  for (std::thread& waiter : waiters) waiter.join();
  EXPECT_EQ(woken, 4);
}

TEST(Stream, RunsJobsInTheOrderOfSubmission) {
  const auto device = Cpu({.threads = 3});
  std::vector<int> order, expected;
  std::deque<FunctionJob> jobs;
  for (int i = 0; i < Stream::kMaxPending; ++i) {
    expected.push_back(i);
    jobs.emplace_back([&order, i] { order.push_back(i); });
  }
  {
    Gate gate(device->stream());
    for (FunctionJob& job : jobs) ASSERT_OK(device->stream().Submit(job));
  }
  EXPECT_EQ(order, expected);
}

TEST(Stream, RunsJobsOnOneThreadOfItsOwn) {
  const auto device = Cpu({.threads = 2});
  std::thread::id first, second;
  device->stream().Run([&] { first = std::this_thread::get_id(); });
  device->stream().Run([&] { second = std::this_thread::get_id(); });
  EXPECT_EQ(first, second);
  EXPECT_NE(first, std::this_thread::get_id());
}

TEST(Stream, RunsTheSameJobAgain) {
  const auto device = Cpu({});
  int runs = 0;
  FunctionJob job([&] { ++runs; });
  for (int i = 0; i < 1000; ++i) device->stream().RunAndWait(job);
  EXPECT_EQ(runs, 1000);
}

TEST(Stream, FullQueueRefusesJobs) {
  const auto device = Cpu({});
  FunctionJob job([] {});
  Gate gate(device->stream());
  for (int i = 0; i < Stream::kMaxPending; ++i) ASSERT_OK(device->stream().Submit(job)) << i;
  EXPECT_THAT(device->stream().Submit(job), StatusIs(absl::StatusCode::kResourceExhausted));
  Event event;
  EXPECT_THAT(device->stream().Record(event), StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST(Stream, RefusedRecordLeavesTheEventReady) {
  const auto device = Cpu({});
  FunctionJob job([] {});
  Event event;
  Gate gate(device->stream());
  for (int i = 0; i < Stream::kMaxPending; ++i) ASSERT_OK(device->stream().Submit(job)) << i;
  ASSERT_THAT(device->stream().Record(event), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_OK(event.Wait(Deadline::After(absl::ZeroDuration())));
}

TEST(Stream, RunAndWaitServesManyThreads) {
  const auto device = Cpu({.threads = 2});
  int64_t runs = 0;  // not atomic: the stream keeps the jobs apart
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) device->stream().Run([&] { ++runs; });
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(runs, 8 * 200);
}

TEST(CpuDevice, FlushesDenormalNumbersToZero) {
  TestDevice device;
  const Tensor denormal = device.Operand(Shape{1}, {0x1p-130F});
  const Tensor sum = device.Result(Shape{1});
  ASSERT_OK(device.Run([&](Stream& stream) {
    return device.ops().elementwise().Add(stream, denormal, denormal, sum);
  }));
  EXPECT_EQ(*sum.f32(), 0.0F);
}

}  // namespace
}  // namespace stagecoach::kernels::device_test
