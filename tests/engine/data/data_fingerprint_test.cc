#include "engine/data/data_fingerprint.h"

#include <cstdint>
#include <functional>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/data/chat/chat_dataset.h"
#include "gtest/gtest.h"

namespace stagecoach::engine {
namespace {

constexpr int64_t kRows = 100, kFeatures = 16;
constexpr int64_t kBytes = kRows * (kFeatures + 1) * 4;

struct Table {
  std::vector<float> values = std::vector<float>(kRows * kFeatures);
  std::vector<int32_t> labels = std::vector<int32_t>(kRows);
  DataEncoding encoding = {};
};

std::string Of(const std::function<void(Table&)>& change, int64_t most_bytes) {
  Table table;
  std::iota(table.values.begin(), table.values.end(), 0.0F);
  change(table);
  const TrainTest data = {
      .train = TableDataset::Create({kFeatures}, 2, std::move(table.values), table.labels).value(),
      .encoding = table.encoding};
  return FingerprintOf(data, most_bytes).train;
}

TEST(DataFingerprint, TellsApartWhatChangesTheResults) {
  std::set<std::string> all;
  const std::function<void(Table&)> changes[] = {
      [](Table& /*table*/) {}, [](Table& table) { table.values[kFeatures * 37] = -1; },
      [](Table& table) { table.labels[37] = 1; },
      [](Table& table) { table.encoding.mean = {0.5}; }};
  for (const auto& change : changes) {
    EXPECT_TRUE(all.insert(Of(change, kBytes)).second);
    EXPECT_EQ(Of(change, kBytes), Of(change, kBytes + 1));  // the limit only affects larger sets
  }
}

// Packed alike, but for the place where one document ends and the next begins.
TEST(DataFingerprint, TellsApartWhereDocumentsBegin) {
  const auto of = [](const std::vector<ChatTokens>& examples) {
    return FingerprintOf(
               {.train = ChatDataset::Create(examples, 4, 10, ExamplesInRow::kPacked).value()},
               kBytes)
        .train;
  };
  const ChatTokens one = {{1, 1}, {0, 1}}, two = {{1, 1, 1}, {0, 1, 1}};
  EXPECT_NE(of({one, two}), of({two, one}));
  EXPECT_EQ(of({one, two}), of({one, two}));
}

// The fingerprint covers every fourth sample here, and all labels.
TEST(DataFingerprint, OfALargeSetHasEachLabel) {
  const std::string none = Of([](Table& /*table*/) {}, kBytes / 4);
  for (size_t row = 0; row < kRows; ++row) {
    EXPECT_NE(Of([row](Table& table) { table.labels[row] = 1; }, kBytes / 4), none) << row;
  }
  EXPECT_NE(Of([](Table& table) { table.values[kFeatures * 4] = -1; }, kBytes / 4), none);
  EXPECT_EQ(Of([](Table& table) { table.values[kFeatures * 9] = -1; }, kBytes / 4), none);
  // The labels are sampled, too, if they alone exceed the limit.
  EXPECT_EQ(Of([](Table& table) { table.labels[1] = 1; }, 4 * kRows / 2),
            Of([](Table& /*table*/) {}, 4 * kRows / 2));
}

}  // namespace
}  // namespace stagecoach::engine
