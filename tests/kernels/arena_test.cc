#include "kernels/arena.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>

#include "absl/base/config.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/device.h"
#include "tests/testing/status_matchers.h"

#ifdef ABSL_HAVE_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#endif

namespace stagecoach::kernels::arena_test {
namespace {

using ::stagecoach::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kBytes = 1 << 16;
constexpr int kMaxClaims = 4;

class ArenaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(device_, CreateCpuDevice({.memory_limit_bytes = 2 * kBytes}));
    ASSERT_OK_AND_ASSIGN(Arena arena, Arena::Create(*device_, kBytes, kMaxClaims));
    arena_ = std::make_unique<Arena>(std::move(arena));
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Arena> arena_;
};

TEST_F(ArenaTest, TakesItsBytesFromTheDevice) {
  EXPECT_EQ(arena_->bytes(), kBytes);
  EXPECT_EQ(device_->used_bytes(), kBytes);
  arena_.reset();
  EXPECT_EQ(device_->used_bytes(), 0);
}

TEST_F(ArenaTest, BeyondTheDevicesBudgetIsRefused) {
  EXPECT_THAT(Arena::Create(*device_, kBytes + 1, kMaxClaims),
              StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST_F(ArenaTest, AddressesFollowOffsets) {
  ASSERT_OK_AND_ASSIGN(std::byte* const low, arena_->Claim(0, 256));
  ASSERT_OK_AND_ASSIGN(std::byte* const high, arena_->Claim(4096, 256));
  EXPECT_EQ(high - low, 4096);
}

TEST_F(ArenaTest, NeighborsDoNotOverlap) {
  EXPECT_OK(arena_->Claim(1024, 1024));
  EXPECT_OK(arena_->Claim(0, 1024));
  EXPECT_OK(arena_->Claim(2048, kBytes - 2048));
}

struct Range {
  int64_t offset, bytes;
};
class ArenaOverlap : public ArenaTest, public ::testing::WithParamInterface<Range> {};

TEST_P(ArenaOverlap, IsAnErrorThatNamesBothClaims) {
  ASSERT_OK(arena_->Claim(0, 512));
  ASSERT_OK(arena_->Claim(1024, 1024));
  const auto [offset, bytes] = GetParam();
  EXPECT_THAT(arena_->Claim(offset, bytes),
              StatusIs(absl::StatusCode::kInternal, AllOf(HasSubstr(std::to_string(offset)),
                                                          HasSubstr(std::to_string(offset + bytes)),
                                                          HasSubstr("1024"), HasSubstr("2048"))));
}

// The same range, a part of it, one that contains it, and one across each of its ends.
INSTANTIATE_TEST_SUITE_P(Ranges, ArenaOverlap,
                         ::testing::Values(Range{1024, 1024}, Range{1280, 256}, Range{768, 2048},
                                           Range{1024, 256}, Range{1792, 256}, Range{768, 257},
                                           Range{2047, 1}));

TEST_F(ArenaTest, RefusedClaimChangesNothing) {
  ASSERT_OK(arena_->Claim(0, 1024));
  ASSERT_THAT(arena_->Claim(512, 4096), StatusIs(absl::StatusCode::kInternal));
  EXPECT_EQ(arena_->live_bytes(), 1024);
  EXPECT_EQ(arena_->peak_bytes(), 1024);
  EXPECT_OK(arena_->Claim(1024, 4096));
}

TEST_F(ArenaTest, ClaimMayEndAtTheEnd) { EXPECT_OK(arena_->Claim(kBytes - 1, 1)); }

TEST_F(ArenaTest, ClaimBeyondTheEndIsRefused) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  for (const auto [offset, bytes] :
       {Range{kBytes - 1, 2}, Range{kBytes + 1, 1}, Range{0, kBytes + 1}, Range{kMax, 1},
        Range{1, kMax}, Range{kMax, kMax}}) {
    EXPECT_THAT(arena_->Claim(offset, bytes), StatusIs(absl::StatusCode::kResourceExhausted))
        << offset << " + " << bytes;
  }
}

TEST_F(ArenaTest, TooManyLiveClaimsAreRefused) {
  for (int i = 0; i < kMaxClaims; ++i) ASSERT_OK(arena_->Claim(i * 64, 64));
  EXPECT_THAT(arena_->Claim(kMaxClaims * 64, 64), StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST_F(ArenaTest, ReleaseMakesRoom) {
  for (int i = 0; i < kMaxClaims; ++i) ASSERT_OK(arena_->Claim(i * 64, 64));
  ASSERT_OK(arena_->Release(64));
  ASSERT_OK(arena_->Release(128));
  EXPECT_OK(arena_->Claim(64, 128));
}

TEST_F(ArenaTest, ReleaseOfWhatIsNotLiveIsAnError) {
  ASSERT_OK(arena_->Claim(1024, 1024));
  EXPECT_THAT(arena_->Release(0), StatusIs(absl::StatusCode::kInternal, "0"));
  EXPECT_THAT(arena_->Release(1025), StatusIs(absl::StatusCode::kInternal, "1025"));
}

TEST_F(ArenaTest, ClaimIsReleasedOnce) {
  ASSERT_OK(arena_->Claim(1024, 1024));
  ASSERT_OK(arena_->Release(1024));
  EXPECT_THAT(arena_->Release(1024), StatusIs(absl::StatusCode::kInternal));
}

TEST_F(ArenaTest, CountsLiveBytes) {
  ASSERT_OK(arena_->Claim(0, 1000));
  ASSERT_OK(arena_->Claim(2000, 500));
  ASSERT_OK(arena_->Release(0));
  EXPECT_EQ(arena_->live_bytes(), 500);
}

TEST_F(ArenaTest, PeaksOutliveTheClaims) {
  ASSERT_OK(arena_->Claim(0, 1000));
  ASSERT_OK(arena_->Claim(4000, 500));
  ASSERT_OK(arena_->Release(0));
  ASSERT_OK(arena_->Release(4000));
  ASSERT_OK(arena_->Claim(0, 100));
  EXPECT_EQ(arena_->peak_live_bytes(), 1500);
  EXPECT_EQ(arena_->peak_bytes(), 4500);
}

TEST_F(ArenaTest, MovingKeepsClaimsAndCounts) {
  ASSERT_OK(arena_->Claim(512, 1024));
  Arena moved(std::move(*arena_));
  EXPECT_EQ(moved.live_bytes(), 1024);
  EXPECT_THAT(moved.Claim(1024, 1), StatusIs(absl::StatusCode::kInternal));
  EXPECT_OK(moved.Release(512));
}

TEST_F(ArenaTest, AssignmentGivesTheOldMemoryBack) {
  ASSERT_OK_AND_ASSIGN(Arena other, Arena::Create(*device_, 4096, kMaxClaims));
  *arena_ = std::move(other);
  EXPECT_EQ(arena_->bytes(), 4096);
  EXPECT_EQ(device_->used_bytes(), 4096);
}

#ifdef ABSL_HAVE_ADDRESS_SANITIZER
TEST_F(ArenaTest, OnlyLiveClaimsMayBeTouched) {
  ASSERT_OK_AND_ASSIGN(std::byte* const data, arena_->Claim(1024, 256));
  EXPECT_TRUE(__asan_address_is_poisoned(data - 1));
  EXPECT_FALSE(__asan_address_is_poisoned(data));
  EXPECT_FALSE(__asan_address_is_poisoned(data + 255));
  EXPECT_TRUE(__asan_address_is_poisoned(data + 256));
  ASSERT_OK(arena_->Release(1024));
  EXPECT_TRUE(__asan_address_is_poisoned(data));
}
#endif

}  // namespace
}  // namespace stagecoach::kernels::arena_test
