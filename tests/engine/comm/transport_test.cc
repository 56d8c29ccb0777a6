#include "engine/comm/transport.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/device.h"
#include "tests/engine/comm/gloo_ranks.h"
#include "tests/engine/comm/in_process_ranks.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using base::Deadline;
using kernels::Tensor;
using ::stagecoach::testing::IsOk;
using ::stagecoach::testing::IsRefused;
using ::stagecoach::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const Rank kZero(0), kOne(1);

Message Activation(int micro_batch) {
  return {Message::Kind::kActivation, StageId(0), MicroBatch(micro_batch)};
}
Message Gradient(int micro_batch) {
  return {Message::Kind::kGradient, StageId(0), MicroBatch(micro_batch)};
}

TEST(Message, IsPrintedAsPeopleSayIt) {
  EXPECT_EQ(ToString(Activation(3)), "activation of stage 0, micro-batch 3");
  EXPECT_EQ(ToString(Gradient(0)), "gradient of stage 0, micro-batch 0");
}

// The behavior of every transport for tensors in host memory.
enum class Kind { kInProcess, kGloo };

class AnyTransport : public ::testing::TestWithParam<Kind> {
 protected:
  static Transports ConnectAny(int ranks, int max_outstanding = 1) {
    return GetParam() == Kind::kGloo ? ConnectGloo(ranks) : Connect(ranks, max_outstanding);
  }
};

INSTANTIATE_TEST_SUITE_P(Kinds, AnyTransport, ::testing::Values(Kind::kInProcess, Kind::kGloo),
                         [](const ::testing::TestParamInfo<Kind>& tested) {
                           return tested.param == Kind::kGloo ? "Gloo" : "InProcess";
                         });

TEST_P(AnyTransport, KnowsItsRank) {
  const Transports ranks = ConnectAny(3);
  ASSERT_EQ(ranks.size(), 3);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(ranks[static_cast<size_t>(rank)]->rank(), Rank(rank));
  }
}

TEST_P(AnyTransport, DeliversToAReceiveThatIsPostedFirst) {
  Transports ranks = ConnectAny(2);
  std::vector<float> from = {1, 2, 3}, to(3);
  ASSERT_OK_AND_ASSIGN(auto receive, ranks[1]->PostReceive(kZero, Activation(0), View(to)));
  ASSERT_OK_AND_ASSIGN(auto send, ranks[0]->PostSend(kOne, Activation(0), View(from)));
  EXPECT_OK(ranks[1]->Wait(receive, Long()));
  EXPECT_OK(ranks[0]->Wait(send, Long()));
  EXPECT_EQ(to, from);
}

TEST_P(AnyTransport, DeliversToAReceiveThatIsPostedLast) {
  Transports ranks = ConnectAny(2);
  std::vector<float> from = {1, 2, 3}, to(3);
  ASSERT_OK_AND_ASSIGN(auto send, ranks[0]->PostSend(kOne, Activation(0), View(from)));
  ASSERT_OK_AND_ASSIGN(auto receive, ranks[1]->PostReceive(kZero, Activation(0), View(to)));
  EXPECT_OK(ranks[1]->Wait(receive, Long()));
  EXPECT_OK(ranks[0]->Wait(send, Long()));
  EXPECT_EQ(to, from);
}

TEST(InProcessTransport, RefusesMessagesBetweenRanksThatAreNoPeers) {
  InProcessOptions options = {.peers = {{1}, {}, {}}};  // one of two ranks says it for both
  for (int rank = 0; rank < 3; ++rank) options.devices.push_back(&DeviceOf(rank));
  ASSERT_OK_AND_ASSIGN(Transports ranks, CreateInProcessTransports(options));
  std::vector<float> values(1);
  EXPECT_THAT(ranks[0]->PostSend(Rank(2), Activation(0), View(values)),
              IsRefused("rank 0 and rank 2 are no peers: activation of stage 0"));
  EXPECT_THAT(ranks[1]->PostReceive(Rank(2), Activation(0), View(values)),
              IsRefused("rank 2 and rank 1"));
  EXPECT_OK(ranks[0]->PostReceive(kOne, Activation(0), View(values)));
  EXPECT_OK(ranks[1]->PostReceive(kZero, Activation(0), View(values)));
}

