#include "engine/comm/wire.h"

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using testing::StatusIs;

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
