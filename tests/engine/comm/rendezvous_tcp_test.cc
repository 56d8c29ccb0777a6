#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "base/random.h"
#include "engine/comm/rendezvous.h"
#include "engine/comm/socket.h"
#include "engine/comm/wire.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/comm/rendezvous_fixture.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using base::Deadline;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::StatusIs;

class TcpRendezvousTest : public RendezvousTest {
 protected:
  TcpRendezvousTest() : RendezvousTest(Place::kTcp) {}
};

// Ranks 0 to 3 meet; `victim` is killed; the others' next gather must fail with `message`.
void ExpectDeathIsNoticed(
    const std::function<absl::StatusOr<std::unique_ptr<Rendezvous>>(int)>& connect, int victim,
    const std::string& message) {
  const Signal together;
  std::vector<Process> processes;
  for (int rank = 0; rank < 4; ++rank) {
    processes.emplace_back([&, rank] {
      const auto rendezvous = connect(rank);
      ASSERT_OK((*rendezvous)->Barrier(Soon()));
      together.Send();
      if (rank == victim) pause();
      EXPECT_THAT((*rendezvous)->Barrier(Deadline::Never()),
                  StatusIs(absl::StatusCode::kUnavailable, message));
    });
  }
  for (int rank = 0; rank < 4; ++rank) together.Await();
  processes[static_cast<size_t>(victim)].Kill();
  for (int rank = 0; rank < 4; ++rank) {
    if (rank != victim) {
      EXPECT_TRUE(processes[static_cast<size_t>(rank)].Succeeds());
    }
  }
}

TEST_F(TcpRendezvousTest, EndsAllWaitsWhenRankZeroIsKilled) {
  ExpectDeathIsNoticed([this](int rank) { return Connect(rank, 4); }, 0, "rank 0 was killed");
}

TEST_F(TcpRendezvousTest, EndsAllWaitsWhenAnyRankIsKilled) {
  ExpectDeathIsNoticed([this](int rank) { return Connect(rank, 4); }, 2,
                       "rank 2 was killed, or its connection was lost");
}

TEST_F(TcpRendezvousTest, ThoseWhoLookSeeThatARankWasKilled) {
  const Signal together, killed;
  Process zero([&] {
    const auto rendezvous = Connect(0, 2);
    EXPECT_OK((*rendezvous)->Barrier(Soon()));
    EXPECT_OK((*rendezvous)->CheckOthers(Soon()));
    together.Send();
    killed.Await();
    // The end of its connection arrives soon, but at no known moment.
    EXPECT_THAT((*rendezvous)->Get("key", Deadline::Never()),
                StatusIs(absl::StatusCode::kUnavailable));
    EXPECT_THAT((*rendezvous)->CheckOthers(Soon()),
                StatusIs(absl::StatusCode::kUnavailable, "rank 1 was killed"));
  });
  Process one([&] {
    const auto rendezvous = Connect(1, 2);
    EXPECT_OK((*rendezvous)->Barrier(Soon()));
    together.Send();
    pause();
  });
  together.Await();
  together.Await();
  one.Kill();
  killed.Send();
  EXPECT_TRUE(zero.Succeeds());
}

TEST_F(TcpRendezvousTest, NamesRankZeroWhenItDoesNotCome) {
  EXPECT_THAT(ConnectRendezvous(LaunchOf(1, 2), kShort),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr(place_), HasSubstr("rank 0 does not answer"))));
}

TEST_F(TcpRendezvousTest, GivesNoticeThatRankZeroIsLate) {
  std::vector<int> missing;
  LateNotice late(base::Deadline::After(absl::ZeroDuration()),
                  [&](const std::vector<int>& ranks) { missing = ranks; });
  EXPECT_THAT(ConnectRendezvous(LaunchOf(1, 2), kShort, &late),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(missing, ::testing::ElementsAre(0));
}

TEST_F(TcpRendezvousTest, TellsThoseThatComeLateOfAFailure) {
  ASSERT_OK_AND_ASSIGN(std::unique_ptr<Rendezvous> zero, Connect(0, 2));
  zero->Fail(absl::DataLossError("the disk is on fire"), Soon());
  std::thread leaving([&] { zero.reset(); });
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Rendezvous> one, Connect(1, 2));
  EXPECT_THAT(one->Barrier(Soon()),
              StatusIs(absl::StatusCode::kAborted,
                       ::testing::Eq("rank 0 has failed: the disk is on fire")));
  leaving.join();
}