TEST(InProcessTransport, BothEndsKnowWhenAMessageWasDelivered) {
  using Clock = std::chrono::steady_clock;
  Transports ranks = Connect(2);
  std::vector<float> from = {1, 2, 3}, to(3);
  ASSERT_OK_AND_ASSIGN(auto send, ranks[0]->PostSend(kOne, Activation(0), View(from)));
  const Clock::time_point before = Clock::now();
  ASSERT_OK_AND_ASSIGN(auto receive, ranks[1]->PostReceive(kZero, Activation(0), View(to)));
  const Clock::time_point after = Clock::now();
  ASSERT_OK(ranks[0]->Wait(send, Long()));
  ASSERT_OK(ranks[1]->Wait(receive, Long()));
  EXPECT_GE(ranks[1]->DeliveredAt(receive).value(), before);
  EXPECT_LE(ranks[1]->DeliveredAt(receive).value(), after);
  EXPECT_EQ(ranks[0]->DeliveredAt(send).value(), ranks[1]->DeliveredAt(receive).value());
}

TEST_P(AnyTransport, MatchesMessagesInTheOrderOfTheirPosts) {
  constexpr int kMessages = 5;
  Transports ranks = ConnectAny(2, kMessages);
  std::vector<std::vector<float>> from, to(kMessages, std::vector<float>(1));
  for (int i = 0; i < kMessages; ++i) from.push_back({static_cast<float>(i)});
  std::vector<Transport::Ticket> sends, tickets;
  for (int i = 0; i < kMessages; ++i) {
    ASSERT_OK_AND_ASSIGN(
        sends.emplace_back(),
        ranks[0]->PostSend(kOne, Activation(i), View(from[static_cast<size_t>(i)])));
  }
  for (int i = 0; i < kMessages; ++i) {
    ASSERT_OK_AND_ASSIGN(
        tickets.emplace_back(),
        ranks[1]->PostReceive(kZero, Activation(i), View(to[static_cast<size_t>(i)])));
  }
  for (const Transport::Ticket& ticket : tickets) EXPECT_OK(ranks[1]->Wait(ticket, Long()));
  for (const Transport::Ticket& send : sends) EXPECT_OK(ranks[0]->Wait(send, Long()));
  EXPECT_EQ(to, from);
}

TEST_P(AnyTransport, KeepsTheTwoDirectionsApart) {
  Transports ranks = ConnectAny(2);
  std::vector<float> up = {1}, down = {2}, at_one(1), at_zero(1);
  ASSERT_OK_AND_ASSIGN(auto sent_up, ranks[0]->PostSend(kOne, Activation(0), View(up)));
  ASSERT_OK_AND_ASSIGN(auto sent_down, ranks[1]->PostSend(kZero, Gradient(0), View(down)));
  ASSERT_OK_AND_ASSIGN(auto one, ranks[1]->PostReceive(kZero, Activation(0), View(at_one)));
  ASSERT_OK_AND_ASSIGN(auto zero, ranks[0]->PostReceive(kOne, Gradient(0), View(at_zero)));
  EXPECT_OK(ranks[1]->Wait(one, Long()));
  EXPECT_OK(ranks[0]->Wait(zero, Long()));
  EXPECT_OK(ranks[0]->Wait(sent_up, Long()));
  EXPECT_OK(ranks[1]->Wait(sent_down, Long()));
  EXPECT_THAT(at_one, ElementsAre(1));
  EXPECT_THAT(at_zero, ElementsAre(2));
}

TEST(InProcessTransport, BuffersNothing) {
  Transports ranks = Connect(2);
  std::vector<float> from = {1}, to(1);
  ASSERT_OK_AND_ASSIGN(auto send, ranks[0]->PostSend(kOne, Activation(0), View(from)));
  EXPECT_THAT(ranks[0]->Wait(send, Short()), StatusIs(absl::StatusCode::kDeadlineExceeded));
  from[0] = 2;
  ASSERT_OK(ranks[1]->PostReceive(kZero, Activation(0), View(to)));
  EXPECT_THAT(to, ElementsAre(2));
}

TEST_P(AnyTransport, AnEmptyTicketIsDone) {
  Transports ranks = ConnectAny(1);
  EXPECT_OK(ranks[0]->Wait({}, Short()));
}

TEST(InProcessTransport, RefusesAnotherMessageThanTheOtherEndPosted) {
  Transports ranks = Connect(2);
  std::vector<float> from = {1}, to(1);
  ASSERT_OK_AND_ASSIGN(auto send, ranks[0]->PostSend(kOne, Activation(2), View(from)));
  const auto names_both =
      StatusIs(absl::StatusCode::kInternal,
               AllOf(HasSubstr("rank 0 sends the activation of stage 0, micro-batch 2 (4 bytes)"),
                     HasSubstr("rank 1 expects the gradient of stage 0, micro-batch 2 (4 bytes)")));
  EXPECT_THAT(ranks[1]->PostReceive(kZero, Gradient(2), View(to)), names_both);
  EXPECT_THAT(ranks[0]->Wait(send, Long()), names_both);
}

