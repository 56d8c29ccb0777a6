#include "engine/comm/supervisor.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::IsOk;
using ::stagecoach::testing::StatusIs;

std::unique_ptr<Supervisor> FindIn(const std::optional<std::string>& value) {
  return Supervisor::Find([&](const char* name) {
    return std::string(name) == "STAGECOACH_SUPERVISOR" ? value : std::nullopt;
  });
}

class SupervisorTest : public ::testing::Test {
 protected:
  SupervisorTest() {
    int ends[2];
    STAGECOACH_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0, "no sockets");
    launcher_ = Descriptor(ends[0]);
    supervisor_ = FindIn(absl::StrCat(ends[1]));
    number_ = ends[1];
  }
  void Say(const std::string& text) const {
    ASSERT_EQ(send(launcher_.get(), text.data(), text.size(), 0), std::ssize(text));
  }
  absl::StatusOr<Launch> Await(absl::Duration duration = absl::Seconds(60)) {
    return supervisor_->AwaitReplacement(
        {.rank = 2, .ranks = 3, .id = "old", .rendezvous = "there"},
        base::Deadline::After(duration));
  }

  Descriptor launcher_;
  int number_ = -1;
  std::unique_ptr<Supervisor> supervisor_;
};

TEST_F(SupervisorTest, IsASocketOfTheNumberThatIsGiven) {
  ASSERT_NE(supervisor_, nullptr);
  EXPECT_EQ(fcntl(number_, F_GETFD), FD_CLOEXEC);  // its children do not inherit it
  EXPECT_EQ(FindIn(std::nullopt), nullptr);
  EXPECT_EQ(FindIn("x"), nullptr);
  EXPECT_EQ(FindIn("-1"), nullptr);
  EXPECT_EQ(FindIn("1"), nullptr);  // no socket
  EXPECT_EQ(FindIn("99999"), nullptr);
}

TEST_F(SupervisorTest, IsToldOnceThatTheProcessCanGoOn) {
  EXPECT_FALSE(supervisor_->can_go_on());
  EXPECT_THAT(supervisor_->CanGoOn(), IsOk());
  EXPECT_THAT(supervisor_->CanGoOn(), IsOk());
  EXPECT_TRUE(supervisor_->can_go_on());
  char buffer[100];
  const ssize_t bytes = recv(launcher_.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
  EXPECT_EQ(std::string(buffer, static_cast<size_t>(bytes)), "can continue");
  EXPECT_LT(recv(launcher_.get(), buffer, sizeof(buffer), MSG_DONTWAIT), 0);
}

TEST_F(SupervisorTest, SaysWhereAllMeetAgain) {
  Say(Supervisor::ToText({.id = "new.1", .rendezvous = "tcp://127.0.0.1:7", .restarts = 1}));
  Say(Supervisor::ToText({.id = "new.2", .rendezvous = "tcp://127.0.0.1:9", .restarts = 2}));
  const absl::StatusOr<Launch> launch = Await();
  ASSERT_OK(launch);
  EXPECT_EQ(launch->id, "new.2");
  EXPECT_EQ(launch->rendezvous, "tcp://127.0.0.1:9");
  EXPECT_EQ(launch->restarts, 2);
  EXPECT_EQ(launch->rank, 2);
  EXPECT_EQ(launch->ranks, 3);
}

TEST_F(SupervisorTest, EndsTheRunByClosing) {
  launcher_ = Descriptor();
  EXPECT_THAT(Await(), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(supervisor_->CanGoOn(), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_FALSE(supervisor_->can_go_on());
}

TEST_F(SupervisorTest, IsNotWaitedForForEver) {
  EXPECT_THAT(Await(absl::Milliseconds(1)), StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST_F(SupervisorTest, OfAnotherVersionIsNotUnderstood) {
  for (const char* text : {"id place", "id place x", "id place 1 more"}) {
    Say(text);
    EXPECT_THAT(Await(), StatusIs(absl::StatusCode::kUnavailable)) << text;
  }
}

}  // namespace
}  // namespace stagecoach::engine