TEST_F(TcpRendezvousTest, GivesUpOnAServerThatSaysNothing) {
  ASSERT_OK_AND_ASSIGN(const Address address, ParseAddress(place_.substr(6)));
  ASSERT_OK_AND_ASSIGN(const Descriptor mute, Listen(address));
  EXPECT_THAT(ConnectRendezvous(LaunchOf(1, 2), kShort),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST_F(TcpRendezvousTest, RefusesAnotherProgram) {
  ASSERT_OK_AND_ASSIGN(const Address address, ParseAddress(place_.substr(6)));
  ASSERT_OK_AND_ASSIGN(const Descriptor other, Listen(address));
  std::thread answering([&] {
    pollfd called = {.fd = other.get(), .events = POLLIN};
    ASSERT_EQ(poll(&called, 1, -1), 1);
    const Descriptor caller(accept(other.get(), nullptr, nullptr));
    EXPECT_OK(SendAll(caller, "HTTP/1.1 400 Bad Request\r\n\r\n", Soon()));
  });
  EXPECT_THAT(Connect(1, 2), StatusIs(absl::StatusCode::kFailedPrecondition,
                                      AllOf(HasSubstr(place_), HasSubstr("another program"))));
  answering.join();
}

TEST_F(TcpRendezvousTest, RefusesAPortThatIsTaken) {
  ASSERT_OK_AND_ASSIGN(const Address address, ParseAddress(place_.substr(6)));
  ASSERT_OK_AND_ASSIGN(const Descriptor taken, Listen(address));
  EXPECT_THAT(Connect(0, 2), StatusIs(absl::StatusCode::kFailedPrecondition,
                                      AllOf(HasSubstr(place_), HasSubstr("cannot listen there"))));
}

TEST_F(TcpRendezvousTest, RefusesRanksOfAnotherLaunch) {
  auto zero = Connect(0, 2);
  ASSERT_OK(zero);
  EXPECT_THAT(ConnectRendezvous(LaunchOf(1, 2, "other"), kLong),
              StatusIs(absl::StatusCode::kFailedPrecondition, "\"other\""));
  EXPECT_THAT(ConnectRendezvous(LaunchOf(1, 3), kLong),
              StatusIs(absl::StatusCode::kFailedPrecondition, "launch of 2"));
}

// Returns bytes of many kinds, from none of the protocol's to nearly all.
std::string Garbage(const base::RandomStream& random) {
  std::string bytes;
  if (random.Below(0, 4) > 0) bytes = std::string(kGreeting);
  if (random.Below(1, 2) > 0) {
    bytes += Encode({.kind = Request::Kind::kJoin, .rank = 1, .ranks = 3, .key = "job"});
  }
  if (random.Below(2, 2) > 0) {
    std::string request = Encode({.kind = Request::Kind::kSet, .key = "key", .value = "garbage"});
    request[random.Below(3, request.size())] ^= static_cast<char>(1 + random.Below(4, 255));
    bytes += request;
  }
  const uint64_t noise = random.Below(5, 100);
  for (uint64_t i = 0; i < noise; ++i) bytes.push_back(static_cast<char>(random.Below(6 + i, 256)));
  return bytes.substr(0, random.Below(200, bytes.size() + 1));
}

TEST_F(TcpRendezvousTest, IsNotHarmedByGarbage) {
  ASSERT_OK_AND_ASSIGN(const Address address, ParseAddress(place_.substr(6)));
  std::vector<Descriptor> open;
  ForEachRank(2, [&](Rendezvous& rendezvous) {
    if (rendezvous.rank() == 1) {
      for (uint64_t i = 0; i < 300; ++i) {
        absl::StatusOr<Descriptor> socket = engine::Connect(address, Soon());
        ASSERT_OK(socket);
        SendAll(*socket, Garbage(base::RandomStream(7, i)), Soon()).IgnoreError();
        // Some strangers stay connected and silent.
        if (i % 10 == 0) open.push_back(*std::move(socket));
      }
    }
    EXPECT_OK(rendezvous.Barrier(Soon()));
  });
}

TEST_F(TcpRendezvousTest, ServesANewRankWhileStrangersHoldTheDoor) {
  ASSERT_OK_AND_ASSIGN(const Address address, ParseAddress(place_.substr(6)));
  auto zero = Connect(0, 2);
  ASSERT_OK(zero);
  std::vector<Descriptor> strangers;
  for (int i = 0; i < 100; ++i) {
    ASSERT_OK_AND_ASSIGN(strangers.emplace_back(), engine::Connect(address, Soon()));
  }
  EXPECT_OK(Connect(1, 2));
}

}  // namespace
}  // namespace stagecoach::engine