TEST(InProcessTransport, RefusesAnotherSizeThanTheOtherEndPosted) {
  Transports ranks = Connect(2);
  std::vector<float> from = {1, 2, 3}, to(2, -1.0F);
  ASSERT_OK_AND_ASSIGN(auto receive, ranks[1]->PostReceive(kZero, Activation(0), View(to)));
  const auto names_both =
      StatusIs(absl::StatusCode::kInternal, AllOf(HasSubstr("(12 bytes)"), HasSubstr("(8 bytes)")));
  EXPECT_THAT(ranks[0]->PostSend(kOne, Activation(0), View(from)), names_both);
  EXPECT_THAT(ranks[1]->Wait(receive, Long()), names_both);
  EXPECT_THAT(to, Each(-1.0F));
}

TEST_P(AnyTransport, ADeadlineNamesWhatAReceiverWaitedFor) {
  Transports ranks = ConnectAny(3);
  std::vector<float> to(1);
  ASSERT_OK_AND_ASSIGN(auto ticket, ranks[2]->PostReceive(kOne, Gradient(7), View(to)));
  EXPECT_THAT(ranks[2]->Wait(ticket, Short()),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       ContainsRegex("rank 2 timed out waiting for rank 1 to send the gradient of "
                                     "stage 0, micro-batch 7")));
}

TEST_P(AnyTransport, ADeadlineNamesWhatASenderWaitedFor) {
  Transports ranks = ConnectAny(3);
  std::vector<float> from(1);
  ASSERT_OK_AND_ASSIGN(auto ticket, ranks[0]->PostSend(kOne, Activation(4), View(from)));
  EXPECT_THAT(ranks[0]->Wait(ticket, Short()),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       ContainsRegex("rank 0 timed out waiting for rank 1 to take the activation "
                                     "of stage 0, micro-batch 4")));
}

TEST(InProcessTransport, RefusesMoreSendsThanMayBeOutstanding) {
  Transports ranks = Connect(2, 2);
  std::vector<float> from = {1}, to(1);
  ASSERT_OK(ranks[0]->PostSend(kOne, Activation(0), View(from)));
  ASSERT_OK(ranks[0]->PostSend(kOne, Activation(1), View(from)));
  EXPECT_THAT(
      ranks[0]->PostSend(kOne, Activation(2), View(from)),
      StatusIs(absl::StatusCode::kResourceExhausted, "more than 2 messages from rank 0 to rank 1"));
}

TEST(InProcessTransport, TakesAnotherReceiveOnceOneIsDelivered) {
  Transports ranks = Connect(2, 1);
  std::vector<float> from = {1}, to(1);
  ASSERT_OK(ranks[1]->PostReceive(kZero, Activation(0), View(to)));
  EXPECT_THAT(ranks[1]->PostReceive(kZero, Activation(1), View(to)),
              StatusIs(absl::StatusCode::kResourceExhausted));
  ASSERT_OK(ranks[0]->PostSend(kOne, Activation(0), View(from)));
  EXPECT_OK(ranks[1]->PostReceive(kZero, Activation(1), View(to)));
}

TEST(InProcessTransport, AbortWakesAllWaitersWithTheReason) {
  Transports ranks = Connect(4);
  const absl::Status reason = absl::DataLossError("rank 3 lost its data");
  const std::vector<absl::Status> statuses = OnThreads(ranks, [&](Transport& own) -> absl::Status {
    std::vector<float> data(1);
    std::vector<double> mine(1), all(4);
    switch (own.rank().value()) {
      case 0: {
        ASSIGN_OR_RETURN(auto ticket, own.PostSend(kOne, Activation(0), View(data)));
        return own.Wait(ticket, Long());
      }
      case 1: {
        ASSIGN_OR_RETURN(auto ticket, own.PostReceive(Rank(3), Activation(0), View(data)));
        return own.Wait(ticket, Long());
      }
      case 2:
        return Gather(own, mine, all, Long());
      default:
        own.Abort(reason);
        return reason;
    }
  });
  EXPECT_THAT(statuses, Each(reason));
}

