#include "engine/launch/rendezvous.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/random.h"
#include "engine/launch/socket.h"
#include "engine/launch/wire.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/free_port.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using base::Deadline;
using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::FreePort;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::StatusIs;

// Long enough never to pass where all goes well; and for what must not come.
Deadline Soon() { return Deadline::After(absl::Seconds(60)); }
Deadline Short() { return Deadline::After(absl::Milliseconds(100)); }

std::string NewFolder() {
  std::string name = ::testing::TempDir() + "/rendezvousXXXXXX";
  STAGECOACH_CHECK(mkdtemp(name.data()) != nullptr, "mkdtemp failed");
  return name;
}

// A rank that is a process. What it expects in vain makes it fail. To be started while this process
// has one thread.
class Process {
 public:
  explicit Process(const std::function<void()>& body) : pid_(fork()) {
    STAGECOACH_CHECK(pid_ >= 0, "fork failed");
    if (pid_ != 0) return;
    alarm(100);
    body();
    std::fflush(nullptr);
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  Process(Process&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}
  Process& operator=(Process&&) = delete;
  ~Process() {
    if (pid_ > 0) Kill();
  }

  void Kill() {
    kill(pid_, SIGKILL);
    waitpid(std::exchange(pid_, -1), nullptr, 0);
  }
  bool Succeeds() {
    int status = -1;
    waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

 private:
  pid_t pid_;
};

// A pipe by which a process says that it has come somewhere.
class Signal {
 public:
  Signal() { STAGECOACH_CHECK(pipe(ends_) == 0, "pipe failed"); }
  ~Signal() {
    close(ends_[0]);
    close(ends_[1]);
  }
  void Send() const { STAGECOACH_CHECK(write(ends_[1], "x", 1) == 1, "write failed"); }
  void Await() const {
    char byte;
    STAGECOACH_CHECK(read(ends_[0], &byte, 1) == 1, "read failed");
  }

 private:
  int ends_[2];
};

enum class Place { kFile, kTcp };

class RendezvousTest : public ::testing::TestWithParam<Place> {
 protected:
  explicit RendezvousTest(Place place)
      : folder_(NewFolder()),
        place_(place == Place::kFile ? "file:" + folder_
                                     : absl::StrCat("tcp://127.0.0.1:", FreePort())) {}
  RendezvousTest() : RendezvousTest(GetParam()) {}
  ~RendezvousTest() override { std::filesystem::remove_all(folder_); }

  Launch LaunchOf(int rank, int ranks, const std::string& id = "job") const {
    return {.rank = rank,
            .ranks = ranks,
            .local_rank = rank,
            .id = id,
            .rendezvous = place_,
            .launcher = "test"};
  }

  absl::StatusOr<std::unique_ptr<Rendezvous>> Connect(int rank, int ranks) const {
    return ConnectRendezvous(LaunchOf(rank, ranks), Soon());
  }

  // A thread per rank.
  void ForEachRank(int ranks, const std::function<void(Rendezvous&)>& body) const {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([this, rank, ranks, &body] {
        auto rendezvous = Connect(rank, ranks);
        ASSERT_OK(rendezvous);
        body(**rendezvous);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  std::string folder_;
  std::string place_;
};

INSTANTIATE_TEST_SUITE_P(Places, RendezvousTest, ::testing::Values(Place::kFile, Place::kTcp),
                         [](const auto& test) {
                           return test.param == Place::kFile ? "File" : "Tcp";
                         });

class TcpRendezvousTest : public RendezvousTest {
 protected:
  TcpRendezvousTest() : RendezvousTest(Place::kTcp) {}
};
class FileRendezvousTest : public RendezvousTest {
 protected:
  FileRendezvousTest() : RendezvousTest(Place::kFile) {}
};

TEST_P(RendezvousTest, GathersEveryRanksTextInOrderOfRank) {
  ForEachRank(4, [](Rendezvous& rendezvous) {
    EXPECT_THAT(rendezvous.AllGather(absl::StrCat("of ", rendezvous.rank()), Soon()).value(),
                ElementsAre("of 0", "of 1", "of 2", "of 3"));
  });
}

TEST_P(RendezvousTest, GathersAgainAndAgain) {
  ForEachRank(4, [](Rendezvous& rendezvous) {
    for (int i = 0; i < 50; ++i) {
      const auto text = [i](int rank) { return absl::StrCat(i * rank * rank); };
      ASSERT_THAT(rendezvous.AllGather(text(rendezvous.rank()), Soon()).value(),
                  ElementsAre(text(0), text(1), text(2), text(3)));
    }
  });
}

TEST_P(RendezvousTest, ServesProcesses) {
  std::vector<Process> processes;
  for (int rank = 0; rank < 4; ++rank) {
    processes.emplace_back([this, rank] {
      auto rendezvous = Connect(rank, 4);
      ASSERT_OK(rendezvous);
      if (rank == 3) {
        EXPECT_OK((*rendezvous)->Set("id", "made by rank 3", Soon()));
      }
      EXPECT_EQ((*rendezvous)->Get("id", Soon()).value(), "made by rank 3");
      EXPECT_THAT((*rendezvous)->AllGather(absl::StrCat(rank), Soon()).value(),
                  ElementsAre("0", "1", "2", "3"));
    });
  }
  for (Process& process : processes) EXPECT_TRUE(process.Succeeds());
}

TEST_P(RendezvousTest, GetWaitsUntilTheKeyIsSet) {
  ForEachRank(2, [](Rendezvous& rendezvous) {
    if (rendezvous.rank() == 1) {
      EXPECT_EQ(rendezvous.Get("key", Soon()).value(), "value");
    } else {
      EXPECT_THAT(rendezvous.Get("key", Short()),
                  StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("\"key\"")));
      EXPECT_OK(rendezvous.Set("key", "value", Soon()));
    }
  });
}

TEST_P(RendezvousTest, SetsAKeyOnce) {
  ForEachRank(2, [](Rendezvous& rendezvous) {
    if (rendezvous.rank() == 0) {
      EXPECT_OK(rendezvous.Set("key", "first", Soon()));
    }
    EXPECT_OK(rendezvous.Barrier(Soon()));
    EXPECT_THAT(rendezvous.Set("key", "second", Soon()),
                StatusIs(absl::StatusCode::kAlreadyExists));
    EXPECT_EQ(rendezvous.Get("key", Soon()).value(), "first");
  });
}

TEST_P(RendezvousTest, HoldsAnyBytesUpToTheLimit) {
  std::vector<std::string> values = {"", std::string(1, '\0'), "\xff\n:7:"};
  values.emplace_back(Rendezvous::kMaxValueBytes, '\x80');
  ForEachRank(2, [&](Rendezvous& rendezvous) {
    for (size_t i = 0; i < values.size(); ++i) {
      const std::string key = absl::StrCat("key ", i, "\n\xfe");
      if (rendezvous.rank() == 1) {
        EXPECT_OK(rendezvous.Set(key, values[i], Soon()));
      }
      EXPECT_TRUE(rendezvous.Get(key, Soon()).value() == values[i]);
    }
  });
}

TEST_P(RendezvousTest, RefusesWhatIsBeyondItsLimits) {
  ForEachRank(1, [](Rendezvous& rendezvous) {
    const std::string long_key(Rendezvous::kMaxKeyBytes + 1, 'k');
    const std::string long_value(Rendezvous::kMaxValueBytes + 1, 'v');
    for (const std::string& key :
         {std::string(), long_key, std::string("gather/0/0"), std::string("failed")}) {
      EXPECT_THAT(rendezvous.Set(key, "", Soon()), StatusIs(absl::StatusCode::kInvalidArgument));
      EXPECT_THAT(rendezvous.Get(key, Soon()), StatusIs(absl::StatusCode::kInvalidArgument));
    }
    EXPECT_THAT(rendezvous.Set("key", long_value, Soon()),
                StatusIs(absl::StatusCode::kInvalidArgument));
  });
}

TEST_P(RendezvousTest, NamesAllRanksThatDoNotCome) {
  for (int absentees = 1; absentees <= 2; ++absentees) {
    auto rendezvous = ConnectRendezvous(LaunchOf(0, 4, absl::StrCat(absentees)), Soon());
    ASSERT_OK(rendezvous);
    auto other = ConnectRendezvous(LaunchOf(2, 4, absl::StrCat(absentees)), Soon());
    ASSERT_OK(other);
    std::unique_ptr<Rendezvous> third;
    if (absentees == 1) {
      ASSERT_OK_AND_ASSIGN(third, ConnectRendezvous(LaunchOf(3, 4, "1"), Soon()));
      EXPECT_THAT(third->Barrier(Short()), StatusIs(absl::StatusCode::kDeadlineExceeded));
    }
    EXPECT_THAT((*other)->Barrier(Short()), StatusIs(absl::StatusCode::kDeadlineExceeded));
    EXPECT_THAT((*rendezvous)->Barrier(Short()),
                StatusIs(absl::StatusCode::kDeadlineExceeded,
                         HasSubstr(absentees == 1 ? "rank 1 of 4" : "ranks 1, 3 of 4")));
    third.reset();
    other->reset();
  }
}

TEST_P(RendezvousTest, TellsThatARankHasLeft) {
  auto zero = Connect(0, 2);
  ASSERT_OK(zero);
  ASSERT_OK(Connect(1, 2));
  EXPECT_THAT((*zero)->Barrier(Soon()),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 1 has left")));
}

TEST_P(RendezvousTest, AFailureEndsTheWaitsOfAll) {
  for (const int failing : {0, 2}) {
    ForEachRank(3, [failing](Rendezvous& rendezvous) {
      ASSERT_OK(rendezvous.Barrier(Soon()));
      if (rendezvous.rank() == failing) {
        rendezvous.Fail(absl::DataLossError("the disk is on fire"), Soon());
        return;
      }
      const auto fails =
          StatusIs(absl::StatusCode::kAborted,
                   absl::StrCat("rank ", failing, " has failed: the disk is on fire"));
      EXPECT_THAT(rendezvous.Get("key", Deadline::Never()), fails);
      EXPECT_THAT(rendezvous.Barrier(Deadline::Never()), fails);
    });
  }
}

TEST_P(RendezvousTest, TellsTheFirstFailureToThoseWhoLook) {
  ForEachRank(3, [](Rendezvous& rendezvous) {
    EXPECT_OK(rendezvous.CheckOthers(Soon()));
    ASSERT_OK(rendezvous.Barrier(Soon()));
    if (rendezvous.rank() == 1) {
      rendezvous.Fail(absl::DataLossError("first"), Soon());
      EXPECT_OK(rendezvous.CheckOthers(Soon())) << "its own failure";
    }
    const auto fails = StatusIs(absl::StatusCode::kAborted, "rank 1 has failed: first");
    if (rendezvous.rank() == 2) {
      EXPECT_THAT(rendezvous.Get("key", Soon()), fails);
      rendezvous.Fail(absl::DataLossError("second"), Soon());
    }
    if (rendezvous.rank() != 1) {
      EXPECT_THAT(rendezvous.Get("key", Soon()), fails);
      EXPECT_THAT(rendezvous.CheckOthers(Soon()), fails);
    }
  });
}

TEST_P(RendezvousTest, WhoHasDoneItsPartHasNotFailed) {
  ForEachRank(2, [](Rendezvous& rendezvous) {
    ASSERT_OK(rendezvous.Barrier(Soon()));
    if (rendezvous.rank() == 1) return;
    EXPECT_THAT(rendezvous.Get("key", Short()), StatusIs(absl::StatusCode::kDeadlineExceeded));
    EXPECT_OK(rendezvous.CheckOthers(Soon()));
  });
}

TEST_P(RendezvousTest, OfRankZeroIsTheLastToGo) {
  ForEachRank(4, [](Rendezvous& rendezvous) {
    ASSERT_OK(rendezvous.Barrier(Soon()));
    if (rendezvous.rank() == 0) {
      EXPECT_OK(rendezvous.Set("key", "value", Soon()));
      return;
    }
    if (rendezvous.rank() == 2) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_OK(rendezvous.Get("key", Soon()));
  });
}

TEST_P(RendezvousTest, RefusesTwoProcessesOfOneRank) {
  auto zero = Connect(0, 2);
  ASSERT_OK(zero);
  auto one = Connect(1, 2);
  ASSERT_OK(one);
  EXPECT_THAT(Connect(1, 2), StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("claim")));
  one->reset();
}

TEST_P(RendezvousTest, ServesOneLaunchAfterAnotherAtOnePlace) {
  for (int run = 0; run < 3; ++run) {
    ForEachRank(2, [run](Rendezvous& rendezvous) {
      EXPECT_THAT(rendezvous.AllGather(absl::StrCat(run), Soon()).value(),
                  ElementsAre(absl::StrCat(run), absl::StrCat(run)));
    });
  }
}

TEST_F(FileRendezvousTest, KeepsLaunchesInOneFolderApart) {
  std::vector<std::thread> threads;
  for (const std::string id : {"a", "b", ""}) {
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([this, id, rank] {
        auto rendezvous = ConnectRendezvous(LaunchOf(rank, 2, id), Soon());
        ASSERT_OK(rendezvous);
        for (int i = 0; i < 10; ++i) {
          ASSERT_THAT((*rendezvous)->AllGather(id, Soon()).value(), ElementsAre(id, id));
        }
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(FileRendezvousTest, LeavesNothingBehind) {
  ForEachRank(3, [](Rendezvous& rendezvous) {
    EXPECT_OK(rendezvous.Set(absl::StrCat("key ", rendezvous.rank()), "", Soon()));
    EXPECT_OK(rendezvous.Barrier(Soon()));
  });
  EXPECT_THAT(std::vector(std::filesystem::directory_iterator(folder_), {}), IsEmpty());
}

TEST_F(FileRendezvousTest, DoesNotGrowWithTheNumberOfGathers) {
  ForEachRank(2, [this](Rendezvous& rendezvous) {
    for (int i = 0; i < 20; ++i) ASSERT_OK(rendezvous.Barrier(Soon()));
    const std::filesystem::directory_iterator files(folder_ + "/stagecoach-rendezvous-job");
    // Two arrived; and of each, one gather and perhaps the one before.
    EXPECT_LE(std::distance(begin(files), end(files)), 2 + 2 * 2);
    EXPECT_OK(rendezvous.Barrier(Soon()));
  });
}

TEST_F(FileRendezvousTest, RefusesWhatAKilledLaunchHasLeft) {
  const Signal arrived;
  Process killed([&] {
    const auto rendezvous = Connect(1, 2);
    arrived.Send();
    pause();
  });
  arrived.Await();
  killed.Kill();
  EXPECT_THAT(Connect(1, 2), StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("removed")));
}

TEST_F(FileRendezvousTest, EndsAtTheDeadlineWhenRankZeroIsKilled) {
  const Signal together;
  Process zero([&] {
    const auto rendezvous = Connect(0, 2);
    EXPECT_OK((*rendezvous)->Barrier(Soon()));
    pause();
  });
  Process one([&] {
    const auto rendezvous = Connect(1, 2);
    EXPECT_OK((*rendezvous)->Barrier(Soon()));
    together.Send();
    EXPECT_THAT((*rendezvous)->Barrier(Short()),
                StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("rank 0 of 2")));
  });
  together.Await();
  zero.Kill();
  EXPECT_TRUE(one.Succeeds());
}

TEST_F(FileRendezvousTest, RefusesAFolderThatOthersMayWriteTo) {
  const std::string folder = folder_ + "/stagecoach-rendezvous-job";
  ASSERT_EQ(mkdir(folder.c_str(), 0700), 0);
  ASSERT_EQ(chmod(folder.c_str(), 0777), 0);
  EXPECT_THAT(Connect(0, 2), StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr(folder)));
}

TEST_F(FileRendezvousTest, RefusesALinkInThePlaceOfItsFolder) {
  std::filesystem::create_directory_symlink("/", folder_ + "/stagecoach-rendezvous-job");
  EXPECT_THAT(Connect(0, 2), StatusIs(absl::StatusCode::kPermissionDenied));
}

TEST_F(FileRendezvousTest, NamesAFolderThatIsNotThere) {
  place_ += "/missing";
  EXPECT_THAT(Connect(0, 2), StatusIs(absl::StatusCode::kNotFound, HasSubstr("/missing")));
}

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
                  StatusIs(absl::StatusCode::kUnavailable, HasSubstr(message)));
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
    // The end of its connection arrives soon, but not at a moment that is known.
    EXPECT_THAT((*rendezvous)->Get("key", Deadline::Never()),
                StatusIs(absl::StatusCode::kUnavailable));
    EXPECT_THAT((*rendezvous)->CheckOthers(Soon()),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 1 was killed")));
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
  EXPECT_THAT(ConnectRendezvous(LaunchOf(1, 2), Short()),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr(place_), HasSubstr("rank 0 does not answer"))));
}

TEST_F(TcpRendezvousTest, GivesUpOnAServerThatSaysNothing) {
  ASSERT_OK_AND_ASSIGN(const Address address, ParseAddress(place_.substr(6)));
  ASSERT_OK_AND_ASSIGN(const Descriptor mute, Listen(address));
  EXPECT_THAT(ConnectRendezvous(LaunchOf(1, 2), Short()),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST_F(TcpRendezvousTest, RefusesAPortThatIsTaken) {
  ASSERT_OK_AND_ASSIGN(const Address address, ParseAddress(place_.substr(6)));
  ASSERT_OK_AND_ASSIGN(const Descriptor taken, Listen(address));
  EXPECT_THAT(Connect(0, 2), StatusIs(absl::StatusCode::kUnavailable, HasSubstr(place_)));
}

TEST_F(TcpRendezvousTest, RefusesRanksOfAnotherLaunch) {
  auto zero = Connect(0, 2);
  ASSERT_OK(zero);
  EXPECT_THAT(ConnectRendezvous(LaunchOf(1, 2, "other"), Soon()),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("\"other\"")));
  EXPECT_THAT(ConnectRendezvous(LaunchOf(1, 3), Soon()),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("launch of 2")));
}

// Bytes of many kinds, from none of the language to nearly all of it.
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
        // Some stay and keep silent.
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

TEST(Rendezvous, SaysWhatToSetWhereThereIsNoPlace) {
  EXPECT_THAT(ConnectRendezvous({.rank = 1, .ranks = 4, .launcher = "mpirun"}, Soon()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("mpirun"), HasSubstr("STAGECOACH_RENDEZVOUS=tcp://"))));
}

TEST(Rendezvous, RefusesPlacesThatCannotBeRead) {
  for (const std::string place :
       {"here", "file:relative", "tcp://", "tcp://host", "tcp://host:", "tcp://:1", "tcp://host:0",
        "tcp://host:65536", "tcp://[::1:7", "tcp://host:1x", "udp://host:1"}) {
    EXPECT_THAT(ConnectRendezvous({.rank = 1, .ranks = 2, .rendezvous = place}, Soon()),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(place)));
  }
}

