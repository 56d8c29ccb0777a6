#include "kernels/communicator.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/device.h"
#include "tests/kernels/cuda/backend_fixture.h"
#include "tests/testing/cuda/stand_in.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::kernels::communicator_test {
namespace {

namespace cuda = ::stagecoach::testing::cuda;
using ::stagecoach::testing::StatusIs;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::Duration kAMinute = absl::Minutes(1);
constexpr absl::Duration kAMoment = absl::Milliseconds(50);

// Runs `work(rank)` for all ranks concurrently.
std::vector<absl::Status> OnAllRanks(int ranks, const std::function<absl::Status(int)>& work) {
  std::vector<absl::Status> statuses(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] { statuses[static_cast<size_t>(rank)] = work(rank); });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

// Returns the first error, so that it is reported.
absl::Status FirstError(const std::vector<absl::Status>& statuses) {
  absl::Status first;
  for (const absl::Status& status : statuses) first.Update(status);
  return first;
}

std::vector<int> AllBut(int rank, int ranks) {
  std::vector<int> others;
  for (int other = 0; other < ranks; ++other) {
    if (other != rank) others.push_back(other);
  }
  return others;
}

// A group of ranks, one on each GPU, which are all peers of each other.
struct Group {
  // Communicators are destroyed before their devices.
  std::vector<std::unique_ptr<Device>> devices;
  std::vector<std::unique_ptr<Communicator>> communicators;

  int ranks() const { return static_cast<int>(devices.size()); }
  Device& device(int rank) { return *devices[static_cast<size_t>(rank)]; }
  Communicator& communicator(int rank) { return *communicators[static_cast<size_t>(rank)]; }

  absl::Status Connect(const std::string& id, absl::Duration deadline, int max_groups) {
    communicators.resize(devices.size());
    return FirstError(OnAllRanks(ranks(), [&](int rank) -> absl::Status {
      ASSIGN_OR_RETURN(communicators[static_cast<size_t>(rank)],
                       device(rank).CreateCommunicator({.id = id,
                                                        .ranks = ranks(),
                                                        .rank = rank,
                                                        .peers = AllBut(rank, ranks()),
                                                        .deadline = deadline,
                                                        .max_groups = max_groups}));
      return absl::OkStatus();
    }));
  }
};

absl::Status Finish(Device& device, absl::Duration timeout, Communicator& communicator) {
  return RunJob(device, [&](Stream& stream) {
    return stream.Finish(base::Deadline::After(timeout), [&] { return communicator.Poll(); });
  });
}

class CudaCommunicatorTest : public CudaBackendTest {
 protected:
  void SetUp() override {
    CudaBackendTest::SetUp();
    if (NumGpus() < 2) GTEST_SKIP() << "needs 2 GPUs";
  }
  static Group CreateDevices(int ranks) {
    Group group;
    for (int rank = 0; rank < ranks; ++rank) group.devices.push_back(CreateDevice(rank));
    return group;
  }
  static std::string NewId() {
    absl::StatusOr<std::string> id = Backend().NewCommunicatorId();
    EXPECT_OK(id);
    return *id;
  }
  static Group CreateGroup(int ranks, int max_groups = 4) {
    Group group = CreateDevices(ranks);
    EXPECT_OK(group.Connect(NewId(), kAMinute, max_groups));
    return group;
  }
};

// Passes each rank's data on to the next one, in `rounds` rounds.
absl::Status PassAround(Group& group, int rank, int rounds, const Buffer& have,
                        const Buffer& arrives) {
  Communicator& communicator = group.communicator(rank);
  const int next = (rank + 1) % group.ranks();
  const int last = (rank + group.ranks() - 1) % group.ranks();
  return RunJob(group.device(rank), [&](Stream& stream) -> absl::Status {
    for (int round = 0; round < rounds; ++round) {
      RETURN_IF_ERROR(communicator.Send(next, have.data(), have.bytes()));
      RETURN_IF_ERROR(communicator.Receive(last, arrives.data(), arrives.bytes()));
      ASSIGN_OR_RETURN(const Communicator::Group launched, communicator.Launch());
      RETURN_IF_ERROR(communicator.ComeAfter(launched));
      RETURN_IF_ERROR(stream.Copy(have.data(), arrives.data(), have.bytes()));
    }
    return absl::OkStatus();
  });
}

// The copies of a round run between its transfers and those of the next.
TEST_F(CudaCommunicatorTest, PassesMessagesAroundARing) {
  constexpr int kRounds = 6;
  const int ranks = std::min(NumGpus(), 4);
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    StartMachine({.seed = seed, .delay = 0.8});
    Group group = CreateGroup(ranks, kRounds);
    const auto statuses = OnAllRanks(ranks, [&](int rank) -> absl::Status {
      Device& device = group.device(rank);
      ASSIGN_OR_RETURN(const Buffer have, device.Allocate(12));
      ASSIGN_OR_RETURN(const Buffer arrives, device.Allocate(12));
      RETURN_IF_ERROR(Write(device, have, {rank, 10 * rank, 100 * rank}));
      RETURN_IF_ERROR(PassAround(group, rank, kRounds, have, arrives));
      RETURN_IF_ERROR(Finish(device, kAMinute, group.communicator(rank)));
      ASSIGN_OR_RETURN(const std::vector<int32_t> values, Read(device, have));
      const int from = (rank + ranks - kRounds % ranks) % ranks;
      EXPECT_THAT(values, ElementsAre(from, 10 * from, 100 * from)) << "rank " << rank;
      return absl::OkStatus();
    });
    EXPECT_THAT(statuses, Each(absl::OkStatus())) << "seed " << seed;
  }
}