TEST(InProcessTransport, AbortKeepsTheFirstReason) {
  Transports ranks = Connect(2);
  std::vector<float> to(1);
  ranks[0]->Abort(absl::DataLossError("first"));
  ranks[1]->Abort(absl::InternalError("second"));
  ASSERT_OK_AND_ASSIGN(auto ticket, ranks[1]->PostReceive(kZero, Activation(0), View(to)));
  EXPECT_THAT(ranks[1]->Wait(ticket, Long()),
              StatusIs(absl::StatusCode::kDataLoss, ::testing::Eq("first")));
}

// Passes numbers to the next of four ranks and back to the previous one, with random pauses.
class Neighbors {
 public:
  explicit Neighbors(Transport& own)
      : own_(own), random_(/*seed=*/5, static_cast<uint64_t>(rank())) {}

  absl::Status Exchange(int messages) {
    for (int i = 0; i < messages; ++i) {
      RETURN_IF_ERROR(ExchangeWith(Next(), Previous(), Activation(i), 1000 * rank() + i,
                                   1000 * Previous().value() + i));
      RETURN_IF_ERROR(ExchangeWith(Previous(), Next(), Gradient(i), 1000 * rank() - i,
                                   1000 * Next().value() - i));
    }
    return absl::OkStatus();
  }

 private:
  static constexpr int kRanks = 4;

  int rank() const { return own_.rank().value(); }
  Rank Next() const { return Rank((rank() + 1) % kRanks); }
  Rank Previous() const { return Rank((rank() + kRanks - 1) % kRanks); }

  void Pause() {
    const uint64_t length = random_.Below(draws_++, 8);
    if (length == 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
    for (uint64_t i = 0; i < length; ++i) std::this_thread::yield();
  }

  absl::Status ExchangeWith(Rank to, Rank from, const Message& message, int value, int expected) {
    std::vector<float> sent(3, static_cast<float>(value)), received(3);
    Pause();
    ASSIGN_OR_RETURN(auto receive, own_.PostReceive(from, message, View(received)));
    Pause();
    ASSIGN_OR_RETURN(auto send, own_.PostSend(to, message, View(sent)));
    RETURN_IF_ERROR(own_.Wait(receive, Long()));
    RETURN_IF_ERROR(own_.Wait(send, Long()));
    if (received == std::vector<float>(3, static_cast<float>(expected))) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("rank ", rank(), " got ", received[0], " as the ",
                                            ToString(message), ", not ", expected));
  }

  Transport& own_;
  const base::RandomStream random_;
  uint64_t draws_ = 0;
};

TEST_P(AnyTransport, SurvivesRandomDelays) {
  Transports ranks = ConnectAny(4, 2);
  EXPECT_THAT(OnThreads(ranks, [](Transport& own) { return Neighbors(own).Exchange(300); }),
              Each(IsOk()));
}

TEST(GlooTransport, AnAbortEndsTheWaitsOfItsOwnEnd) {
  Transports ranks = ConnectGloo(2);
  std::vector<float> to(1);
  ASSERT_OK_AND_ASSIGN(auto ticket, ranks[1]->PostReceive(kZero, Activation(0), View(to)));
  std::thread aborting([&] { ranks[1]->Abort(absl::DataLossError("first")); });
  EXPECT_THAT(ranks[1]->Wait(ticket, Long()),
              StatusIs(absl::StatusCode::kDataLoss, ::testing::Eq("first")));
  aborting.join();
  ranks[1]->Abort(absl::InternalError("second"));
  EXPECT_THAT(ranks[1]->Poll(), StatusIs(absl::StatusCode::kDataLoss, ::testing::Eq("first")));
  EXPECT_THAT(ranks[1]->PostReceive(kZero, Activation(1), View(to)),
              StatusIs(absl::StatusCode::kDataLoss, ::testing::Eq("first")));
}

TEST(GlooTransport, AProcessThatGoesEndsTheWaitsForIt) {
  std::vector<float> data(1);  // outlives what is posted
  Transports ranks = ConnectGloo(3);
  ASSERT_OK_AND_ASSIGN(auto ticket, ranks[1]->PostReceive(kZero, Activation(2), View(data)));
  ranks[0].reset();
  EXPECT_THAT(ranks[1]->Wait(ticket, Long()),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("rank 0 is gone"),
                             HasSubstr("send the activation of stage 0, micro-batch 2"))));
  EXPECT_THAT(ranks[2]->PostSend(kOne, Gradient(0), View(data)), IsOk());  // others continue
}

