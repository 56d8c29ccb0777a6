#include "engine/comm/rendezvous.h"

#include <future>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/comm/rendezvous_fixture.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using base::Deadline;
using ::stagecoach::testing::IsRefused;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::StatusIs;

INSTANTIATE_TEST_SUITE_P(Places, RendezvousTest, ::testing::Values(Place::kFile, Place::kTcp),
                         [](const auto& test) {
                           return test.param == Place::kFile ? "File" : "Tcp";
                         });

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
                  StatusIs(absl::StatusCode::kDeadlineExceeded, "\"key\""));
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

TEST_P(RendezvousTest, TakesOneOfTheValuesThatAllSetAtOnce) {
  ForEachRank(4, [](Rendezvous& rendezvous) {
    for (int i = 0; i < 50; ++i) {
      const std::string key = absl::StrCat("key ", i);
      const std::string value(size_t{1000} * (rendezvous.rank() + 1), 'v');
      ASSERT_OK(rendezvous.Barrier(Soon()));
      const absl::Status status = rendezvous.Set(key, value, Soon());
      ASSERT_OK_AND_ASSIGN(const std::string taken, rendezvous.Get(key, Soon()));
      if (status.ok()) {
        EXPECT_EQ(taken.size(), value.size());
      } else {
        EXPECT_THAT(status, StatusIs(absl::StatusCode::kAlreadyExists));
        EXPECT_NE(taken.size(), value.size());
      }
    }
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
    for (const std::string& key : {std::string(), long_key, std::string("gather/0/0"),
                                   std::string("alive/0"), std::string("failed")}) {
      EXPECT_THAT(rendezvous.Set(key, "", Soon()), StatusIs(absl::StatusCode::kInvalidArgument));
      EXPECT_THAT(rendezvous.Get(key, Soon()), StatusIs(absl::StatusCode::kInvalidArgument));
    }
    EXPECT_THAT(rendezvous.Set("key", long_value, Soon()),
                StatusIs(absl::StatusCode::kInvalidArgument));
  });
}

TEST_P(RendezvousTest, NamesAllRanksThatDoNotCome) {
  for (const auto& [absent, named] : std::map<std::set<int>, std::string>{
           {{1}, "rank 1 of 4 did not"}, {{1, 3}, "ranks 1, 3 of 4 did not"}}) {
    ForEachRank(4, [&, absent = absent, named = named](Rendezvous& rendezvous) {
      if (absent.contains(rendezvous.rank())) {
        EXPECT_THAT(rendezvous.Get("key", Soon()), StatusIs(absl::StatusCode::kAborted, named));
      } else {
        EXPECT_THAT(rendezvous.Barrier(Deadline::After(absl::Seconds(1))).message(),
                    HasSubstr(named));
      }
    });
  }
}

TEST_P(RendezvousTest, GivesOneNoticeOfThoseThatAreLate) {
  std::promise<void> heard;
  const std::shared_future<void> when_heard = heard.get_future().share();
  std::vector<std::vector<int>> missing;
  ForEachRank(3, [&](Rendezvous& rendezvous) {
    LateNotice late(Deadline::After(absl::ZeroDuration()), [&](const std::vector<int>& ranks) {
      missing.push_back(ranks);
      heard.set_value();
    });
    if (rendezvous.rank() != 0) when_heard.wait();
    EXPECT_OK(rendezvous.Barrier(Soon(), rendezvous.rank() == 0 ? &late : nullptr));
  });
  EXPECT_THAT(missing, ElementsAre(ElementsAre(1, 2)));
}

TEST_P(RendezvousTest, TellsThatARankHasLeft) {
  auto zero = Connect(0, 2);
  ASSERT_OK(zero);
  ASSERT_OK(Connect(1, 2));
  EXPECT_THAT((*zero)->Barrier(Soon()),
              StatusIs(absl::StatusCode::kUnavailable, "rank 1 has left"));
}