TEST_F(CudaCommunicatorTest, KeepsTheOrderOfTransfersWithOnePeerInAGroup) {
  Group group = CreateGroup(2);
  ASSERT_OK_AND_ASSIGN(const Buffer from, group.device(0).Allocate(8));
  ASSERT_OK_AND_ASSIGN(const Buffer to, group.device(1).Allocate(8));
  ASSERT_OK(Write(group.device(0), from, {1, 2}));
  const auto transfer = [&](int rank) {
    Communicator& communicator = group.communicator(rank);
    return RunJob(group.device(rank), [&](Stream&) -> absl::Status {
      for (const int64_t at : {4, 0}) {
        RETURN_IF_ERROR(rank == 0 ? communicator.Send(1, from.data() + at, 4)
                                  : communicator.Receive(0, to.data() + 4 - at, 4));
      }
      ASSIGN_OR_RETURN(const Communicator::Group launched, communicator.Launch());
      return communicator.ComeAfter(launched);
    });
  };
  EXPECT_OK(FirstError(OnAllRanks(2, transfer)));
  ASSERT_OK_AND_ASSIGN(const std::vector<int32_t> values, Read(group.device(1), to));
  EXPECT_THAT(values, ElementsAre(2, 1));
  ASSERT_OK(FinishStream(group.device(0)));
}

// Runs on both ranks concurrently, so that the exchange is one group of each.
absl::Status Exchange(Group& group, int rank, const Buffer& out, const Buffer& in) {
  Communicator& communicator = group.communicator(rank);
  RETURN_IF_ERROR(RunJob(group.device(rank), [&](Stream&) -> absl::Status {
    RETURN_IF_ERROR(communicator.Send(1 - rank, out.data(), out.bytes()));
    RETURN_IF_ERROR(communicator.Receive(1 - rank, in.data(), in.bytes()));
    ASSIGN_OR_RETURN(const Communicator::Group launched, communicator.Launch());
    return communicator.ComeAfter(launched);
  }));
  return FinishStream(group.device(rank));
}

