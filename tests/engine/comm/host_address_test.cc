#include "engine/comm/host_address.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::StatusIs;

// Returns the address that a process gets if the others say that they are reachable.
absl::StatusOr<std::string> Agreed(const std::string& own_address, bool is_one_host) {
  return AgreeOnAddress(own_address,
                        [&](const std::string& own) -> absl::StatusOr<std::vector<std::string>> {
                          return std::vector<std::string>{own, is_one_host ? own : "elsewhere"};
                        });
}

TEST(AgreeOnAddress, IsLoopbackOnOneHost) {
  EXPECT_EQ(Agreed("192.0.2.1", /*is_one_host=*/true).value(), "127.0.0.1");
}

// Debian maps a host's name this way in /etc/hosts.
TEST(AgreeOnAddress, SaysThatOtherHostsCannotReachIt) {
  EXPECT_THAT(Agreed("127.0.1.1", /*is_one_host=*/false),
              StatusIs(absl::StatusCode::kUnavailable,
                       "127.0.1.1 is 127.0.1.1 here, where other hosts cannot reach"));
}

TEST(AgreeOnAddress, SaysThatItIsNotOfThisHost) {
  for (const char* address : {"192.0.2.1", "no-such-host.invalid"}) {
    EXPECT_THAT(Agreed(address, /*is_one_host=*/false),
                StatusIs(absl::StatusCode::kUnavailable, address));
  }
}

TEST(AgreeOnAddress, FailsAsGatheringDoes) {
  EXPECT_THAT(AgreeOnAddress("",
                             [](const std::string&) -> absl::StatusOr<std::vector<std::string>> {
                               return absl::AbortedError("rank 1 has failed");
                             }),
              StatusIs(absl::StatusCode::kAborted, "rank 1"));
}

}  // namespace
}  // namespace stagecoach::engine