// The sizes are one value for each rank, and more segments than one of Gloo's.
TEST(GlooTransport, SumsOverAllRanks) {
  Transports ranks = ConnectGloo(3);
  for (const size_t elements : {size_t{1}, size_t{7}, size_t{1'000'000}}) {
    std::vector<std::vector<float>> data(3);
    EXPECT_THAT(OnThreads(ranks,
                          [&](Transport& own) -> absl::Status {
                            const auto rank = static_cast<size_t>(own.rank().value());
                            data[rank].assign(elements, static_cast<float>(1 << rank));
                            data[rank].back() = 0.5F;
                            const int64_t sent = own.sent_bytes();
                            own.Restart();
                            ASSIGN_OR_RETURN(const auto ticket,
                                             own.PostSum(Gradient(0), View(data[rank])));
                            RETURN_IF_ERROR(own.Flush());
                            RETURN_IF_ERROR(own.Wait(ticket, Long()));
                            EXPECT_EQ(own.sent_bytes() - sent,
                                      2 * 2 * static_cast<int64_t>(elements) * 4 / 3);
                            return absl::OkStatus();
                          }),
                Each(IsOk()));
    std::vector<float> expected(elements, 7.0F);
    expected.back() = 1.5F;
    for (const std::vector<float>& sums : data) EXPECT_EQ(sums, expected) << elements;
  }
}

// The other rank does not take part.
TEST(GlooTransport, AnAbortEndsASum) {
  Transports ranks = ConnectGloo(2);
  std::vector<float> data(1);
  ASSERT_OK_AND_ASSIGN(const auto ticket, ranks[1]->PostSum(Gradient(0), View(data)));
  std::thread aborting([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ranks[1]->Abort(absl::DataLossError("first"));
  });
  EXPECT_THAT(ranks[1]->Wait(ticket, Long()),
              StatusIs(absl::StatusCode::kDataLoss, ::testing::Eq("first")));
  aborting.join();
}

TEST(GlooTransport, AProcessThatGoesEndsTheSumsWithIt) {
  std::vector<float> data(1);
  Transports ranks = ConnectGloo(2);
  ASSERT_OK_AND_ASSIGN(const auto ticket, ranks[1]->PostSum(Gradient(0), View(data)));
  ranks[0].reset();
  EXPECT_THAT(ranks[1]->Wait(ticket, Long()),
              StatusIs(absl::StatusCode::kUnavailable, "a rank is gone"));
}

TEST(GlooTransport, ASumHasADeadline) {
  std::vector<float> data(1);
  Transports ranks = ConnectGloo(2);
  ASSERT_OK_AND_ASSIGN(const auto ticket, ranks[1]->PostSum(Gradient(0), View(data)));
  EXPECT_THAT(ranks[1]->Wait(ticket, Short()),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "rank 1 timed out in the all-reduce"));
}

TEST(InProcessTransport, HasNoSum) {
  Transports ranks = Connect(2, 1);
  std::vector<float> data(1);
  EXPECT_THAT(ranks[0]->PostSum(Gradient(0), View(data)),
              StatusIs(absl::StatusCode::kUnimplemented));
}

// The other rank exists, but does not connect. Which of two listens is chance, and the other then
// has its connection at once.
TEST(GlooTransport, AnAbortEndsTheWaitForAConnection) {
  int aborted = 0;
  for (int run = 0; run < 100 && aborted == 0; ++run) {
    std::vector<std::string> addresses(2);
    std::barrier both_told(2);
    std::latch ended(1);
    std::thread other([&] {
      static_cast<void>(GlooMesh::Create()->Connect(
          {.process = 1,
           .processes = {0, 1},
           .address = "127.0.0.1",
           .gather =
               [&](const auto& text) {
                 addresses[1] = text;
                 both_told.arrive_and_wait();
                 ended.wait();
                 return absl::StatusOr<std::vector<std::string>>(absl::CancelledError());
               },
           .deadline = absl::Minutes(1)}));
    });
    const std::shared_ptr<GlooMesh> mesh = GlooMesh::Create();
    std::thread aborting;
    const absl::Status status =
        mesh->Connect({.process = 0,
                       .processes = {0, 1},
                       .address = "127.0.0.1",
                       .gather =
                           [&](const auto& text) {
                             using Texts = absl::StatusOr<std::vector<std::string>>;
                             // This rank has its connection.
                             if (aborting.joinable()) return Texts(absl::CancelledError());
                             addresses[0] = text;
                             both_told.arrive_and_wait();
                             aborting = std::thread([&] {
                               std::this_thread::sleep_for(std::chrono::milliseconds(20));
                               mesh->Abort();
                             });
                             return Texts(addresses);
                           },
                       .deadline = absl::Minutes(1)});
    ended.count_down();
    other.join();
    aborting.join();
    if (absl::IsCancelled(status)) continue;
    ++aborted;
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable, "was ended"));
  }
  EXPECT_EQ(aborted, 1);
}