TEST_F(CudaCommunicatorTest, TellsWhichGroupsAreDoneAndWhen) {
  constexpr int kGroups = 3;
  Group group = CreateGroup(2, kGroups);
  const auto before = std::chrono::steady_clock::now();
  EXPECT_OK(FirstError(OnAllRanks(2, [&](int rank) -> absl::Status {
    ASSIGN_OR_RETURN(const Buffer out, group.device(rank).Allocate(4));
    ASSIGN_OR_RETURN(const Buffer in, group.device(rank).Allocate(4));
    EXPECT_EQ(group.communicator(rank).groups_done(), 0);
    for (int i = 0; i < kGroups; ++i) {
      RETURN_IF_ERROR(Exchange(group, rank, out, in));
      EXPECT_EQ(group.communicator(rank).groups_done(), i + 1);
    }
    return absl::OkStatus();
  })));
  const auto after = std::chrono::steady_clock::now();
  // The two clocks are paired to within some ten microseconds, on a quiet machine.
  constexpr std::chrono::seconds kSlack{1};
  auto last = before - kSlack;
  for (Communicator::Group i = 0; i < kGroups; ++i) {
    ASSERT_OK_AND_ASSIGN(const auto done, group.communicator(0).DoneAt(i));
    EXPECT_GE(done, last);
    last = done;
  }
  EXPECT_LE(last, after + kSlack);
}

TEST_F(CudaCommunicatorTest, CountsGroupsFromZeroAfterRestart) {
  Group group = CreateGroup(2, /*max_groups=*/1);
  EXPECT_OK(FirstError(OnAllRanks(2, [&](int rank) -> absl::Status {
    ASSIGN_OR_RETURN(const Buffer out, group.device(rank).Allocate(4));
    ASSIGN_OR_RETURN(const Buffer in, group.device(rank).Allocate(4));
    for (int step = 0; step < 3; ++step) {
      RETURN_IF_ERROR(Exchange(group, rank, out, in));
      EXPECT_EQ(group.communicator(rank).groups_done(), 1);
      group.communicator(rank).Restart();
      EXPECT_EQ(group.communicator(rank).groups_done(), 0);
    }
    return absl::OkStatus();
  })));
}

TEST_F(CudaCommunicatorTest, RefusesMoreGroupsThanWereAnnounced) {
  Group group = CreateGroup(1, /*max_groups=*/1);
  absl::Status first, second;
  group.device(0).stream().Run([&] {
    first = group.communicator(0).Launch().status();
    second = group.communicator(0).Launch().status();
  });
  EXPECT_OK(first);
  EXPECT_THAT(second, StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("max_groups")));
}

TEST_F(CudaCommunicatorTest, RefusesAPeerThatIsNotThere) {
  Group group = CreateGroup(2);
  for (const int peer : {-1, 0, 2}) {
    absl::Status send, receive;
    group.device(0).stream().Run([&] {
      send = group.communicator(0).Send(peer, nullptr, 0);
      receive = group.communicator(0).Receive(peer, nullptr, 0);
    });
    EXPECT_THAT(send, StatusIs(absl::StatusCode::kInvalidArgument)) << peer;
    EXPECT_THAT(receive, StatusIs(absl::StatusCode::kInvalidArgument)) << peer;
  }
}

TEST_F(CudaCommunicatorTest, RefusesOptionsThatCannotBe) {
  const auto device = CreateDevice();
  const std::string id = NewId();
  for (const CommunicatorOptions& options :
       {CommunicatorOptions{.id = ""}, CommunicatorOptions{.id = id + "x"},
        CommunicatorOptions{.id = id, .ranks = 0}, CommunicatorOptions{.id = id, .rank = 1},
        CommunicatorOptions{.id = id, .rank = -1},
        CommunicatorOptions{.id = id, .ranks = 2, .peers = {0}},
        CommunicatorOptions{.id = id, .ranks = 2, .peers = {2}},
        CommunicatorOptions{.id = id, .ranks = 2, .peers = {-1}},
        CommunicatorOptions{.id = id, .ranks = 2, .peers = {1, 1}},
        CommunicatorOptions{.id = id, .max_groups = 0}}) {
    EXPECT_THAT(device->CreateCommunicator(options),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("communicator")));
  }
}

