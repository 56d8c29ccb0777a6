#include "engine/data/images/read_ahead.h"

#include <atomic>
#include <numeric>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using testing::StatusIs;

// Row r has the byte r, except that row 13 is an error.
absl::Status ReadAheadRow(int64_t row, absl::Span<std::byte> out) {
  out[0] = std::byte{static_cast<uint8_t>(row)};
  return row == 13 ? absl::DataLossError("13") : absl::OkStatus();
}

TEST(ReadAhead, ReadsTheSameWhetherAnnouncedOrNot) {
  for (const int64_t most_rows : {1, 3, 100}) {
    ReadAhead ahead(3, 1, most_rows, ReadAheadRow);
    std::vector<int64_t> rows(40);
    std::iota(rows.begin(), rows.end(), 0);
    for (int round = 0; round < 20; ++round) {
      ahead.Announce(rows);
      for (const int64_t row : {5, 1, 13, 39, 50, 1, 20 + round}) {
        std::byte byte{0xFF};
        const absl::Status status = ahead.Read(row, absl::MakeSpan(&byte, 1));
        EXPECT_EQ(byte, std::byte{static_cast<uint8_t>(row)});
        EXPECT_EQ(status.code(), row == 13 ? absl::StatusCode::kDataLoss : absl::StatusCode::kOk);
      }
    }
  }
}

TEST(ReadAhead, ReadsWhatIsAnnouncedBeforeItIsAskedFor) {
  std::atomic<int> reads = 0;
  ReadAhead ahead(1, 1, 8, [&](int64_t row, absl::Span<std::byte> out) {
    absl::Status status = ReadAheadRow(row, out);
    ++reads;
    reads.notify_all();
    return status;
  });
  ahead.Announce({7, 8});
  for (int seen = 0; (seen = reads) < 2;) reads.wait(seen);
  std::byte byte{};
  EXPECT_OK(ahead.Read(8, absl::MakeSpan(&byte, 1)));
  EXPECT_EQ(byte, std::byte{8});
  EXPECT_EQ(reads, 2);
  EXPECT_OK(ahead.Read(8, absl::MakeSpan(&byte, 1)));
  EXPECT_EQ(reads, 3) << "a row is forgotten once it is read";
}

TEST(ReadAhead, IsBounded) {
  std::atomic<int> reads = 0;
  {
    ReadAhead ahead(2, 1, 4, [&](int64_t row, absl::Span<std::byte> out) {
      ++reads;
      return ReadAheadRow(row, out);
    });
    std::vector<int64_t> rows(1000);
    std::iota(rows.begin(), rows.end(), 0);
    ahead.Announce(rows);
  }
  EXPECT_LE(reads, 4);
}

}  // namespace
}  // namespace stagecoach::engine