TEST(Wire, TakesFramesOffHoweverTheyArrive) {
  const Request request = {.kind = Request::Kind::kGet,
                           .rank = 5,
                           .ranks = 300,
                           .timeout_ms = int64_t{1} << 40,
                           .key = std::string("k\0y", 3),
                           .value = "v"};
  const std::string bytes = absl::StrCat(kGreeting, Encode(request), Encode(request));
  Incoming incoming;
  bool greeted = false;
  int frames = 0;
  for (const char byte : bytes) {
    incoming.Append(absl::string_view(&byte, 1));
    if (!greeted) {
      ASSERT_OK_AND_ASSIGN(greeted, incoming.TakeGreeting());
      continue;
    }
    ASSERT_OK_AND_ASSIGN(const auto frame, incoming.TakeFrame(kMaxFrameBytes));
    if (!frame.has_value()) continue;
    ++frames;
    ASSERT_OK_AND_ASSIGN(const Request decoded, DecodeRequest(*frame));
    EXPECT_EQ(Encode(decoded), Encode(request));
  }
  EXPECT_EQ(frames, 2);
}

TEST(Wire, RefusesFramesThatAreTooLong) {
  Incoming incoming;
  incoming.Append(absl::string_view("\x05\x00\x00\x00", 4));
  EXPECT_OK(incoming.TakeFrame(5));
  EXPECT_THAT(incoming.TakeFrame(4), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace stagecoach::engine