TEST_F(CudaCommunicatorTest, GivesEachGroupAnIdOfItsOwn) { EXPECT_NE(NewId(), NewId()); }

TEST_F(CudaCommunicatorTest, DoesNotWaitForARankThatNeverComes) {
  const auto device = CreateDevice();
  EXPECT_THAT(
      device->CreateCommunicator(
          {.id = NewId(), .ranks = 2, .rank = 1, .peers = {0}, .deadline = kAMoment}),
      StatusIs(absl::StatusCode::kDeadlineExceeded,
               AllOf(HasSubstr("rank 1 of 2"), HasSubstr("not all ranks joined the group"))));
}

TEST_F(CudaCommunicatorTest, DoesNotWaitForAPeerThatDoesNotConnect) {
  Group group = CreateDevices(2);
  const std::string id = NewId();
  const auto statuses = OnAllRanks(2, [&](int rank) {
    // Rank 1 does not know that it is rank 0's peer.
    return group.device(rank)
        .CreateCommunicator({.id = id,
                             .ranks = 2,
                             .rank = rank,
                             .peers = rank == 0 ? std::vector<int>{1} : std::vector<int>{},
                             .deadline = absl::Seconds(1)})
        .status();
  });
  EXPECT_THAT(statuses[0], StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST_F(CudaCommunicatorTest, RefusesTwoRanksOnOneGpu) {
  Group group;
  for (int rank = 0; rank < 2; ++rank) group.devices.push_back(CreateDevice(0));
  EXPECT_THAT(group.Connect(NewId(), kAMinute, 1).message(), HasSubstr("Duplicate GPU"));
}

// Rank 0 waits for a message that rank 1 does not send.
absl::Status WaitInVain(Group& group, const Buffer& to) {
  return RunJob(group.device(0), [&](Stream&) -> absl::Status {
    RETURN_IF_ERROR(group.communicator(0).Receive(1, to.data(), to.bytes()));
    ASSIGN_OR_RETURN(const Communicator::Group launched, group.communicator(0).Launch());
    return group.communicator(0).ComeAfter(launched);
  });
}

TEST_F(CudaCommunicatorTest, AbortEndsATransferThatWaits) {
  Group group = CreateGroup(2);
  ASSERT_OK_AND_ASSIGN(const Buffer to, group.device(0).Allocate(4));
  ASSERT_OK(WaitInVain(group, to));
  ASSERT_THAT(Finish(group.device(0), kAMoment, group.communicator(0)),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  group.communicator(0).Abort();
  EXPECT_OK(FinishStream(group.device(0)));
}

TEST_F(CudaCommunicatorTest, DoesNotCountATransferThatWasCutShort) {
  Group group = CreateGroup(2);
  ASSERT_OK_AND_ASSIGN(const Buffer to, group.device(0).Allocate(4));
  ASSERT_OK(WaitInVain(group, to));
  group.communicator(0).Abort();
  ASSERT_OK(FinishStream(group.device(0)));
  EXPECT_EQ(group.communicator(0).groups_done(), 0);
}

TEST_F(CudaCommunicatorTest, RefusesEveryCallAfterAbort) {
  Group group = CreateGroup(2);
  ASSERT_OK_AND_ASSIGN(const Buffer to, group.device(0).Allocate(4));
  ASSERT_OK(WaitInVain(group, to));
  Communicator& communicator = group.communicator(0);
  communicator.Abort();
  std::vector<absl::Status> statuses;
  group.device(0).stream().Run([&] {
    statuses = {communicator.Send(1, to.data(), 4), communicator.Receive(1, to.data(), 4),
                communicator.Launch().status(), communicator.ComeAfter(0), communicator.Poll()};
  });
  EXPECT_THAT(statuses, Each(StatusIs(absl::StatusCode::kCancelled, HasSubstr("rank 0 of 2"))));
}

TEST_F(CudaCommunicatorTest, ReportsThatAPeerHasDied) {
  if (!cuda::IsSimulated()) GTEST_SKIP() << "nothing fails on purpose";
  Group group = CreateGroup(2);
  ASSERT_OK_AND_ASSIGN(const Buffer to, group.device(0).Allocate(4));
  ASSERT_OK(WaitInVain(group, to));
  cuda::FailCommunicator(/*rank=*/0);
  EXPECT_THAT(Finish(group.device(0), kAMinute, group.communicator(0)),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 0 of 2")));
  // The device could not shut down with transfers still on their way.
  group.communicator(0).Abort();
}

TEST_F(CudaCommunicatorTest, EndsWithoutWaitingAfterItsPeerHasDied) {
  if (!cuda::IsSimulated()) GTEST_SKIP() << "nothing fails on purpose";
  Group group = CreateGroup(2);
  ASSERT_OK_AND_ASSIGN(const Buffer to, group.device(0).Allocate(4));
  ASSERT_OK(WaitInVain(group, to));
  cuda::FailCommunicator(/*rank=*/0);
  group.communicators.clear();
  EXPECT_OK(FinishStream(group.device(0)));
}

// Two ranks connect, exchange something and disconnect. Deadlines are `patience` away.
absl::Status MeetOnce(Group& group, const std::string& id, absl::Duration patience) {
  RETURN_IF_ERROR(group.Connect(id, patience, 1));
  return FirstError(OnAllRanks(2, [&](int rank) -> absl::Status {
    ASSIGN_OR_RETURN(const Buffer out, group.device(rank).Allocate(4));
    ASSIGN_OR_RETURN(const Buffer in, group.device(rank).Allocate(4));
    Communicator& communicator = group.communicator(rank);
    const absl::Status launched = RunJob(group.device(rank), [&](Stream&) -> absl::Status {
      RETURN_IF_ERROR(communicator.Send(1 - rank, out.data(), 4));
      RETURN_IF_ERROR(communicator.Receive(1 - rank, in.data(), 4));
      ASSIGN_OR_RETURN(const Communicator::Group last, communicator.Launch());
      return communicator.ComeAfter(last);
    });
    const absl::Status finished =
        launched.ok() ? Finish(group.device(rank), patience, communicator) : launched;
    // Memory is freed only when no transfer can reach it any more.
    if (!finished.ok()) communicator.Abort();
    return finished;
  }));
}

// If one rank fails, the other one must not wait for it forever, and nothing may be left behind.
TEST_F(CudaCommunicatorTest, EndsCleanlyWhicheverCallFails) {
  if (!cuda::IsSimulated()) GTEST_SKIP() << "nothing fails on purpose";
  cuda::StandInOptions options{.gpus = 2};
  int64_t calls = 0;
  {
    StartMachine(options);
    Group group = CreateDevices(2);
    const int64_t before = cuda::calls();
    ASSERT_OK(MeetOnce(group, NewId(), kAMinute));
    calls = cuda::calls() - before;
  }
  int failures = 0;
  for (int64_t call = 1; call <= calls; ++call) {
    StartMachine(options);
    {
      Group group = CreateDevices(2);
      const std::string id = NewId();
      cuda::FailCall(call);
      const absl::Status status = MeetOnce(group, id, kAMoment);
      if (cuda::failed_call().empty()) {
        // Threads do not take turns in the same way each time: there may be fewer calls. Then none
        // of those that release the devices is to fail instead.
        cuda::FailCall(0);
      } else {
        ++failures;
        // Releases work whichever GPU is the current one.
        EXPECT_TRUE(!status.ok() || cuda::failed_call() == "cudaSetDevice")
            << cuda::failed_call() << " failed unnoticed";
      }
    }
    ASSERT_TRUE(cuda::NothingIsLeft())
        << cuda::live().total() << " objects left by a failure of " << cuda::failed_call();
  }
  EXPECT_GT(failures, 20);
}

}  // namespace
}  // namespace stagecoach::kernels::communicator_test