// A port scan says nothing, or disconnects, or sends what nobody understands. Each process tells 16
// bytes, and an address for each of the others.
TEST(GlooTransport, IsNotDisturbedByStrangers) {
  constexpr size_t kTold = 16, kRanks = 3;
  base::Mutex mutex;
  std::vector<int> strangers;
  std::atomic<int> visits = 0;
  const auto told = [&](const std::vector<std::string>& all) {
    // Each process does so in its first two attempts.
    if (all.front().size() <= kTold || visits++ >= 2 * static_cast<int>(kRanks)) return;
    base::MutexLock lock(mutex);
    for (const std::string& text : all) {
      const size_t size = (text.size() - kTold) / (kRanks - 1);
      for (size_t place = 0; place < kRanks - 1; ++place) {
        sockaddr_in address = {};
        std::memcpy(&address, text.data() + kTold + place * size, sizeof(address));
        const int stranger = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(stranger, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
          const std::string bytes(place == 0 ? 0 : 64, '\1');
          static_cast<void>(send(stranger, bytes.data(), bytes.size(), MSG_NOSIGNAL));
        }
        strangers.push_back(stranger);
        if (strangers.size() % 3 == 0) close(std::exchange(strangers.back(), -1));
      }
    }
  };
  const std::vector<std::shared_ptr<GlooMesh>> meshes = GlooMeshes(kRanks, told);
  // Gloo of 2022 is disturbed, and each process tries again; that of 2023 is not.
  EXPECT_GE(visits, static_cast<int>(kRanks)) << "the strangers have done nothing";
  for (size_t from = 0; from < meshes.size(); ++from) {
    const size_t to = (from + 1) % meshes.size();
    std::vector<float> sent = {1.0F + static_cast<float>(from)}, received(1);
    const auto sender = meshes[from]->Join(Rank(static_cast<int>(from)), {0, 1, 2}, 0);
    const auto receiver = meshes[to]->Join(Rank(static_cast<int>(to)), {0, 1, 2}, 0);
    ASSERT_OK(sender->PostSend(Rank(static_cast<int>(to)), Activation(0), View(sent)));
    ASSERT_OK_AND_ASSIGN(const auto ticket, receiver->PostReceive(Rank(static_cast<int>(from)),
                                                                  Activation(0), View(received)));
    EXPECT_OK(receiver->Wait(ticket, Long()));
    EXPECT_EQ(received, sent);
  }
  for (const int stranger : strangers) {
    if (stranger >= 0) close(stranger);
  }
}

// A process has groups within one mesh: with the ranks of its replica, and with its replicas.
TEST(GlooTransport, GroupsOfDifferentChannelsAreApart) {
  std::vector<float> one = {1}, two = {2}, to_first(1), to_second(1);
  const std::vector<std::shared_ptr<GlooMesh>> meshes = GlooMeshes(2);
  std::vector<std::unique_ptr<Transport>> first, second;
  for (int i = 0; i < 2; ++i) {
    first.push_back(meshes[static_cast<size_t>(i)]->Join(Rank(i), {0, 1}, 0));
    second.push_back(meshes[static_cast<size_t>(i)]->Join(Rank(1 - i), {1, 0}, 1));
  }
  ASSERT_OK(second[0]->PostSend(kZero, Activation(0), View(two)));
  ASSERT_OK(first[0]->PostSend(kOne, Activation(0), View(one)));
  ASSERT_OK_AND_ASSIGN(auto from_first,
                       first[1]->PostReceive(kZero, Activation(0), View(to_first)));
  ASSERT_OK_AND_ASSIGN(auto from_second,
                       second[1]->PostReceive(kOne, Activation(0), View(to_second)));
  EXPECT_OK(first[1]->Wait(from_first, Long()));
  EXPECT_OK(second[1]->Wait(from_second, Long()));
  EXPECT_THAT(to_first, ElementsAre(1));
  EXPECT_THAT(to_second, ElementsAre(2));
}

}  // namespace
}  // namespace stagecoach::engine