TEST_P(RendezvousTest, AFailureEndsTheWaitsOfAll) {
  for (const int failing : {0, 2}) {
    ForEachRank(3, [failing](Rendezvous& rendezvous) {
      ASSERT_OK(rendezvous.Barrier(Soon()));
      if (rendezvous.rank() == failing) {
        rendezvous.Fail(absl::DataLossError("the disk is on fire"), Soon());
        return;
      }
      const auto fails = StatusIs(
          absl::StatusCode::kAborted,
          ::testing::Eq(absl::StrCat("rank ", failing, " has failed: the disk is on fire")));
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
    const auto fails =
        StatusIs(absl::StatusCode::kAborted, ::testing::Eq("rank 1 has failed: first"));
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

// Returns the error of a rank that lives but does not arrive until another has failed.
absl::Status WorkUntilOneFails(Rendezvous& rendezvous) {
  while (true) {
    RETURN_IF_ERROR(rendezvous.Heartbeat("work", Soon()));
    RETURN_IF_ERROR(rendezvous.CheckOthers(Soon()));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

TEST_P(RendezvousTest, FindsTheRanksThatShowNoLife) {
  ForEachRank(4, [](Rendezvous& rendezvous) {
    if (rendezvous.rank() == 2) {
      EXPECT_OK(rendezvous.Heartbeat("stage 1 F", Soon()));
      EXPECT_OK(rendezvous.Heartbeat("stage 2 F", Soon()));
      EXPECT_OK(rendezvous.Set("seen", "", Soon()));
    }
    EXPECT_OK(rendezvous.Get("seen", Soon()));
    if (rendezvous.rank() >= 2) {
      EXPECT_OK(rendezvous.Get("found", Soon()));
      return;
    }
    // Two ranks are missing at the same time.
    ASSERT_OK_AND_ASSIGN(const auto silent, rendezvous.FindUnresponsive());
    ASSERT_EQ(silent.size(), 2U);
    EXPECT_EQ(silent[0].rank, 2);
    EXPECT_EQ(silent[0].last_seen, "stage 2 F");
    EXPECT_EQ(silent[1].rank, 3);
    EXPECT_EQ(silent[1].last_seen, "");
    ASSERT_OK(rendezvous.Set(absl::StrCat("found by ", rendezvous.rank()), "", Soon()));
    if (rendezvous.rank() == 1) return;
    EXPECT_OK(rendezvous.Get("found by 1", Soon()));
    EXPECT_OK(rendezvous.Set("found", "", Soon()));
  });
}

TEST_P(RendezvousTest, ShowsTheLastPaceOfEachRank) {
  ForEachRank(3, [](Rendezvous& rendezvous) {
    if (rendezvous.rank() == 1) {
      EXPECT_OK(rendezvous.ShowPace("1 2", Soon()));
      EXPECT_OK(rendezvous.ShowPace("3 4", Soon()));
    }
    ASSERT_OK(rendezvous.Barrier(Soon()));
    ASSERT_OK_AND_ASSIGN(const auto step_times, rendezvous.ReadStepTimes(Soon()));
    EXPECT_THAT(step_times, ElementsAre("", "3 4", ""));
    EXPECT_OK(rendezvous.Barrier(Soon()));
  });
}

TEST_P(RendezvousTest, BlamesTheSilentForALateGatherAndTellsAll) {
  const std::string reason = "rank 2 of 3 did not arrive in time; rank 2 was last seen in a dream";
  ForEachRank(3, [&](Rendezvous& rendezvous) {
    if (rendezvous.rank() == 0) {
      EXPECT_OK(rendezvous.Get("seen", Soon()));
      EXPECT_THAT(rendezvous.Barrier(Short()),
                  StatusIs(absl::StatusCode::kDeadlineExceeded, ::testing::Eq(reason)));
      return;
    }
    if (rendezvous.rank() == 2) {
      EXPECT_OK(rendezvous.Heartbeat("a dream", Soon()));
      EXPECT_OK(rendezvous.Set("seen", "", Soon()));
    }
    EXPECT_THAT(
        rendezvous.rank() == 1 ? WorkUntilOneFails(rendezvous)
                               : rendezvous.Get("key", Soon()).status(),
        StatusIs(absl::StatusCode::kAborted, ::testing::Eq("rank 0 has failed: " + reason)));
  });
}

TEST_P(RendezvousTest, StopsTheSearchIfAnotherFails) {
  ForEachRank(2, [](Rendezvous& rendezvous) {
    if (rendezvous.rank() == 1) {
      rendezvous.Fail(absl::DataLossError("the disk is on fire"), Soon());
      return;
    }
    EXPECT_THAT(rendezvous.Get("key", Soon()), StatusIs(absl::StatusCode::kAborted));
    EXPECT_THAT(rendezvous.FindUnresponsive(),
                StatusIs(absl::StatusCode::kAborted,
                         ::testing::Eq("rank 1 has failed: the disk is on fire")));
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
  EXPECT_THAT(Connect(1, 2), StatusIs(absl::StatusCode::kAlreadyExists, "claim"));
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

TEST(Rendezvous, SaysWhatToSetWhereThereIsNoPlace) {
  EXPECT_THAT(ConnectRendezvous({.rank = 1, .ranks = 4, .launcher = "mpirun"}, kLong),
              IsRefused(AllOf(HasSubstr("mpirun"), HasSubstr("STAGECOACH_RENDEZVOUS=tcp://"))));
}

TEST(Rendezvous, RefusesPlacesThatCannotBeRead) {
  for (const std::string place :
       {"here", "file:relative", "tcp://", "tcp://host", "tcp://host:", "tcp://:1", "tcp://host:0",
        "tcp://host:65536", "tcp://[::1:7", "tcp://host:1x", "udp://host:1"}) {
    EXPECT_THAT(ConnectRendezvous({.rank = 1, .ranks = 2, .rendezvous = place}, kLong),
                IsRefused(place));
  }
}

}  // namespace
}  // namespace stagecoach::engine
